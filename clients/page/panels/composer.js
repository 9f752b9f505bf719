/**
 * The field for prompts. It works during a turn too: the mode beside the button decides whether the prompt is queued,
 * steers the turn or interrupts it. A draft survives a reload.
 *
 * @import {PromptMode} from "../conversation/wire.js"
 */

import { byId } from "../dom.js";
import { TEXTS } from "../words.js";

const DRAFT = "turnkeeper:draft:";

export class Composer {
  #form = byId("composer", HTMLFormElement);
  #text = byId("composer-text", HTMLTextAreaElement);
  #send = byId("send", HTMLButtonElement);
  #stop = byId("stop", HTMLButtonElement);
  #modes = byId("modes", HTMLElement);
  #key = DRAFT;
  #lastPrompt;

  /**
   * @param {{onSend: (text: string, mode: PromptMode) => void, onStop: () => void, lastPrompt: () => string}} page
   */
  constructor({ onSend, onStop, lastPrompt }) {
    this.#lastPrompt = lastPrompt;
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = this.#text.value;
      if (!text.trim()) return;
      const mode = this.#mode;
      this.#write(""); // before sending: the first prompt starts a session, which has its own draft
      this.#choose("enqueue");
      onSend(text, mode);
      this.#text.focus();
    });
    this.#stop.addEventListener("click", () => {
      onStop();
      this.#text.focus();
    });
    this.#text.addEventListener("keydown", (event) => this.#onKey(event));
    this.#text.addEventListener("input", () => this.#onTextChange());
  }

  /** Switch to a session and its draft; null: a new session. @param {string | null} sessionId */
  begin(sessionId) {
    this.#key = `${DRAFT}${sessionId ?? ""}`;
    this.#write(sessionStorage.getItem(this.#key) ?? "");
    this.#choose("enqueue");
  }

  focus() {
    this.#text.focus();
  }

  /** Put a text before the current draft. @param {string} text */
  edit(text) {
    this.#write(this.#text.value ? `${text}\n\n${this.#text.value}` : text);
    this.#text.focus();
  }

  /** @param {{isRunning: boolean, isClosed: boolean, isUnknown: boolean}} session */
  show({ isRunning, isClosed, isUnknown }) {
    this.#stop.hidden = !isRunning;
    this.#modes.hidden = !isRunning;
    if (!isRunning) this.#choose("enqueue");
    this.#send.setAttribute("aria-label", isRunning ? TEXTS.sendToQueue : TEXTS.send);
    this.#text.disabled = isUnknown;
    this.#form.toggleAttribute("data-closed", isUnknown || isClosed);
    this.#text.placeholder = isUnknown || isClosed ? TEXTS.takesNoPrompts : TEXTS.writePrompt;
  }

  /** @returns {PromptMode} */
  get #mode() {
    const chosen = /** @type {HTMLInputElement | null} */ (this.#modes.querySelector("input:checked"));
    return /** @type {PromptMode} */ (chosen?.value ?? "enqueue");
  }

  /** @param {PromptMode} mode */
  #choose(mode) {
    for (const input of this.#modes.querySelectorAll("input")) input.checked = input.value === mode;
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

  #onTextChange() {
    const text = this.#text.value;
    if (text) sessionStorage.setItem(this.#key, text);
    else sessionStorage.removeItem(this.#key);
    this.#send.disabled = !text.trim();
    this.#text.style.height = "auto";
    this.#text.style.height = `${this.#text.scrollHeight}px`;
  }
}
