/**
 * The question whether a tool call may run: once, for the whole session, or not, with a reason that the model is told.
 *
 * @import {Decision, ToolCall} from "../conversation/wire.js"
 */

import { button, h } from "../dom.js";
import { TEXTS, deadlineWords, fullTime, question } from "../words.js";

const MAX_REASON_CHARS = 500;

export class ApprovalForm {
  #decide;
  #reason = h("textarea", {
    rows: "2",
    maxlength: String(MAX_REASON_CHARS),
    "aria-label": TEXTS.reason,
    placeholder: TEXTS.reasonHint,
  });
  #choices;
  #rejection;
  /** The keys were here when it was decided; buttons that are switched off lose them. */
  hadFocus = false;

  /** @param {ToolCall} call @param {(decision: Decision, reason?: string) => Promise<boolean>} decide */
  constructor(call, decide) {
    this.#decide = decide;
    this.#choices = h(
      "div",
      { class: "choices" },
      button("button primary", TEXTS.approve, () => void this.#send("approve")),
      button("button", TEXTS.allowForSession, () => void this.#send("allow_for_session")),
      button("button", TEXTS.askToReject, () => this.#askForReason(true)),
    );
    this.#rejection = h(
      "div",
      { class: "rejection", hidden: true },
      this.#reason,
      h(
        "div",
        { class: "choices" },
        button("button danger", TEXTS.reject, () => void this.#send("reject", this.#reason.value.trim())),
        button("button", TEXTS.back, () => this.#askForReason(false)),
      ),
    );
    this.#rejection.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation(); // it leaves this question, and does not stop the turn
      this.#askForReason(false);
    });
    const expires = call.approval?.expires_at ?? "";
    const { verb, object } = question(call);
    const deadline = expires && h("span", { class: "quiet", title: fullTime(expires) }, deadlineWords(expires));
    this.element = h(
      "div",
      { class: "approval", role: "group", "aria-label": `Decide on ${call.name}` },
      h("p", {}, `${verb} `, h("code", {}, object), "? ", deadline),
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
