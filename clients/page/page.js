/**
 * The chat page: shows the session in the address and passes its changes to the panels.
 */

import { AgentChoice } from "./panels/agent_choice.js";
import { Composer } from "./panels/composer.js";
import { ContextPanel } from "./panels/context_panel.js";
import { Conversation } from "./conversation/conversation.js";
import { byId, setText } from "./dom.js";
import { forgetUnsentTexts, hasUnsentTexts } from "./conversation/unsent_texts.js";
import { newId } from "./conversation/ids.js";
import { offerImport } from "./panels/copies.js";
import { LogView } from "./turns/log_view.js";
import { LoginPanel } from "./panels/login_panel.js";
import { Notice } from "./panels/notice.js";
import { SessionBar } from "./panels/session_bar.js";
import { SessionsView } from "./panels/sessions_view.js";
import { Sidebar } from "./panels/sidebar.js";
import { StateLine } from "./panels/state_line.js";
import { followTheme } from "./theme.js";
import { TasksPanel } from "./panels/tasks_panel.js";
import { QueuePanel } from "./panels/queue_panel.js";
import { TEXTS, isClosed, isDemoModel } from "./words.js";

const FIRST_MODEL = document.querySelector('meta[name="turnkeeper:first-model"]')?.getAttribute("content") ?? "";

