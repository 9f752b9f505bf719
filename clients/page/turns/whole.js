/** Texts of which only an excerpt is here: the whole of them, for who asks. */

import { h } from "../dom.js";

/**
 * A button that reads the whole text and shows it; then it is no longer needed, and goes.
 * @param {import("../conversation/wire.js").BlobRef} blob
 * @param {{read: (hash: string) => Promise<string>, show: (text: string) => void, name?: string}} text
 * @returns {HTMLButtonElement}
 */
export function wholeButton(blob, { read, show, name = "It" }) {
  const words = `Show all of it: ${blob.chars.toLocaleString("en")} characters`;
  const button = h("button", { type: "button", class: "link-button" }, words);
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const whole = await read(blob.hash);
      button.remove();
      show(whole);
    } catch {
      button.disabled = false;
      button.textContent = `${name} could not be read. Try again`;
    }
  });
  return button;
}
