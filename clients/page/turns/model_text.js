/**
 * A text of the model, an answer or what it says before it calls something; of a large one perhaps an excerpt.
 *
 * @import {BlobRef} from "../conversation/wire.js"
 */

import { Prose } from "../text/prose.js";
import { wholeButton } from "./whole.js";

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

  /** What is to be shown of it, and nothing where there is no text. */
  get elements() {
    if (!this.#prose.text) return [];
    return this.#button ? [this.#prose.element, this.#button.element] : [this.#prose.element];
  }

  /** Show a text, or the excerpt of what `blob` has. @param {string} text @param {BlobRef | null} blob */
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
    return wholeButton(blob, { read: this.#read, show });
  }
}
