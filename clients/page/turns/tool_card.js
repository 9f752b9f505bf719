/**
 * A tool call: its name, arguments, state and result, and the approval form if it needs one.
 *
 * @import {Approval, Decision, PendingApproval, ToolCall} from "../conversation/wire.js"
 */

import { ApprovalForm } from "./approval_form.js";
import { attachmentsView } from "./attachments_view.js";
import { copyButton } from "../text/copying.js";
import { arrange, h, icon, setText } from "../dom.js";
import { fullTextButton } from "./full_text.js";
import { CALL_STATES, TEXTS, clock, copyLabel, decisionWords, duration, fullTime, oneLine } from "../words.js";

/**
 * @typedef {object} CallActions
 * @property {(call: PendingApproval, decision: Decision, reason?: string) => Promise<boolean>} decide
 * @property {(callId: string) => PendingApproval | undefined} approvalOf what is decided on, once it is known
 * @property {(hash: string) => Promise<string>} readBlob
 * @property {(hash: string) => Promise<string>} readArguments
 * @property {string} [sessionId] whose attachments results have
 */

/** The card's class and icon in each state. */
const STATES = {
  preparing: ["running", "dot"],
  running: ["running", "dot"],
  waiting: ["waiting", "hand"],
  ok: ["ok", "check"],
  error: ["error", "cross"],
  denied: ["denied", "cross"],
  rejected: ["denied", "cross"],
  cancelled: ["denied", "cross"],
  outcome_unknown: ["error", "hand"],
};

export class ToolCard {
  #actions;
  #symbol = h("span", { class: "tool-symbol" });
  #state = h("span", { class: "tool-state fine" });
  #name = h("code", { class: "tool-name one-line" });
  #gist = h("span", { class: "tool-gist fine one-line" });
  /** Filled by the log view. It changes often, so it isn't announced. */
  #progress = h("span", { class: "tool-progress fine one-line numbers", dir: "auto", "aria-live": "off" });
  #time = h("span", { class: "fine numbers" });
  #body = h("div", { class: "tool-body" });
  #files = h("div", { class: "tool-files" });
  #details = h(
    "details",
    {},
    h("summary", {}, this.#symbol, this.#name, this.#gist, this.#progress, this.#state, this.#time, icon("chevron")),
    this.#body,
  );
  /** @type {ApprovalForm | null} */
  #form = null;
  /** @type {string | undefined} the text that the form is about */
  #question;
  #key = "";

  /** @param {CallActions} actions */
  constructor(actions) {
    this.#actions = actions;
    this.element = h("div", { class: "tool" }, this.#details, this.#files);
  }

  /** Show a call that the model is writing. @param {string} name */
  showPreparing(name) {
    this.#showState("preparing");
    setText(this.#name, name || "…");
  }

  /** @param {ToolCall} call @param {boolean} isRunning whether its turn is running */
  show(call, isRunning) {
    const needsDecision = isRunning && !call.result && call.approval !== null && call.approval.decision === null;
    const pending = needsDecision ? this.#actions.approvalOf(call.id) : undefined;
    const key = JSON.stringify([call, isRunning, pending?.text]);
    if (key === this.#key) return;
    this.#key = key;
    this.element.dataset.call = call.id;
    this.#showState(needsDecision ? "waiting" : stateOf(call, isRunning));
    if (!isRunning || call.result) setText(this.#progress, "");
    setText(this.#name, call.name);
    setText(this.#gist, oneLine(call.legible_args ?? ""));
    const ms = call.result?.duration_ms;
    setText(this.#time, ms === null || ms === undefined ? "" : duration(ms));
    arrange(this.#body, this.#sections(call));
    // Outside the fold: a picture is what one looks for in a result.
    arrange(this.#files, [attachmentsView(this.#actions.sessionId ?? "", call.result?.attachments)]);
    this.#ask(pending);
  }

  /** @param {keyof typeof STATES} state */
  #showState(state) {
    const [style, symbol] = STATES[state];
    this.element.className = `tool ${style}`;
    this.#symbol.replaceChildren(icon(symbol));
    setText(this.#state, CALL_STATES[state]);
  }

  /** @param {ToolCall} call @returns {HTMLElement[]} */
  #sections(call) {
    const note = (/** @type {string} */ words) => h("p", { class: "quiet" }, words);
    const { readArguments, readBlob } = this.#actions;
    const sections = [this.#textSection(TEXTS.arguments, call.legible_args ?? "", call.args_blob, readArguments)];
    if (call.approval?.decision) sections.push(decisionNote(call.approval));
    const { result } = call;
    if (result && stateOf(call, false) !== "rejected") {
      if (result.outcome) sections.push(note(result.outcome));
      if (result.content || result.blob) sections.push(this.#textSection(TEXTS.result, result.content, result.blob, readBlob));
      if (result.cut) sections.push(note(TEXTS.lostResult));
    }
    return sections;
  }

  /**
   * @param {string} title @param {string} text @param {import("../conversation/wire.js").BlobRef | null} blob
   * @param {(hash: string) => Promise<string>} read
   */
  #textSection(title, text, blob, read) {
    const content = h("pre", { tabindex: "0", role: "group", "aria-label": title }, text);
    const header = h(
      "header",
      { class: "row apart fine" },
      h("span", {}, title),
      copyButton(copyLabel(title), () => content.textContent ?? ""),
    );
    const section = h("section", {}, header, content);
    content.hidden = !text;
    const show = (/** @type {string} */ fullText, /** @type {boolean} */ isClick) => {
      content.textContent = fullText;
      content.hidden = false;
      if (isClick) content.focus(); // otherwise the user may be writing a prompt
    };
    if (blob) section.append(fullTextButton(blob, { read, show, name: title }));
    return section;
  }

  /** Ask for a decision, once what is decided on is known. @param {PendingApproval} [pending] */
  #ask(pending) {
    if (this.#form && this.#question === pending?.text) return;
    this.#closeQuestion();
    this.#question = pending?.text;
    if (!pending) return;
    this.#form = new ApprovalForm(pending, (decision, reason) => this.#actions.decide(pending, decision, reason));
    this.element.append(this.#form.element);
  }

  /** Remove the form of a decided call. */
  #closeQuestion() {
    if (!this.#form) return;
    const hasFocus = this.#form.hadFocus && document.activeElement === document.body;
    this.#form.element.remove();
    this.#form = null;
    // Otherwise the focus would go to the top of the page.
    if (hasFocus) this.#details.querySelector("summary")?.focus({ preventScroll: true });
  }
}

/** What was decided, by whom and when. @param {Approval} approval @returns {HTMLElement} */
function decisionNote(approval) {
  const at = approval.decided_at;
  const time = at && h("time", { class: "fine", datetime: at, title: fullTime(at) }, clock(at));
  return h("p", { class: "quiet" }, decisionWords(approval), time && " ", time);
}

/** @param {ToolCall} call @param {boolean} isRunning @returns {keyof typeof STATES} */
function stateOf({ approval, result }, isRunning) {
  if (!result) return isRunning ? "running" : "cancelled";
  return result.status === "denied" && approval?.decision === "reject" ? "rejected" : result.status;
}
