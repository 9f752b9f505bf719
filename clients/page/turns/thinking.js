/** The model's thinking, folded: its last words while it grows, all of it when opened. */

import { arrange, h, icon, setText } from "../dom.js";
import { fullTextButton } from "./full_text.js";
import { TEXTS } from "../words.js";

const PEEK_CHARS = 160;

export class Thinking {
  #label = h("span", {}, TEXTS.thinking);
  #last = h("span", {});
  #peek = h("span", { class: "peek", "aria-hidden": "true" }, this.#last);
  #words = document.createTextNode("");
  #more = h("div", {});

  constructor() {
    const text = h("div", { class: "thoughts" }, this.#words);
    this.element = h(
      "details",
      { class: "thinking" },
      h("summary", {}, icon("thought"), this.#label, this.#peek, icon("chevron")),
      text,
      this.#more,
    );
  }

  /** @param {string} text more of it */
  grow(text) {
    this.#words.appendData(text);
    setText(this.#last, this.#words.data.slice(-PEEK_CHARS).replaceAll(/\s+/g, " "));
  }

  /**
   * Show the complete text, or its excerpt with a button.
   * @param {string} text
   * @param {{blob: import("../conversation/wire.js").BlobRef | null, read: (hash: string) => Promise<string>}} source
   */
  show(text, { blob, read }) {
    this.#words.data = text;
    setText(this.#label, TEXTS.thought);
    this.#peek.remove();
    const showWhole = (/** @type {string} */ whole) => void (this.#words.data = whole);
    arrange(this.#more, [blob && fullTextButton(blob, { read, show: showWhole })]);
  }
}
