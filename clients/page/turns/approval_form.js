/**
 * The question whether a tool call may run: once, for the whole session, or not, with a reason that the model is told.
 *
 * @import {Decision, ToolCall} from "../conversation/wire.js"
 */

import { h } from "../dom.js";
import { fullTime, legible, until } from "../words.js";

const MOST_REASON_CHARS = 500;

export class ApprovalForm {
  #decide;
  #reason = h("textarea", {
    rows: "2",
    maxlength: String(MOST_REASON_CHARS),
    "aria-label": "Reason for the model",
    placeholder: "Reason for the model (optional)",
  });
  #choices;
  #rejection;
  /** The keys were here when it was decided; buttons that are switched off lose them. */
  hadFocus = false;

  /** @param {ToolCall} call @param {(decision: Decision, reason?: string) => Promise<boolean>} decide */
  constructor(call, decide) {
    this.#decide = decide;
    const button = (/** @type {string} */ words, /** @type {string} */ style, /** @type {() => void} */ onclick) =>
      h("button", { type: "button", class: style, onclick }, words);
    this.#choices = h(
      "div",
      { class: "choices" },
      button("Approve", "button primary", () => void this.#send("approve")),
      button("Allow for this session", "button", () => void this.#send("allow_for_session")),
      button("Reject…", "button", () => this.#askForReason(true)),
    );
    this.#rejection = h(
      "div",
      { class: "rejection", hidden: true },
      this.#reason,
      h(
        "div",
        { class: "choices" },
        button("Reject", "button danger", () => void this.#send("reject", this.#reason.value.trim())),
        button("Back", "button", () => this.#askForReason(false)),
      ),
    );
    this.#rejection.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation(); // it leaves this question, and does not stop the turn
      this.#askForReason(false);
    });
    const expires = call.approval?.expires_at ?? "";
    const words = h("p", {}, ...questionOf(call), " ");
    const time = until(expires).replace(/^in /, "within ");
    if (expires) words.append(h("span", { class: "quiet", title: fullTime(expires) }, `Decision needed ${time}.`));
    this.element = h(
      "div",
      { class: "approval", role: "group", "aria-label": `Decide on ${call.name}` },
      words,
      this.#choices,
      this.#rejection,
    );
  }

  /** @param {boolean} isAsked */
  #askForReason(isAsked) {
    this.#rejection.hidden = !isAsked;
    this.#choices.hidden = isAsked;
    if (isAsked) this.#reason.focus();
    else this.#choices.querySelector("button")?.focus();
  }

  /** @param {Decision} decision @param {string} [reason] */
  async #send(decision, reason) {
    this.hadFocus = this.element.contains(document.activeElement);
    const buttons = this.element.querySelectorAll("button");
    for (const button of buttons) button.disabled = true;
    const isDone = await this.#decide(decision, reason);
    if (!isDone) for (const button of buttons) button.disabled = false;
  }
}

/** What a call would do, as a question. @param {ToolCall} call @returns {(string | Node)[]} */
function questionOf({ name, args }) {
  const path = name === "file_write" && typeof args === "object" ? args.path : null;
  if (typeof path === "string") return ["Write ", h("code", {}, legible(path)), "?"];
  return ["Run ", h("code", {}, legible(name)), "?"];
}
