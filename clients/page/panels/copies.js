/**
 * Copies of sessions: links to the open session's exports, a button on each completed turn that forks it there, and the
 * import of an exported one.
 */

import { exportPath, importSession } from "../conversation/gateway.js";
import { newId } from "../conversation/ids.js";
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
  button.dataset.needs = "writer";
  return button;
}

/** @param {{onImported: (sessionId: string) => void, onProblem: (words: string) => void}} page */
export function offerImport({ onImported, onProblem }) {
  const button = byId("import", HTMLButtonElement);
  const input = byId("import-input", HTMLInputElement);
  button.addEventListener("click", () => input.click());
  input.addEventListener("change", async () => {
    const file = input.files?.[0];
    input.value = ""; // so that the same file can be chosen again
    if (!file) return;
    const id = newId();
    button.disabled = true;
    try {
      await importSession(id, file);
      onImported(id);
    } catch (error) {
      onProblem(error instanceof Error ? error.message : String(error));
    } finally {
      button.disabled = false;
    }
  });
}
