/** Texts of which only an excerpt is here: the whole of them, for who asks. */

import { button } from "../dom.js";
import { notRead, showAllWords } from "../words.js";

/**
 * A button that reads the whole text and shows it; then it is no longer needed, and goes.
 * @param {import("../conversation/wire.js").BlobRef} blob
 * @param {object} text
 * @param {(hash: string) => Promise<string>} text.read
 * @param {(text: string, isByHand: boolean) => void} text.show it is told whether a person asked, or the page did
 * @param {string} [text.name]
 * @returns {HTMLButtonElement}
 */
export function wholeButton(blob, { read, show, name = "It" }) {
  const more = button("link-button", showAllWords(blob.chars), async (event) => {
    more.disabled = true;
    try {
      const whole = await read(blob.hash);
      more.remove();
      show(whole, event.isTrusted);
    } catch {
      more.disabled = false;
      more.textContent = notRead(name);
    }
  });
  return more;
}
