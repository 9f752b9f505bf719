/** Buttons that copy to the clipboard and show the result. */

import { h, icon, iconButton } from "../dom.js";
import { TEXTS } from "../words.js";

const DONE_MS = 1_500;

/**
 * A button that copies the result of `text`.
 * @param {string} label @param {() => string | Promise<string>} text @returns {HTMLButtonElement}
 */
export function copyButton(label, text) {
  const button = iconButton(label, "copy", async () => {
    const result = await copy(text);
    button.replaceChildren(icon(result === TEXTS.copied ? "check" : "cross"));
    button.title = result;
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.title = label;
    }, DONE_MS);
  });
  return button;
}

/** Copy and return a message. @param {() => string | Promise<string>} text @returns {Promise<string>} */
async function copy(text) {
  let content;
  try {
    content = await text();
  } catch {
    return TEXTS.copyFailed;
  }
  try {
    await navigator.clipboard.writeText(content);
    return TEXTS.copied;
  } catch {
    // Browsers have no clipboard for pages over plain HTTP.
    return copyBySelection(content) ? TEXTS.copied : TEXTS.copyForbidden;
  }
}

/** @param {string} text @returns {boolean} */
function copyBySelection(text) {
  const field = h("textarea", { class: "off-screen", readonly: true, "aria-hidden": "true" });
  field.value = text;
  const focused = document.activeElement;
  document.body.append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return isDone;
}
