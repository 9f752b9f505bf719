/**
 * The partial output of the running step. Only the parts that grow are changed.
 *
 * @import {PartialOutput, PartialPart} from "../conversation/conversation_manager.js"
 */

import { h } from "../dom.js";
import { Thinking } from "./thinking.js";
import { ToolCard } from "./tool_card.js";

/** @typedef {{element: HTMLElement, shown: number, grow: (text: string) => void}} PartView */

const NO_ACTIONS = {
  decide: async () => false,
  approvalOf: () => undefined,
  readBlob: async () => "",
  readArguments: async () => "",
};

export class PartialView {
  /** @type {PartView[]} */
  #parts = [];

  constructor() {
    this.element = h("div", { class: "step partial" });
  }

  /** Whether the reader has opened the thinking. */
  get hasOpenThinking() {
    return this.element.querySelector(".thinking[open]") !== null;
  }

  /**
   * Append what is new; with `isFresh`, start again.
   * @param {PartialOutput} partial @param {boolean} isFresh
   */
  show(partial, isFresh) {
    if (isFresh) {
      this.element.replaceChildren();
      this.#parts = [];
    }
    partial.parts.forEach((part, index) => {
      const view = (this.#parts[index] ??= this.#begin(part));
      if (part.text.length > view.shown) view.grow(part.text.slice(view.shown));
      view.shown = part.text.length;
    });
  }

  /** @param {PartialPart} part @returns {PartView} */
  #begin(part) {
    const view = this.#viewOf(part);
    this.element.append(view.element);
    if (part.omitted) view.grow("… ");
    return view;
  }

  /** @param {PartialPart} part @returns {PartView} */
  #viewOf({ kind }) {
    if (kind === "think") {
      const thinking = new Thinking();
      return { element: thinking.element, shown: 0, grow: (text) => thinking.grow(text) };
    }
    if (kind === "call") {
      const card = new ToolCard(NO_ACTIONS);
      let name = "";
      return { element: card.element, shown: 0, grow: (text) => card.showPreparing((name += text)) };
    }
    const words = document.createTextNode("");
    const element = h("div", { class: "prose plain growing" }, words);
    return { element, shown: 0, grow: (text) => words.appendData(text) };
  }
}
