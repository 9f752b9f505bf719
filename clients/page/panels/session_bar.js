/**
 * The open session's title, model and usage, and the menu of its actions.
 *
 * @import {Conversation} from "../conversation/conversation.js"
 */

import { byId, setText } from "../dom.js";
import { showExports } from "./copies.js";
import { TEXTS, contextSizeWords, isClosed, isDemoModel, isNearLimit, usageDetails, usageWords } from "../words.js";

export class SessionBar {
  #title = byId("session-title", HTMLElement);
  #model = byId("session-model", HTMLElement);
  #parent = byId("session-parent", HTMLAnchorElement);
  #context = byId("session-context", HTMLElement);
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
    const isUnknown = conversation?.connection === "unknown";
    const description = isUnknown ? null : conversation?.description;
    const title = titleOf(conversation);
    const model = conversation ? (description?.model ?? "") : firstModel;
    const agent = conversation && description?.agent;
    setText(this.#title, title);
    setText(this.#model, agent ? `${agent} · ${model}` : model);
    this.#model.hidden = !model;
    this.#model.title = isDemoModel(model) ? TEXTS.demoModel : TEXTS.nextModel;
    this.#model.classList.toggle("demo-model", isDemoModel(model));
    this.#showContext(isUnknown ? null : conversation);
    setText(this.#usage, usageWords(description?.usage));
    this.#usage.title = description?.usage ? usageDetails(description.usage, description.tasks_usage) : "";
    this.#actions.hidden = !conversation || isUnknown;
    const isOver = isClosed(conversation?.manager.state.status ?? "idle");
    for (const id of ["rename", "change-model", "end-session"]) byId(id, HTMLButtonElement).disabled = isOver;
    const parent = conversation?.manager.parent;
    this.#parent.hidden = !parent;
    if (parent) this.#parent.href = `/?session=${encodeURIComponent(parent)}`;
    if (conversation) showExports(conversation.id);
    const temporal = description?.links.temporal;
    this.#temporal.hidden = !temporal;
    if (temporal) this.#temporal.href = temporal;
    const mark = conversation?.manager.state.status === "awaiting_approval" ? "(!) " : "";
    document.title = conversation ? `${mark}${title} · ${TEXTS.product}` : TEXTS.product;
  }

  /** What the newest model call has seen: it is newer than the description. @param {Conversation | null} conversation */
  #showContext(conversation) {
    const size = conversation?.description?.conversation_metrics;
    const metrics = conversation?.manager.turns.findLast((turn) => turn.conversation_metrics)?.conversation_metrics ?? size;
    const cap = size?.max_messages ?? 0;
    const isNear = isNearLimit(metrics, cap);
    setText(this.#context, contextSizeWords(metrics, cap));
    this.#context.title = isNear ? TEXTS.nearLimit : TEXTS.contextSize;
    this.#context.classList.toggle("near-limit", isNear);
  }

  /** A dialog must not act on another session than the one it was opened for. */
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

/** The open session's title, or its id. @param {Conversation | null} conversation */
function titleOf(conversation) {
  if (!conversation) return TEXTS.newSession;
  if (conversation.connection === "unknown") return TEXTS.unknownSession;
  return conversation.description?.title || (conversation.isNew ? TEXTS.newSession : conversation.id);
}

/** A dialog of `index.html` whose form has two buttons: one of value `do`, and one to cancel. */
class Dialog {
  #dialog;
  /** @type {() => unknown} */
  #action = () => undefined;

  /** @param {string} id */
  constructor(id) {
    this.#dialog = byId(id, HTMLDialogElement);
    this.#dialog.addEventListener("close", () => {
      if (this.#dialog.returnValue === "do") this.#action();
    });
  }

  /** @param {Conversation} conversation @param {() => unknown} action */
  ask(conversation, action) {
    const title = conversation.description?.title;
    const about = /** @type {Element} */ (this.#dialog.querySelector("[data-session]"));
    setText(about, title ? `“${title}”` : TEXTS.thisSession);
    this.#action = action;
    this.#dialog.returnValue = "";
    this.#dialog.showModal();
    this.#dialog.querySelector("input")?.select();
  }

  close() {
    this.#dialog.close();
  }
}