class Page {
  /** @type {Conversation | null} */
  #conversation = null;
  #login;
  #log = new LogView();
  #queuePanel = new QueuePanel({
    onEdit: (text, files) => this.#composer.edit(text, files),
    showEcho: (echo) => this.#log.showEcho(echo),
  });
  #tasksPanel = new TasksPanel();
  #state = new StateLine({ onShowQuestion: () => this.#log.showQuestion() });
  #notice = new Notice(() => this.#composer.focus());
  #bar = new SessionBar();
  #context = new ContextPanel();
  #sidebar = new Sidebar();
  #sessions = new SessionsView();
  #composer = new Composer({
    onSend: (text, mode, files) => this.#send(text, mode, files),
    onProblem: (words) => this.#notice.show(words),
    onStop: () => void this.#conversation?.stop(),
    lastPrompt: () => this.#conversation?.lastPrompt ?? "",
  });
  #welcome = byId("welcome", HTMLElement);
  #notFound = byId("not-found", HTMLElement);
  #noTurns = byId("no-turns", HTMLElement);
  #agent = new AgentChoice();
  #model = byId("new-model", HTMLInputElement);

  /** @param {LoginPanel} login */
  constructor(login) {
    this.#login = login;
    window.addEventListener("popstate", () => this.#showFromAddress());
    document.addEventListener("keydown", (event) => this.#onKey(event));
    document.addEventListener("click", (event) => this.#onClick(event));
    byId("show-context", HTMLButtonElement).addEventListener("click", () => {
      this.#context.open();
      void this.#conversation?.refreshContext();
    });
    for (const example of this.#welcome.querySelectorAll("button")) {
      example.addEventListener("click", () => {
        if (!this.#conversation) this.#send(example.textContent ?? "", "enqueue"); // ignores a second click
        if (matchMedia("(pointer: fine)").matches) this.#composer.focus(); // a phone's keyboard would hide the answer
      });
    }
    offerImport({
      onImported: (id) => {
        this.#navigate(id);
        this.#sessions.refreshSoon();
      },
      onProblem: (words) => this.#notice.show(words),
    });
    this.#model.placeholder = FIRST_MODEL;
    byId("demo-model", HTMLElement).hidden = !isDemoModel(FIRST_MODEL);
    void this.#sessions.refresh();
    this.#showFromAddress();
  }

  /** Follow a link to a session without loading the page again. @param {MouseEvent} event */
  #onClick(event) {
    const link = event.target instanceof Element ? event.target.closest('a[href="/"], a[href^="/?session="]') : null;
    if (!link || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return; // a key: opens a tab
    event.preventDefault();
    this.#navigate(sessionIn(/** @type {HTMLAnchorElement} */ (link).search));
  }

  #showFromAddress() {
    const id = sessionIn(location.search);
    this.#show(id ? new Conversation(id, this.#listener()) : null);
  }

  /** @param {string | null} id */
  #navigate(id) {
    if (id !== (this.#conversation?.id ?? null)) {
      history.pushState(null, "", id ? `/?session=${encodeURIComponent(id)}` : "/");
      this.#showFromAddress();
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
    else void this.#login.ready.then(() => this.#beginAnew());
  }

  #beginAnew() {
    this.#composer.focus(); // readers have none
    void this.#agent.refresh();
  }

  /**
   * @param {string} text @param {import("./conversation/wire.js").PromptMode} mode
   * @param {import("./conversation/attachments.js").PromptFile[]} [files]
   */
  #send(text, mode, files = []) {
    if (!this.#conversation) this.#startSession();
    this.#conversation?.send(text, mode, files);
    this.#log.jumpToEnd();
    this.#sessions.refreshSoon();
  }

  #startSession() {
    const id = newId();
    const model = this.#model.value.trim();
    const agent = this.#agent.chosen;
    history.pushState(null, "", `/?session=${id}`);
    this.#show(new Conversation(id, this.#listener(), { ...(model ? { model } : {}), ...(agent ? { agent } : {}) }));
  }

  /**
   * Show the start page again, with the draft of a session that could not be started.
   * @param {{text: string, model: string, agent: string | null, attachments: import("./conversation/attachments.js").PromptFile[]}} draft
   * @param {string} words
   */
  #restoreDraft({ text, model, agent, attachments }, words) {
    history.replaceState(null, "", "/");
    this.#show(null);
    this.#model.value = model;
    this.#agent.choose(agent);
    this.#composer.edit(text, attachments);
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
      onProgress: (progress) => this.#log.showProgress(progress),
      onState: () => this.#showState(),
      onContext: () => this.#showContext(),
      onFailure: (words) => this.#notice.show(words),
      onStartFailed: (draft, words) => this.#restoreDraft(draft, words),
    };
  }

  #showState() {
    const conversation = this.#conversation;
    const state = conversation?.manager.state;
    this.#tasksPanel.show(conversation);
    this.#queuePanel.show(conversation);
    this.#state.show(conversation);
    this.#composer.show({
      isRunning: Boolean(state?.is_processing),
      isClosed: isClosed(state?.status ?? "idle"),
      isUnknown: conversation?.connection === "unknown",
    });
    this.#bar.show(conversation, FIRST_MODEL);
    if (conversation?.connection === "unknown") this.#log.begin(null); // it was deleted while it was shown
    this.#showPlaceholder();
    this.#showInSidebar();
  }

  /** Show what stands in place of turns, and hide the actions of a closed session. */
  #showPlaceholder() {
    const conversation = this.#conversation;
    this.#welcome.hidden = Boolean(conversation);
    this.#notFound.hidden = conversation?.connection !== "unknown";
    const isLoaded = conversation?.connection === "live" || conversation?.connection === "over";
    this.#noTurns.hidden = !isLoaded || conversation.manager.turns.length > 0 || conversation.waiting.length > 0;
    const isOver = isClosed(conversation?.manager.state.status ?? "idle");
    byId("turns", HTMLElement).toggleAttribute("data-closed", isOver);
    setText(this.#noTurns, isOver ? TEXTS.noTurnsEver : TEXTS.noTurns);
  }

  #showInSidebar() {
    const conversation = this.#conversation;
    if (!conversation || conversation.connection === "unknown") {
      this.#sessions.showOpen(null);
      return;
    }
    const { id, description, manager, connection, startedAt } = conversation;
    const status = connection === "connecting" ? "" : manager.state.status;
    this.#sessions.showOpen({ workflow_id: id, title: description?.title ?? "", status, started_at: startedAt ?? "" });
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
    if (field && !field.closest("#composer")) return; // the field handles the key itself
    if (document.querySelector("dialog[open], [popover]:popover-open") || this.#sidebar.close()) return;
    if (this.#login.mayWrite && this.#conversation?.manager.state.is_processing) void this.#conversation.stop();
  }
}

/** The session of an address. @param {string} search */
const sessionIn = (search) => new URLSearchParams(search).get("session");

followTheme();
const login = new LoginPanel();
if (hasUnsentTexts()) await login.ready; // another person's texts are not shown, and not sent
else forgetUnsentTexts(); // nor is it remembered whose they were: what is written now is the caller's
new Page(login);
