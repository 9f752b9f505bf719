/** The message of a failed action. It stays until it is dismissed or another session is shown. */

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
