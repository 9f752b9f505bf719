/**
 * One turn: the prompt, the steps, the answer or error, and a line of facts.
 *
 * @import {PartialOutput} from "../conversation/conversation_manager.js"
 * @import {StepActions} from "./step_view.js"
 * @import {ModelStep, Seen, Turn} from "../conversation/wire.js"
 */

import { attachmentsView } from "./attachments_view.js";
import { copyButton } from "../text/copying.js";
import { arrange, button, h, icon } from "../dom.js";
import { forkButton } from "../panels/copies.js";
import { ModelText } from "./model_text.js";
import { PartialView } from "./partial_view.js";
import { ModelStepView, steeringPrompt } from "./step_view.js";
import { SEEN_WORDS, TEXTS, clock, duration, endingWords, fullTime, omittedWords, usageDetails, usageWords }
  from "../words.js";

/** A prompt of this size or more is folded. */
const LONG_CHARS = 2_000;
const LONG_LINES = 24;

/** @typedef {(turn: Turn) => Promise<boolean>} TurnAction */
/** @typedef {StepActions & {retry: TurnAction, fork: TurnAction}} TurnActions */

export class TurnView {
  #actions;
  #response = h("div", { class: "response" });
  #steps = h("div", { class: "steps" });
  #omitted = h("p", { class: "quiet" });
  #answer;
  #error = h("div");
  #facts = h("footer", { class: "facts fine numbers" });
  #cursor = h("div", { class: "growing", "aria-hidden": "true" });
  /** The model's steps, by number. @type {Map<number, ModelStepView>} */
  #views = new Map();
  /** The steering prompts. @type {Map<string, HTMLElement>} */
  #steering = new Map();
  /** @type {PartialView | null} */
  #partial = null;
  /** @type {Turn | null} */
  #turn = null;
  /** @type {Seen} */
  #seen = "verbatim";

