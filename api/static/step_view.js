/**
 * A step of a turn: what the model thought, said and called; or what a person steered in.
 *
 * @import {CallActions} from "./tool_card.js"
 * @import {ModelStep, UserStep} from "./wire.js"
 */

import { arrange, h } from "./dom.js";
import { Prose } from "./prose.js";
import { Thinking } from "./thinking.js";
import { ToolCard } from "./tool_card.js";

/** @typedef {CallActions & {sessionId: string}} StepActions */

export class ModelStepView {
  #actions;
  /** @type {Thinking | null} */
  #thinking = null;
  #prose = new Prose();
  /** @type {Map<string, ToolCard>} */
  #cards = new Map();

  /** @param {StepActions} actions */
  constructor(actions) {
    this.#actions = actions;
    this.element = h("div", { class: "step" });
  }

  /**
   * Show the step; with `answer`, that is its text: the same, whole.
   * @param {ModelStep} step @param {{isRunning: boolean, answer: string | null}} turn
   */
  show(step, { isRunning, answer }) {
    if (step.thinking) this.#showThinking(step);
    this.#prose.show(answer ?? step.text ?? "");
    for (const call of step.tool_calls) this.#cardOf(call.id).show(call, isRunning);
    const parts = step.tool_calls.map((call) => this.#cardOf(call.id).element);
    arrange(this.element, [
      ...(this.#thinking ? [this.#thinking.element] : []),
      ...(this.#prose.text ? [this.#prose.element] : []),
      ...parts,
    ]);
  }

  openThinking() {
    if (this.#thinking) this.#thinking.element.open = true;
  }

  /** @param {ModelStep} step */
  #showThinking(step) {
    if (this.#thinking) return; // a step's thinking never changes
    this.#thinking = new Thinking();
    this.#thinking.show(step.thinking ?? "", { sessionId: this.#actions.sessionId, blob: step.thinking_blob });
  }

  /** @param {string} id @returns {ToolCard} */
  #cardOf(id) {
    const card = this.#cards.get(id) ?? new ToolCard(this.#actions);
    this.#cards.set(id, card);
    return card;
  }
}

export class UserStepView {
  constructor() {
    this.element = h("div", { class: "steered" });
  }

  /** @param {UserStep} step */
  show(step) {
    const label = h("span", { class: "quiet" }, "Steered in");
    this.element.replaceChildren(label, h("div", { class: "bubble" }, step.content));
  }
}
