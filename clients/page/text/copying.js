/** Copying to the clipboard, with a button that says it was done. */

import { h, icon, iconButton } from "../dom.js";
import { TEXTS } from "../words.js";

const DONE_MS = 1_500;

/**
 * A button that copies what `text` returns, or promises.
 * @param {string} label @param {() => string | Promise<string>} text @returns {HTMLButtonElement}
 */
export function copyButton(label, text) {
  const button = iconButton(label, "copy", async () => {
    const result = await copyResult(text);
    button.replaceChildren(icon(result === TEXTS.copied ? "check" : "cross"));
    button.title = result;
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.title = label;
    }, DONE_MS);
  });
  button.classList.add("copy");
  button.title = label;
  return button;
}

/** Copy, and return what came of it. @param {() => string | Promise<string>} text @returns {Promise<string>} */
async function copyResult(text) {
  let whole;
  try {
    whole = await text();
  } catch {
    return TEXTS.copyFailed;
  }
  return (await copy(whole)) ? TEXTS.copied : TEXTS.copyForbidden;
}

/** @param {string} text @returns {Promise<boolean>} */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text); // browsers keep the clipboard from pages that come by plain HTTP
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
