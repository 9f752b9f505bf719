/**
 * The waiting prompts, above the composer. Each can be removed; one that was not sent can be sent again.
 *
 * The prompt that starts next is shown in the log instead, where its turn will be.
 *
 * @import {PromptFile} from "../conversation/attachments.js"
 * @import {Conversation, Waiting} from "../conversation/conversation.js"
 */

import { arrange, button, byId, h, iconButton, setText } from "../dom.js";
import { echoOf } from "../turns/log_view.js";
import { TEXTS, promptWords, waitingTitle, waitingWords } from "../words.js";

export class QueuePanel {
  #panel = byId("queue-panel", HTMLElement);
  #title = byId("queue-title", HTMLElement);
  #list = byId("queue-list", HTMLElement);
  /** @type {Map<string, {element: HTMLElement, key: string}>} */
  #rows = new Map();
  #echoKey = "";
  #onEdit;
  #showEcho;

  /** @param {{onEdit: (text: string, files: PromptFile[]) => void, showEcho: (echo: HTMLElement | null) => void}} page */
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
    const key = JSON.stringify(prompt);
    if (key === this.#echoKey) return;
    this.#echoKey = key;
    if (!prompt || !conversation) {
      this.#showEcho(null);
      return;
    }
    const words = prompt.status === "queued" ? TEXTS.queued : prompt.problem ? TEXTS.notSentYet : TEXTS.sending;
    const actions = prompt.status === "queued" ? [this.#removeButton(conversation, prompt)] : [];
    const echo = echoOf({ text: promptWords(prompt), words }, ...actions);
    echo.dataset.prompt = prompt.id;
    this.#showEcho(echo);
  }

  /** @param {Conversation | null} conversation @param {Waiting[]} waiting */
  #showRows(conversation, waiting) {
    this.#panel.hidden = !waiting.length;
    if (!conversation) return;
    setText(this.#title, waitingTitle(waiting));
    arrange(
      this.#list,
      waiting.map((prompt) => this.#row(conversation, prompt)),
    );
    const ids = new Set(waiting.map(({ id }) => id));
    for (const id of this.#rows.keys()) if (!ids.has(id)) this.#rows.delete(id);
  }

  /** @param {Conversation} conversation @param {Waiting} prompt @returns {HTMLElement} */
  #row(conversation, prompt) {
    const key = JSON.stringify(prompt);
    const row = this.#rows.get(prompt.id);
    if (row?.key === key) return row.element;
    const element = row?.element ?? h("li", { class: "row", "data-prompt": prompt.id });
    element.dataset.status = prompt.status;
    element.replaceChildren(
      h("span", { class: "waiting-text one-line", dir: "auto", title: promptWords(prompt) }, promptWords(prompt)),
      h("span", { class: "quiet" }, waitingWords(prompt)),
      ...this.#actions(conversation, prompt),
    );
    this.#rows.set(prompt.id, { element, key });
    return element;
  }

  /** @param {Conversation} conversation @param {Waiting} prompt @returns {HTMLElement[]} */
  #actions(conversation, prompt) {
    if (prompt.status === "sending") return [];
    if (prompt.status === "queued") return [this.#removeButton(conversation, prompt)];
    const edit = () => {
      void conversation.withdraw(prompt.id);
      this.#onEdit(prompt.text, prompt.attachments);
    };
    return [
      ...(prompt.isTemporary ? [button("link-button", TEXTS.retry, () => conversation.resend())] : []),
      button("link-button", TEXTS.edit, edit),
      this.#removeButton(conversation, prompt),
    ];
  }

  /** @param {Conversation} conversation @param {Waiting} prompt @returns {HTMLButtonElement} */
  #removeButton(conversation, prompt) {
    const remove = iconButton(`${TEXTS.remove}: ${promptWords(prompt).slice(0, 80)}`, "cross", async () => {
      remove.disabled = true;
      await conversation.withdraw(prompt.id);
      remove.disabled = false;
    });
    remove.dataset.needs = "writer";
    return remove;
  }
}
