/**
 * A tool call: what is called with what, how it goes, what came of it; and, where a person is asked, the question.
 *
 * @import {Decision, ToolCall} from "../conversation/wire.js"
 */

import { ApprovalForm } from "./approval_form.js";
import { copyButton } from "../text/copying.js";
import { arrange, h, icon, setText } from "../dom.js";
import { wholeButton } from "./whole.js";
import { duration, legible } from "../words.js";

/**
 * @typedef {object} CallActions
 * @property {(call: ToolCall, decision: Decision, reason?: string) => Promise<boolean>} decide
 * @property {(hash: string) => Promise<string>} readBlob
 */

/** How a call stands: a class of its card, an icon, and a word. */
const STATES = {
  preparing: ["running", "dot", "preparing"],
  running: ["running", "dot", "running"],
  waiting: ["waiting", "hand", "needs approval"],
  ok: ["ok", "check", "done"],
  error: ["error", "cross", "failed"],
  denied: ["denied", "cross", "not allowed"],
  cancelled: ["denied", "cross", "cancelled"],
  outcome_unknown: ["error", "question", "outcome unknown"],
};

export class ToolCard {
  #actions;
  #symbol = h("span", { class: "tool-symbol" });
  #state = h("span", { class: "tool-state" });
  #name = h("code", { class: "tool-name" });
  #gist = h("span", { class: "tool-gist" });
  #time = h("span", { class: "tool-time" });
  #body = h("div", { class: "tool-body" });
  #details = h(
    "details",
    {},
    h("summary", {}, this.#symbol, this.#name, this.#gist, this.#state, this.#time, icon("chevron")),
    this.#body,
  );
  /** @type {ApprovalForm | null} */
  #form = null;
  #shown = "";

  /** @param {CallActions} actions */
  constructor(actions) {
    this.#actions = actions;
    this.element = h("div", { class: "tool" }, this.#details);
  }

  /** Show a call that the model is still writing. @param {string} name */
  showPreparing(name) {
    this.#showState("preparing");
    setText(this.#name, legible(name) || "…");
  }

  /** @param {ToolCall} call @param {boolean} isRunning whether its turn still runs */
  show(call, isRunning) {
    const shown = JSON.stringify([call, isRunning]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    const isAsked = isRunning && !call.result && call.approval !== null && call.approval.decision === null;
    this.element.dataset.call = call.id;
    this.#showState(isAsked ? "waiting" : (call.result?.status ?? (isRunning ? "running" : "cancelled")));
    setText(this.#name, legible(call.name));
    setText(this.#gist, legible(gistOf(call)));
    const ms = call.result?.duration_ms;
    setText(this.#time, ms === null || ms === undefined ? "" : duration(ms));
    arrange(this.#body, this.#sections(call));
    this.#ask(call, isAsked);
  }

  /** @param {keyof typeof STATES} state */
  #showState(state) {
    const [style, symbol, word] = STATES[state];
    this.element.className = `tool ${style}`;
    this.#symbol.replaceChildren(icon(symbol));
    setText(this.#state, word);
  }

  /** @param {ToolCall} call @returns {HTMLElement[]} */
  #sections(call) {
    const sections = [this.#textSection("Arguments", argumentsOf(call), call.args_blob, legible)];
    if (call.approval?.decision) sections.push(h("p", { class: "tool-note" }, decisionOf(call)));
    const { result } = call;
    if (result) {
      if (result.outcome) sections.push(h("p", { class: "tool-note" }, result.outcome));
      if (result.content || result.blob) sections.push(this.#textSection("Result", result.content, result.blob));
      if (result.cut)
        sections.push(h("p", { class: "tool-note" }, "Part of this result was lost, because its store was down."));
    }
    return sections;
  }

  /**
   * @param {string} title @param {string} text @param {import("../conversation/wire.js").BlobRef | null} blob
   * @param {(text: string) => string} asShown
   */
  #textSection(title, text, blob, asShown = (text) => text) {
    const content = h("pre", { tabindex: "0", role: "group", "aria-label": title }, asShown(text));
    const header = h(
      "header",
      {},
      h("span", {}, title),
      copyButton(`Copy ${title.toLowerCase()}`, () => content.textContent ?? ""),
    );
    const section = h("section", { class: "tool-text" }, header, content);
    content.hidden = !text;
    if (blob) section.append(this.#wholeButton(title, blob, content, asShown));
    return section;
  }

  /**
   * @param {string} title @param {import("../conversation/wire.js").BlobRef} blob @param {HTMLElement} content
   * @param {(text: string) => string} asShown
   */
  #wholeButton(title, blob, content, asShown) {
    const show = (/** @type {string} */ text) => {
      content.textContent = asShown(text);
      content.hidden = false;
      content.focus();
    };
    return wholeButton(blob, { read: (hash) => this.#actions.readBlob(hash), show, name: title });
  }

  /** @param {ToolCall} call @param {boolean} isAsked */
  #ask(call, isAsked) {
    if (!isAsked) {
      this.#form?.element.remove();
      this.#form = null;
      return;
    }
    if (this.#form) return;
    this.#form = new ApprovalForm(call, (decision, reason) => this.#actions.decide(call, decision, reason));
    this.element.append(this.#form.element);
    this.#details.open = true; // nobody is to decide on what was not seen
    if (call.args_blob) this.#body.querySelector("button.link-button")?.dispatchEvent(new Event("click"));
  }
}

/** The arguments in one line. @param {ToolCall} call @returns {string} */
function gistOf({ args }) {
  if (typeof args === "string") return args;
  return Object.entries(args)
    .map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`)
    .join(", ");
}

/** @param {ToolCall} call @returns {string} */
function argumentsOf({ args, args_blob }) {
  if (args_blob) return "";
  return typeof args === "string" ? args : JSON.stringify(args, null, 2);
}

/** @param {ToolCall} call @returns {string} */
function decisionOf({ approval }) {
  const words = {
    approve: "Approved",
    allow_for_session: "Allowed for the session",
    reject: "Rejected",
    expired: "Rejected, because nobody decided in time",
  };
  const told = approval?.decision ? words[approval.decision] : "";
  return approval?.reason ? `${told}: ${approval.reason}` : `${told}.`;
}
