/** Copies of the open session: links to its exports, and a button on each completed turn that forks it there. */

import { exportPath } from "../conversation/gateway.js";
import { byId, iconButton } from "../dom.js";
import { TEXTS } from "../words.js";

/** @param {string} sessionId */
export function showExports(sessionId) {
  byId("export-json", HTMLAnchorElement).href = exportPath(sessionId, "json");
  byId("export-markdown", HTMLAnchorElement).href = exportPath(sessionId, "markdown");
}

/** @param {() => Promise<boolean>} fork whether it was done @returns {HTMLButtonElement} */
export function forkButton(fork) {
  const button = iconButton(TEXTS.forkHere, "fork", async () => {
    button.disabled = true;
    if (!(await fork())) button.disabled = false;
  });
  button.classList.add("copy");
  button.title = TEXTS.forkHere;
  button.dataset.needs = "writer";
  return button;
}
