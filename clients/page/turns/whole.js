/** Texts of which only an excerpt is here: the whole of them, for who asks. */

import { h } from "../dom.js";

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
  const words = `Show all of it: ${blob.chars.toLocaleString("en")} characters`;
  const button = h("button", { type: "button", class: "link-button" }, words);
  button.addEventListener("click", async (event) => {
    button.disabled = true;
    try {
      const whole = await read(blob.hash);
      button.remove();
      show(whole, event.isTrusted);
    } catch {
      button.disabled = false;
      button.textContent = `${name} could not be read. Try again`;
    }
  });
  return button;
}
