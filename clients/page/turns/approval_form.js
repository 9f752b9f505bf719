/**
 * The form to approve a tool call, allow it for the session, or reject it with a reason for the model.
 *
 * @import {Decision, PendingApproval} from "../conversation/wire.js"
 */

import { ApprovalText } from "./approval_text.js";
import { button, h } from "../dom.js";
import { copyButton } from "../text/copying.js";
import { TEXTS, allowWords, copyLabel, deadlineWords, decideLabel, fullTime, question } from "../words.js";

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
  /** Whether the form had focus when the decision was sent: disabled buttons lose it. */
  hadFocus = false;

  /**
   * @param {PendingApproval} pending
   * @param {(decision: Decision, reason?: string) => Promise<boolean>} decide
   */
  constructor(pending, decide) {
    this.#decide = decide;
    const approve = button("button primary", TEXTS.approve, () => void this.#send("approve"));
    const allow = button("button", TEXTS.allowForSession, () => void this.#send("allow_for_session"));
    allow.title = allowWords(pending);
    // Nobody can know what would run.
    if (!pending.is_whole) approve.hidden = allow.hidden = true;
    const reject = button("button", TEXTS.askToReject, () => this.#showReason(true));
    this.#choices = h("div", { class: "wrapping", "data-needs": "approver" }, approve, allow, reject);
    this.#rejection = h(
      "div",
      { class: "rejection", hidden: true },
      this.#reason,
      h(
        "div",
        { class: "wrapping" },
        button("button danger", TEXTS.reject, () => void this.#send("reject", this.#reason.value.trim())),
        button("button", TEXTS.back, () => this.#showReason(false)),
      ),
    );
    this.#rejection.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation(); // it closes the reason and must not stop the turn
      this.#showReason(false);
    });
    const { expires_at, text } = pending;
    const { verb, object } = question(pending);
    const shown = new ApprovalText(text);
    this.element = h(
      "div",
      { class: "approval", role: "group", "aria-label": decideLabel(pending) },
      h(
        "header",
        { class: "row apart" },
        h("p", {}, `${verb} `, h("code", {}, object), "?"),
        copyButton(copyLabel(TEXTS.approvalText), () => text),
      ),
      shown.element,
      shown.sign,
      h("p", { class: "quiet", title: fullTime(expires_at) }, deadlineWords(expires_at)),
      this.#choices,
      h("p", { class: "quiet", "data-lacks": "approver" }, TEXTS.approverDecides),
      this.#rejection,
    );
  }

  /** @param {boolean} isOpen */
  #showReason(isOpen) {
    this.#rejection.hidden = !isOpen;
    this.#choices.hidden = isOpen;
    if (isOpen) this.#reason.focus();
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
