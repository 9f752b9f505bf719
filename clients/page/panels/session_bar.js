/**
 * What the open session is called, which model it has, what it has used, and what can be done to it as a whole.
 *
 * @import {Conversation} from "../conversation/conversation.js"
 */

import { byId, setText } from "../dom.js";
import { TEXTS, isClosed, isStandIn, usageDetails, usageWords } from "../words.js";

export class SessionBar {
  #title = byId("session-title", HTMLElement);
  #model = byId("session-model", HTMLElement);
  #usage = byId("session-usage", HTMLElement);
  #actions = byId("session-actions", HTMLElement);
  #menu = byId("session-menu", HTMLElement);
  #temporal = byId("open-in-temporal", HTMLAnchorElement);
  #rename = new Dialog("rename-dialog");
  #changeModel = new Dialog("model-dialog");
  #end = new Dialog("end-dialog");
  /** @type {Conversation | null} */
  #conversation = null;

  constructor() {
    const title = byId("rename-title", HTMLInputElement);
    const model = byId("model-name", HTMLInputElement);
    const discard = byId("end-discard", HTMLInputElement);
    this.#on("rename", (conversation) => {
      title.value = conversation.description?.title ?? "";
      this.#rename.ask(conversation, () => conversation.configure({ title: title.value.trim() }));
    });
    this.#on("change-model", (conversation) => {
      model.value = conversation.description?.model ?? "";
      this.#changeModel.ask(conversation, () => conversation.configure({ model: model.value.trim() }));
    });
    this.#on("end-session", (conversation) => {
      discard.checked = false;
      this.#end.ask(conversation, () => conversation.end(discard.checked));
    });
  }

  /** @param {Conversation | null} conversation @param {string} firstModel the model of new sessions */
  show(conversation, firstModel) {
    if (conversation !== this.#conversation) this.#closeAll();
    this.#conversation = conversation;
    const description = conversation?.description;
    const title = titleOf(conversation);
    const model = conversation ? (description?.model ?? "") : firstModel;
    setText(this.#title, title);
    setText(this.#model, model);
    this.#model.hidden = !model;
    this.#model.title = isStandIn(model) ? TEXTS.demoModel : TEXTS.nextModel;
    this.#model.classList.toggle("stand-in", isStandIn(model));
    setText(this.#usage, usageWords(description?.usage));
    this.#usage.title = description?.usage ? usageDetails(description.usage) : "";
    this.#actions.hidden = !conversation || conversation.connection === "unknown";
    const isOver = isClosed(conversation?.manager.state.status ?? "idle");
    for (const id of ["rename", "change-model", "end-session"]) byId(id, HTMLButtonElement).disabled = isOver;
    const temporal = description?.links.temporal;
    this.#temporal.hidden = !temporal;
    if (temporal) this.#temporal.href = temporal;
    const mark = conversation?.manager.state.status === "awaiting_approval" ? "(!) " : "";
    document.title = conversation ? `${mark}${title} · ${TEXTS.product}` : TEXTS.product;
  }

  /** What was asked of one session is not answered of another. */
  #closeAll() {
    this.#menu.hidePopover();
    for (const dialog of [this.#rename, this.#changeModel, this.#end]) dialog.close();
  }

  /** @param {string} id @param {(conversation: Conversation) => void} ask */
  #on(id, ask) {
    byId(id, HTMLButtonElement).addEventListener("click", () => {
      this.#menu.hidePopover();
      if (this.#conversation) ask(this.#conversation);
    });
  }
}

/**
 * What the open session is called; one that can't be read yet, or has no title, by its id.
 * @param {Conversation | null} conversation
 * @returns {string}
 */
function titleOf(conversation) {
  if (!conversation) return TEXTS.newSession;
  if (conversation.connection === "unknown") return TEXTS.unknownSession;
  return conversation.description?.title || (conversation.isNew ? TEXTS.newSession : conversation.id);
}

/** A question with a form: `index.html` has it, with a button that cancels. */
class Dialog {
  #dialog;
  /** @type {() => unknown} */
  #action = () => undefined;

  /** @param {string} id */
  constructor(id) {
    this.#dialog = byId(id, HTMLDialogElement);
    const form = /** @type {HTMLFormElement} */ (this.#dialog.querySelector("form"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#dialog.close();
      this.#action();
    });
    this.#dialog.querySelector("[data-cancel]")?.addEventListener("click", () => this.#dialog.close());
  }

  /** @param {Conversation} conversation @param {() => unknown} action what is done once the form is sent */
  ask(conversation, action) {
    const title = conversation.description?.title;
    const about = /** @type {Element} */ (this.#dialog.querySelector("[data-session]"));
    setText(about, title ? `“${title}”` : TEXTS.thisSession);
    this.#action = action;
    this.#dialog.showModal();
    this.#dialog.querySelector("input")?.select();
  }

  close() {
    this.#dialog.close();
  }
}
