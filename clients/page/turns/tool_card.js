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
  rejected: ["denied", "cross", "rejected"],
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
    this.#showState(isAsked ? "waiting" : stateOf(call, isRunning));
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
    if (result && stateOf(call, false) !== "rejected") {
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
    const show = (/** @type {string} */ text, /** @type {boolean} */ isByHand) => {
      content.textContent = asShown(text);
      content.hidden = false;
      if (isByHand) content.focus(); // else a person may be writing a prompt
    };
    return wholeButton(blob, { read: (hash) => this.#actions.readBlob(hash), show, name: title });
  }

  /** @param {ToolCall} call @param {boolean} isAsked */
  #ask(call, isAsked) {
    if (!isAsked) {
      this.#closeQuestion();
      return;
    }
    if (this.#form) return;
    this.#form = new ApprovalForm(call, (decision, reason) => this.#actions.decide(call, decision, reason));
    this.element.append(this.#form.element);
    this.#details.open = true; // nobody is to decide on what was not seen
    if (call.args_blob) this.#body.querySelector("button.link-button")?.dispatchEvent(new Event("click"));
  }

  /** The question is decided: the card is one line again, as those that nobody was asked about. */
  #closeQuestion() {
    if (!this.#form) return;
    const hasFocus = this.#form.hadFocus && document.activeElement === document.body;
    this.#form.element.remove();
    this.#form = null;
    this.#details.open = false;
    // Or the keys would begin at the top of the page.
    if (hasFocus) this.#details.querySelector("summary")?.focus({ preventScroll: true });
  }
}

/** @param {ToolCall} call @param {boolean} isRunning @returns {keyof typeof STATES} */
function stateOf({ approval, result }, isRunning) {
  if (!result) return isRunning ? "running" : "cancelled";
  return result.status === "denied" && approval?.decision === "reject" ? "rejected" : result.status;
}

/** The arguments in one line. @param {ToolCall} call @returns {string} */
function gistOf({ args }) {
  if (typeof args === "string") return args;
  return Object.entries(args)
    .map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`)
    .join(", ");
}

/** As JSON; where one is a text of several lines, as lines. @param {ToolCall} call @returns {string} */
function argumentsOf({ args, args_blob }) {
  if (args_blob) return "";
  if (typeof args === "string") return args;
  const isOfLines = (/** @type {unknown} */ value) => typeof value === "string" && value.includes("\n");
  if (!Object.values(args).some(isOfLines)) return JSON.stringify(args, null, 2);
  return Object.entries(args)
    .map(([name, value]) => `${name}:${isOfLines(value) ? `\n${value}` : ` ${JSON.stringify(value, null, 2)}`}`)
    .map((written) => written.replaceAll("\n", "\n    ")) // to the right: none of the lines looks like an argument
    .join("\n");
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
