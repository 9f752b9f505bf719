/**
 * The prompts that wait, above the composer: each can be taken back, and one that was not sent can be sent again.
 *
 * A prompt that nothing stands in front of is shown in the log instead, where its turn will be.
 *
 * @import {Conversation, Waiting} from "../conversation/conversation.js"
 */

import { arrange, byId, h, icon, setText } from "../dom.js";
import { echoOf } from "../turns/log_view.js";

const MODES = { enqueue: "", steer: "joins this turn", interrupt: "interrupts" };

export class TrayView {
  #tray = byId("tray", HTMLElement);
  #title = byId("tray-title", HTMLElement);
  #list = byId("tray-list", HTMLElement);
  /** @type {Map<string, {element: HTMLElement, shown: string}>} */
  #rows = new Map();
  #echoShown = "";
  #onEdit;
  #showEcho;

  /** @param {{onEdit: (text: string) => void, showEcho: (echo: HTMLElement | null) => void}} page */
  constructor({ onEdit, showEcho }) {
    this.#onEdit = onEdit;
    this.#showEcho = showEcho;
  }

  /** @param {Conversation | null} conversation */
  show(conversation) {
    const waiting = conversation?.waiting ?? [];
    const [first, ...rest] = waiting;
    const isNext = first && !conversation?.manager.state.is_processing && first.status !== "failed";
    this.#echo(conversation, isNext ? first : null);
    this.#showRows(conversation, isNext ? rest : waiting);
  }

  /** @param {Conversation | null} conversation @param {Waiting | null} prompt */
  #echo(conversation, prompt) {
    const shown = JSON.stringify(prompt);
    if (shown === this.#echoShown) return;
    this.#echoShown = shown;
    if (!prompt || !conversation) {
      this.#showEcho(null);
      return;
    }
    const words = prompt.status === "sending" ? (prompt.problem ?? "Sending") : "Queued";
    const actions = prompt.status === "queued" ? [this.#removeButton(conversation, prompt)] : [];
    const echo = echoOf({ text: prompt.text, words }, ...actions);
    echo.dataset.prompt = prompt.id;
    this.#showEcho(echo);
  }

  /** @param {Conversation | null} conversation @param {Waiting[]} waiting */
  #showRows(conversation, waiting) {
    this.#tray.hidden = !waiting.length;
    if (!conversation) return;
    setText(this.#title, titleOf(waiting));
    const rows = waiting.map((prompt) => this.#row(conversation, prompt));
    arrange(this.#list, rows);
    const ids = new Set(waiting.map(({ id }) => id));
    for (const id of this.#rows.keys()) if (!ids.has(id)) this.#rows.delete(id);
  }

  /** @param {Conversation} conversation @param {Waiting} prompt @returns {HTMLElement} */
  #row(conversation, prompt) {
    const shown = JSON.stringify(prompt);
    const known = this.#rows.get(prompt.id);
    if (known?.shown === shown) return known.element;
    const element = known?.element ?? h("li", { "data-prompt": prompt.id });
    element.dataset.status = prompt.status;
    element.replaceChildren(
      h("span", { class: "waiting-text", title: prompt.text }, prompt.text),
      h("span", { class: "quiet" }, wordsOf(prompt)),
      ...this.#actions(conversation, prompt),
    );
    this.#rows.set(prompt.id, { element, shown });
    return element;
  }

  /** @param {Conversation} conversation @param {Waiting} prompt @returns {HTMLElement[]} */
  #actions(conversation, prompt) {
    if (prompt.status === "sending") return [];
    if (prompt.status === "queued") return [this.#removeButton(conversation, prompt)];
    const edit = () => {
      void conversation.withdraw(prompt.id);
      this.#onEdit(prompt.text);
    };
    const retry = () => conversation.resend();
    return [
      ...(prompt.mayPass ? [h("button", { type: "button", class: "button small", onclick: retry }, "Retry")] : []),
      h("button", { type: "button", class: "button small", onclick: edit }, "Edit"),
      this.#removeButton(conversation, prompt),
    ];
  }

  /** @param {Conversation} conversation @param {Waiting} prompt @returns {HTMLButtonElement} */
  #removeButton(conversation, prompt) {
    const label = `Remove: ${prompt.text.slice(0, 80)}`;
    const button = h(
      "button",
      { type: "button", class: "quiet-button", "aria-label": label, title: "Remove" },
      icon("cross"),
    );
    button.addEventListener("click", async () => {
      button.disabled = true;
      await conversation.withdraw(prompt.id);
      button.disabled = false;
    });
    return button;
  }
}

/** @param {Waiting[]} waiting @returns {string} */
function titleOf(waiting) {
  const unsent = waiting.filter(({ status }) => status === "failed").length;
  const count = waiting.length - unsent;
  const waits = count === 1 ? "1 prompt queued" : `${count} prompts queued`;
  const failed = unsent === 1 ? "1 prompt not sent" : `${unsent} prompts not sent`;
  return [...(count ? [waits] : []), ...(unsent ? [failed] : [])].join(", ");
}

/** @param {Waiting} prompt @returns {string} */
function wordsOf({ status, mode, problem, mayPass }) {
  if (status === "failed") return mayPass ? `Not sent: ${problem} Trying again soon.` : `Not sent: ${problem}`;
  if (status === "sending") return problem ?? "sending";
  return MODES[mode];
}
