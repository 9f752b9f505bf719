/**
 * The chat page: which session is shown, and who is told what has changed.
 *
 * The address says which session it is, so every session can be linked to; the gateway is asked for all the rest.
 */

import { Composer } from "./panels/composer.js";
import { ContextPanel } from "./panels/context_panel.js";
import { Conversation } from "./conversation/conversation.js";
import { byId, setText } from "./dom.js";
import { newId } from "./conversation/ids.js";
import { LogView } from "./turns/log_view.js";
import { Notice } from "./panels/notice.js";
import { SessionBar } from "./panels/session_bar.js";
import { SessionsView } from "./panels/sessions_view.js";
import { Sidebar } from "./panels/sidebar.js";
import { StateLine } from "./panels/state_line.js";
import { followTheme } from "./theme.js";
import { TrayView } from "./panels/tray_view.js";
import { TEXTS, isClosed, isStandIn } from "./words.js";

const FIRST_MODEL = document.querySelector('meta[name="turnkeeper:first-model"]')?.getAttribute("content") ?? "";

class Page {
  /** @type {Conversation | null} */
  #conversation = null;
  #log = new LogView();
  #tray = new TrayView({
    onEdit: (text) => this.#composer.edit(text),
    showEcho: (echo) => this.#log.showEcho(echo),
  });
  #state = new StateLine({ onShowQuestion: () => this.#log.showQuestion() });
  #notice = new Notice(() => this.#composer.focus());
  #bar = new SessionBar();
  #context = new ContextPanel();
  #sidebar = new Sidebar();
  #sessions = new SessionsView((id) => this.#go(id));
  #composer = new Composer({
    onSend: (text, mode) => this.#send(text, mode),
    onStop: () => void this.#conversation?.stop(),
    lastPrompt: () => this.#conversation?.lastPrompt ?? "",
  });
  #welcome = byId("welcome", HTMLElement);
  #notFound = byId("not-found", HTMLElement);
  #noTurns = byId("no-turns", HTMLElement);
  #model = byId("new-model", HTMLInputElement);

  constructor() {
    followTheme();
    window.addEventListener("popstate", () => this.#showAddressed());
    document.addEventListener("keydown", (event) => this.#onKey(event));
    byId("new-session", HTMLAnchorElement).addEventListener("click", (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
      event.preventDefault();
      this.#go(null);
    });
    byId("not-found-new", HTMLButtonElement).addEventListener("click", () => this.#go(null));
    byId("show-context", HTMLButtonElement).addEventListener("click", () => {
      this.#context.open();
      void this.#conversation?.refreshContext();
    });
    for (const example of this.#welcome.querySelectorAll("button")) {
      example.addEventListener("click", () => {
        if (!this.#conversation) this.#send(example.textContent ?? "", "enqueue"); // a second click is no second prompt
        if (matchMedia("(pointer: fine)").matches) this.#composer.focus(); // a phone's keyboard would cover the answer
      });
    }
    this.#model.placeholder = FIRST_MODEL;
    byId("stand-in", HTMLElement).hidden = !isStandIn(FIRST_MODEL);
    void this.#sessions.refresh();
    this.#showAddressed();
  }

  #showAddressed() {
    const id = new URLSearchParams(location.search).get("session");
    this.#show(id ? new Conversation(id, this.#listener()) : null);
  }

  /** @param {string | null} id */
  #go(id) {
    if (id !== (this.#conversation?.id ?? null)) {
      history.pushState(null, "", id ? `/?session=${encodeURIComponent(id)}` : "/");
      this.#showAddressed();
    }
    this.#sidebar.close();
    this.#composer.focus();
  }

  /** @param {Conversation | null} conversation */
  #show(conversation) {
    this.#conversation?.close();
    this.#conversation = conversation;
    this.#context.close();
    this.#notice.clear();
    this.#log.begin(null);
    this.#composer.begin(conversation?.id ?? null);
    this.#showState();
    if (conversation) void conversation.open();
    else this.#composer.focus();
  }

  /** @param {string} text @param {import("./conversation/wire.js").PromptMode} mode */
  #send(text, mode) {
    if (!this.#conversation) this.#startSession();
    this.#conversation?.send(text, mode);
    this.#log.jumpToEnd();
    this.#sessions.refreshSoon();
  }

  #startSession() {
    const id = newId();
    const model = this.#model.value.trim();
    history.pushState(null, "", `/?session=${id}`);
    this.#show(new Conversation(id, this.#listener(), model ? { model } : {}));
  }

  /**
   * Back to the beginning, where what was written can be corrected.
   * @param {{text: string, model: string}} draft @param {string} words
   */
  #takeBack({ text, model }, words) {
    history.replaceState(null, "", "/");
    this.#show(null);
    this.#model.value = model;
    this.#composer.edit(text);
    this.#notice.show(words);
  }

  /** @returns {import("./conversation/conversation.js").Listener} */
  #listener() {
    return {
      onBegin: () => {
        this.#log.begin(this.#conversation);
        this.#showContext();
        this.#showState();
      },
      onTurns: (change) => {
        this.#log.showChange(change);
        this.#showContext();
      },
      onPartial: (isFresh) => this.#log.showPartial(isFresh),
      onState: () => this.#showState(),
      onDescription: () => this.#showState(),
      onContext: () => this.#showContext(),
      onFailure: (words) => this.#notice.show(words),
      onNotStarted: (draft, words) => this.#takeBack(draft, words),
    };
  }

  #showState() {
    const conversation = this.#conversation;
    const state = conversation?.manager.state;
    this.#tray.show(conversation);
    this.#state.show(conversation);
    this.#composer.show({
      isRunning: Boolean(state?.is_processing),
      isClosed: isClosed(state?.status ?? "idle"),
      isUnknown: conversation?.connection === "unknown",
    });
    this.#bar.show(conversation, FIRST_MODEL);
    this.#showBlank();
    this.#showOpen();
  }

  /** What stands in the middle where there is no turn; and what a closed session no longer offers. */
  #showBlank() {
    const conversation = this.#conversation;
    this.#welcome.hidden = Boolean(conversation);
    this.#notFound.hidden = conversation?.connection !== "unknown";
    const isRead = conversation?.connection === "live" || conversation?.connection === "over";
    this.#noTurns.hidden = !isRead || conversation.manager.turns.length > 0 || conversation.waiting.length > 0;
    const isOver = isClosed(conversation?.manager.state.status ?? "idle");
    byId("turns", HTMLElement).toggleAttribute("data-closed", isOver);
    setText(this.#noTurns, isOver ? TEXTS.noTurnsEver : TEXTS.noTurns);
  }

  #showOpen() {
    const conversation = this.#conversation;
    if (!conversation || conversation.connection === "unknown") {
      this.#sessions.showOpen(null);
      return;
    }
    const { description, manager, connection, startedAt } = conversation;
    const status = connection === "connecting" ? "" : manager.state.status;
    this.#sessions.showOpen({ id: conversation.id, title: description?.title ?? "", status, startedAt });
  }

  #showContext() {
    const turns = this.#conversation?.context?.turns ?? [];
    this.#log.showSeen(new Map(turns.map(({ message_id, seen }) => [message_id ?? "", seen])));
    this.#context.show(
      this.#conversation?.context ?? null,
      (id) => this.#conversation?.manager.turn(id)?.user_message ?? "",
    );
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.key !== "Escape" || event.isComposing || event.defaultPrevented) return;
    const field = event.target instanceof Element ? event.target.closest("input, select, textarea") : null;
    if (field && !field.closest("#composer")) return; // it is the field's own key
    if (document.querySelector("dialog[open], [popover]:popover-open") || this.#sidebar.close()) return;
    if (this.#conversation?.manager.state.is_processing) void this.#conversation.stop();
  }
}

new Page();
