/** Loads the full text of an excerpt. */

import { button } from "../dom.js";
import { TEXTS, loadFailed, showAllWords } from "../words.js";

/**
 * A button that loads the full text, shows it, and removes itself.
 * @param {import("../conversation/wire.js").BlobRef} blob
 * @param {object} text
 * @param {(hash: string) => Promise<string>} text.read
 * @param {(text: string, isClick: boolean) => void} text.show `isClick`: the user clicked, not the page
 * @param {string} [text.name]
 */
export function fullTextButton(blob, { read, show, name = TEXTS.theText }) {
  const more = button("link-button", showAllWords(blob.chars), async (event) => {
    more.disabled = true;
    try {
      const fullText = await read(blob.hash);
      more.remove();
      show(fullText, event.isTrusted);
    } catch {
      more.disabled = false;
      more.textContent = loadFailed(name);
    }
  });
  return more;
}
