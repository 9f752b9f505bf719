/**
 * The field for prompts. It works during a turn too: the mode beside the button decides whether the prompt is queued,
 * steers the turn or interrupts it. A draft survives a reload.
 *
 * @import {PromptFile} from "../conversation/attachments.js"
 * @import {PromptMode} from "../conversation/wire.js"
 */

import { AttachmentTray } from "./attachment_tray.js";
import { byId } from "../dom.js";
import { TEXTS } from "../words.js";

const DRAFT = "turnkeeper:draft:";

export class Composer {
  #form = byId("composer", HTMLFormElement);
  #text = byId("composer-text", HTMLTextAreaElement);
  #send = byId("send", HTMLButtonElement);
  #stop = byId("stop", HTMLButtonElement);
  #modes = byId("modes", HTMLElement);
  #mode = /** @type {RadioNodeList} */ (this.#form.elements.namedItem("mode"));
  #tray;
  #key = DRAFT;
  #lastPrompt;

  /**
   * @param {{onSend: (text: string, mode: PromptMode, files: PromptFile[]) => void, onStop: () => void,
   *   lastPrompt: () => string, onProblem: (words: string) => void}} page
   */
  constructor({ onSend, onStop, lastPrompt, onProblem }) {
    this.#lastPrompt = lastPrompt;
    this.#tray = new AttachmentTray({ onChange: () => this.#showSend(), onProblem });
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = this.#text.value;
      if (!this.#isSendable) return;
      const mode = /** @type {PromptMode} */ (this.#mode.value);
      const files = this.#tray.clear();
      this.#write(""); // before sending: the first prompt starts a session, which has its own draft
      this.#mode.value = "enqueue";
      onSend(text, mode, files);
      this.#text.focus();
    });
    this.#stop.addEventListener("click", () => {
      onStop();
      this.#text.focus();
    });
    this.#text.addEventListener("keydown", (event) => this.#onKey(event));
    this.#text.addEventListener("input", () => this.#onTextChange());
    this.#text.addEventListener("paste", (event) => {
      // Spreadsheets and word processors also copy a picture of the text.
      const types = event.clipboardData?.types ?? [];
      if (!types.includes("text/plain") || !types.includes("text/html")) this.#attachFiles(event, event.clipboardData);
    });
    // A file that is dropped beside the composer would replace the page.
    window.addEventListener("dragover", (event) => {
      if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
    });
    window.addEventListener("drop", (event) => this.#attachFiles(event, event.dataTransfer));
  }

  /** Attach the files of a paste or a drop, if it has any. @param {Event} event @param {DataTransfer | null} data */
  #attachFiles(event, data) {
    if (!data?.files.length) return;
    event.preventDefault();
    if (!this.#text.disabled && !this.#form.hasAttribute("data-closed")) this.#tray.add(data.files);
    this.#text.focus();
  }

  /** Switch to a session and its draft; null: a new session. @param {string | null} sessionId */
  begin(sessionId) {
    this.#key = `${DRAFT}${sessionId ?? ""}`;
    this.#tray.begin(sessionId);
    this.#write(sessionStorage.getItem(this.#key) ?? "");
    this.#mode.value = "enqueue";
  }

  focus() {
    this.#text.focus();
  }

  /** Put a text and files before the current draft. @param {string} text @param {readonly PromptFile[]} [files] */
  edit(text, files = []) {
    if (files.length) this.#tray.restore(files);
    this.#write(this.#text.value ? `${text}\n\n${this.#text.value}` : text);
    this.#text.focus();
  }

  /** @param {{isRunning: boolean, isClosed: boolean, isUnknown: boolean}} session */
  show({ isRunning, isClosed, isUnknown }) {
    this.#stop.hidden = !isRunning;
    this.#modes.hidden = !isRunning;
    if (!isRunning) this.#mode.value = "enqueue";
    this.#send.setAttribute("aria-label", isRunning ? TEXTS.sendToQueue : TEXTS.send);
    this.#text.disabled = isUnknown;
    this.#form.toggleAttribute("data-closed", isUnknown || isClosed);
    this.#text.placeholder = isUnknown || isClosed ? TEXTS.takesNoPrompts : TEXTS.writePrompt;
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    // Keys of an input method that composes a character; Safari reports them only by the code 229.
    if (event.isComposing || event.keyCode === 229) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      this.#form.requestSubmit();
    } else if (event.key === "ArrowUp" && !this.#text.value && this.#lastPrompt()) {
      event.preventDefault();
      this.#write(this.#lastPrompt());
      this.#text.setSelectionRange(this.#text.value.length, this.#text.value.length);
    }
  }

  /** @param {string} text */
  #write(text) {
    this.#text.value = text;
    this.#onTextChange();
  }

  get #isSendable() {
    return Boolean(this.#text.value.trim() || this.#tray.files.length);
  }

  #showSend() {
    this.#send.disabled = !this.#isSendable;
  }

  #onTextChange() {
    const text = this.#text.value;
    if (text) sessionStorage.setItem(this.#key, text);
    else sessionStorage.removeItem(this.#key);
    this.#showSend();
    this.#text.style.height = "auto";
    this.#text.style.height = `${this.#text.scrollHeight}px`;
  }
}
