/**
 * A text of the model: an answer, or text before tool calls. A large one is an excerpt until the reader opens it.
 *
 * @import {BlobRef} from "../conversation/wire.js"
 */

import { Prose } from "../text/prose.js";
import { fullTextButton } from "./full_text.js";

export class ModelText {
  #prose = new Prose();
  #read;
  /** @type {{hash: string, element: HTMLElement} | null} */
  #button = null;
  /** @type {{hash: string, text: string} | null} */
  #whole = null;

  /** @param {(hash: string) => Promise<string>} read */
  constructor(read) {
    this.#read = read;
  }

  /** The elements to show; empty without text. */
  get elements() {
    if (!this.#prose.text) return [];
    return this.#button ? [this.#prose.element, this.#button.element] : [this.#prose.element];
  }

  /** Show a text, which is an excerpt if there is a `blob`. @param {string} text @param {BlobRef | null} blob */
  show(text, blob) {
    const whole = blob && this.#whole?.hash === blob.hash ? this.#whole.text : null;
    this.#prose.show(whole ?? text);
    if (!blob || whole !== null) this.#button = null;
    else if (this.#button?.hash !== blob.hash) this.#button = { hash: blob.hash, element: this.#buttonFor(blob) };
  }

  /** @param {BlobRef} blob @returns {HTMLElement} */
  #buttonFor(blob) {
    const show = (/** @type {string} */ text) => {
      this.#whole = { hash: blob.hash, text };
      this.show(text, blob);
    };
    return fullTextButton(blob, { read: this.#read, show });
  }
}