  /** @param {Turn} turn @param {TurnActions} actions */
  constructor(turn, actions) {
    this.#actions = actions;
    this.#answer = new ModelText(actions.readBlob);
    this.element = h("article", { class: "turn", "data-turn": turn.id }, requestOf(turn, actions.sessionId), this.#response);
    this.show(turn);
  }

  /** @param {Turn} turn */
  show(turn) {
    this.#turn = turn;
    this.element.dataset.status = turn.status;
    const steps = turn.reasoning_trajectory?.steps ?? [];
    const last = /** @type {ModelStep | undefined} */ (steps.findLast((step) => step.kind === "model"));
    // The answer is the text of the last step without tool calls; it is shown there, once.
    const answering = turn.agent_message !== null && last && !last.tool_calls.length ? last : null;
    const elements = steps.map((step) => {
      if (step.kind === "user") {
        const element = this.#steering.get(step.message_id) ?? steeringPrompt(step, this.#actions.sessionId);
        this.#steering.set(step.message_id, element);
        return element;
      }
      const view = this.#views.get(step.number) ?? new ModelStepView(this.#actions);
      this.#views.set(step.number, view);
      const answer = step === answering ? answerOf(turn) : null;
      view.show(step, { status: turn.status, isRunning: !turn.is_complete, answer });
      return view.element;
    });
    arrange(this.#steps, elements);
    const { text, blob } = answerOf(turn);
    this.#answer.show(answering ? "" : text, blob);
    this.#omitted.textContent = omittedWords(turn.steps_omitted);
    this.#showError(turn);
    this.#showFacts();
    this.#arrange();
  }

  /** Show the partial output; null: none. @param {PartialOutput | null} partial @param {boolean} isFresh */
  showPartial(partial, isFresh) {
    if (!partial) {
      if (this.#partial?.hasOpenThinking) for (const view of this.#views.values()) view.openThinking();
      this.#partial = null;
    } else {
      const isNew = !this.#partial;
      this.#partial ??= new PartialView();
      this.#partial.show(partial, isFresh || isNew);
    }
    this.#arrange();
  }

  /** Show what the model still sees of this turn. @param {Seen} seen */
  showSeen(seen) {
    if (seen === this.#seen) return;
    this.#seen = seen;
    this.element.dataset.seen = seen;
    this.#showFacts();
  }

  #arrange() {
    const turn = this.#turn;
    if (!turn) return;
    const isQuiet = !turn.is_complete && !this.#partial?.element.childNodes.length && turn.status === "processing";
    arrange(this.#response, [
      turn.steps_omitted > 0 && this.#omitted,
      this.#steps,
      this.#partial && this.#partial.element,
      isQuiet && this.#cursor,
      ...this.#answer.elements,
      turn.error !== null && this.#error,
      turn.is_complete && this.#facts,
    ]);
  }

  /** @param {Turn} turn */
  #showError(turn) {
    if (turn.error === null) return;
    const retry = button("button", TEXTS.retry, async () => {
      retry.disabled = true;
      if (!(await this.#actions.retry(turn))) retry.disabled = false;
    });
    retry.prepend(icon("retry"));
    retry.dataset.needs = "writer";
    const isStopped = turn.status === "cancelled";
    this.#error.className = isStopped ? "turn-error failure row stopped" : "turn-error failure row";
    this.#error.replaceChildren(icon(isStopped ? "stop" : "cross"), h("p", {}, endingWords(turn)), retry);
  }

  /** @param {Turn} turn @returns {string | Promise<string>} */
  #wholeAnswer(turn) {
    const { text, blob } = writtenOf(turn);
    return blob ? this.#actions.readBlob(blob.hash) : text;
  }

  #showFacts() {
    const turn = this.#turn;
    if (!turn?.is_complete) return;
    const last = turn.reasoning_trajectory?.steps.findLast((step) => step.kind === "model");
    const used = usageWords(turn.usage);
    const seen = SEEN_WORDS[this.#seen];
    arrange(this.#facts, [
      writtenOf(turn).text !== "" && copyButton(TEXTS.copyAnswer, () => this.#wholeAnswer(turn)),
      forkButton(() => this.#actions.fork(turn)),
      !!turn.agent && h("span", {}, turn.agent),
      last?.kind === "model" && last.model !== null && h("span", {}, last.model),
      turn.processing_time_ms !== null && h("span", {}, duration(turn.processing_time_ms)),
      turn.usage && used !== "" && h("span", { title: usageDetails(turn.usage, turn.tasks_usage) }, used),
      seen !== "" && h("span", { class: "seen" }, seen),
    ]);
  }
}

/** @param {Turn} turn */
function answerOf({ agent_message, agent_message_blob }) {
  return { text: agent_message ?? "", blob: agent_message_blob };
}

/** The answer, or the text of an interrupted one. @param {Turn} turn */
function writtenOf(turn) {
  const last = turn.reasoning_trajectory?.steps.at(-1);
  if (turn.agent_message !== null || last?.kind !== "model" || !last.interrupted) return answerOf(turn);
  return { text: last.text ?? "", blob: last.text_blob };
}

/** @param {Turn} turn @param {string} sessionId @returns {HTMLElement} */
function requestOf(turn, sessionId) {
  const files = attachmentsView(sessionId, turn.attachments);
  return h(
    "header",
    { class: "request" },
    files,
    ...(files && !turn.user_message.trim() ? [] : bubbleOf(turn.user_message)),
    h(
      "div",
      { class: "facts fine numbers" },
      h("time", { datetime: turn.user_timestamp, title: fullTime(turn.user_timestamp) }, clock(turn.user_timestamp)),
      copyButton(TEXTS.copyPrompt, () => turn.user_message),
    ),
  );
}

/** The prompt; a long one is folded. @param {string} text */
function bubbleOf(text) {
  const bubble = h("div", { class: "bubble", dir: "auto" }, text);
  if (text.length < LONG_CHARS && text.split("\n", LONG_LINES).length < LONG_LINES) return [bubble];
  bubble.classList.add("folded");
  const unfold = button("link-button", TEXTS.showAll, () => {
    bubble.classList.remove("folded");
    unfold.remove();
  });
  return [bubble, unfold];
}
