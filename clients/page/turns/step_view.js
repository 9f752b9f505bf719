/**
 * A step of a turn: the model's thinking, text and tool calls; or a steering prompt.
 *
 * @import {CallActions} from "./tool_card.js"
 * @import {BlobRef, ModelStep, TurnStatus, UserStep} from "../conversation/wire.js"
 */

import { attachmentsView } from "./attachments_view.js";
import { arrange, h } from "../dom.js";
import { ModelText } from "./model_text.js";
import { Thinking } from "./thinking.js";
import { ToolCard } from "./tool_card.js";
import { TEXTS } from "../words.js";

/** @typedef {CallActions & {sessionId: string}} StepActions */

export class ModelStepView {
  #actions;
  /** @type {Thinking | null} */
  #thinking = null;
  #text;
  /** @type {Map<string, ToolCard>} */
  #cards = new Map();
  /** @type {HTMLElement | null} */
  #mark = null;
  /** @type {HTMLElement | null} */
  #leftOut = null;

  /** @param {StepActions} actions */
  constructor(actions) {
    this.#actions = actions;
    this.#text = new ModelText(actions.readBlob);
    this.element = h("div", { class: "step" });
  }

  /**
   * Show the step; `answer` replaces its text, since it can be opened in full.
   * @param {ModelStep} step
   * @param {{status: TurnStatus, isRunning: boolean, answer: {text: string, blob: BlobRef | null} | null}} turn
   */
  show(step, { status, isRunning, answer }) {
    if (step.thinking) this.#showThinking(step);
    const { text, blob } = answer ?? { text: step.text ?? "", blob: step.text_blob };
    this.#text.show(text, blob);
    for (const call of step.tool_calls) this.#cardOf(call.id).show(call, isRunning);
    arrange(this.element, [
      step.left_out ? this.#leftOutNote(step.left_out) : null,
      this.#thinking && this.#thinking.element,
      ...this.#text.elements,
      ...step.tool_calls.map((call) => this.#cardOf(call.id).element),
      step.interrupted && this.#interruptedMark(status),
    ]);
  }

  /** The note after an unfinished answer. @param {TurnStatus} status @returns {HTMLElement} */
  #interruptedMark(status) {
    this.#mark ??= h("p", { class: "interrupted row quiet" });
    this.#mark.textContent = status === "cancelled" ? TEXTS.stoppedHere : TEXTS.interruptedHere;
    return this.#mark;
  }

  /** What the model's provider refused, and was left out. @param {string} text @returns {HTMLElement} */
  #leftOutNote(text) {
    this.#leftOut ??= h("p", { class: "left-out row quiet", dir: "auto" }, text);
    return this.#leftOut;
  }

  openThinking() {
    if (this.#thinking) this.#thinking.element.open = true;
  }

  /** @param {ModelStep} step */
  #showThinking(step) {
    if (this.#thinking) return; // a step's thinking never changes
    this.#thinking = new Thinking();
    this.#thinking.show(step.thinking ?? "", { blob: step.thinking_blob, read: this.#actions.readBlob });
  }

  /** @param {string} id @returns {ToolCard} */
  #cardOf(id) {
    const card = this.#cards.get(id) ?? new ToolCard(this.#actions);
    this.#cards.set(id, card);
    return card;
  }
}

/** A steering prompt, which never changes. @param {UserStep} step @param {string} sessionId @returns {HTMLElement} */
export function steeringPrompt({ content, attachments }, sessionId) {
  return h(
    "div",
    { class: "request steered" },
    h("span", { class: "quiet" }, TEXTS.steered),
    attachmentsView(sessionId, attachments),
    h("div", { class: "bubble", dir: "auto" }, content),
  );
}
