/** Copying to the clipboard, with a button that says it was done. */

import { h, icon } from "../dom.js";

const DONE_MS = 1_500;

/**
 * A button that copies what `text` returns, or promises.
 * @param {string} label @param {() => string | Promise<string>} text @returns {HTMLButtonElement}
 */
export function copyButton(label, text) {
  const button = h(
    "button",
    { type: "button", class: "quiet-button copy", "aria-label": label, title: label },
    icon("copy"),
  );
  button.addEventListener("click", async () => {
    const result = await copied(text);
    button.replaceChildren(icon(result === "Copied" ? "check" : "cross"));
    button.title = result;
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.title = label;
    }, DONE_MS);
  });
  return button;
}

/** Copy, and return what came of it. @param {() => string | Promise<string>} text @returns {Promise<string>} */
async function copied(text) {
  let whole;
  try {
    whole = await text();
  } catch {
    return "It could not be read. Try again";
  }
  return (await copy(whole)) ? "Copied" : "Copying is not allowed here";
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
