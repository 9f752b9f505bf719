/** What was not done, and why: it stays until it is read and dismissed, or the session is left. */

import { byId, setText } from "../dom.js";

export class Notice {
  #notice = byId("notice", HTMLElement);
  #words = byId("notice-words", HTMLElement);

  /** @param {() => void} onClose */
  constructor(onClose) {
    byId("notice-close", HTMLButtonElement).addEventListener("click", () => {
      this.clear();
      onClose();
    });
  }

  /** @param {string} words */
  show(words) {
    this.#notice.hidden = false;
    setText(this.#words, words);
  }

  clear() {
    this.#notice.hidden = true;
    setText(this.#words, "");
  }
}
