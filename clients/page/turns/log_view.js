/**
 * The conversation: turns, oldest first, and the prompt that starts next.
 *
 * Only the newest turns are in the document; older ones are added on request. A reader at the end stays at the end;
 * elsewhere, the position does not move when turns are added.
 *
 * @import {Conversation} from "../conversation/conversation.js"
 * @import {Change} from "../conversation/conversation_manager.js"
 * @import {Seen, Turn} from "../conversation/wire.js"
 */

import { PAGE_TURNS } from "../conversation/conversation.js";
import { arrange, byId, h, icon, setText } from "../dom.js";
import { readArguments, readBlob } from "../conversation/gateway.js";
import { TurnView } from "./turn_view.js";
import { TEXTS } from "../words.js";

/** A reader within this many pixels of the end is at the end. */
const AT_END_PX = 48;

/** Attributes that change an element's height. */
const SIZE_ATTRIBUTES = ["class", "hidden", "open"];

/** With more turns in the document, the oldest are removed while the reader is at the end. */
const MAX_TURNS = 4 * PAGE_TURNS;

export class LogView {
  #scroller = byId("log", HTMLElement);
  #content = byId("log-content", HTMLElement);
  #turns = byId("turns", HTMLElement);
  #echo = byId("echo", HTMLElement);
  #older = byId("older", HTMLButtonElement);
  #jump = byId("jump", HTMLButtonElement);
  /** @type {Map<string, TurnView>} */
  #views = new Map();
  /** @type {Conversation | null} */
  #conversation = null;
  /** @type {string | null} the turn whose partial output is shown */
  #writingTurn = null;
  #isAtEnd = true;
  #lastTop = 0;
  #isLoading = false;

  constructor() {
    this.#scroller.addEventListener("scroll", () => this.#updatePosition(), { passive: true });
    this.#older.addEventListener("click", () => void this.showOlder());
    this.#jump.addEventListener("click", () => this.jumpToEnd());
    // What is in memory is printed; older turns would have to be fetched, and printing doesn't wait.
    window.addEventListener("beforeprint", () => {
      this.#prepend(this.#hidden);
      this.#showOlderButton();
    });
    const follow = new ResizeObserver(() => this.#follow());
    follow.observe(this.#content);
    follow.observe(this.#scroller);
    // Before the next frame: a log that shrinks and grows again in between looks like scrolling back.
    new MutationObserver(() => this.#isAtEnd && this.#follow()).observe(this.#content, {
      childList: true,
      subtree: true,
      characterData: true,
      attributeFilter: SIZE_ATTRIBUTES,
    });
    new IntersectionObserver(
      (entries) => entries.some((entry) => entry.isIntersecting) && void this.#showOlderIfReached(),
      { root: this.#scroller, rootMargin: "200px" },
    ).observe(this.#older);
  }

  /**
   * Show the newest turns of a conversation; null: none. The echo stays, so that a prompt does not flicker.
   * @param {Conversation | null} conversation
   */
  begin(conversation) {
    this.#conversation = conversation;
    this.#views.clear();
    this.#turns.replaceChildren();
    this.#append(conversation?.manager.turns.slice(-PAGE_TURNS) ?? []);
    this.showPartial(true);
    this.#showOlderButton();
    this.jumpToEnd();
  }

  /** @param {Change} change */
  showChange(change) {
    if (change.reset) {
      this.begin(this.#conversation);
      return;
    }
    for (const turn of change.updated) this.#views.get(turn.id)?.show(turn);
    this.#append(change.added);
    this.showPartial(false);
    this.#dropOldest();
  }

  /** Show the prompt that starts next like a turn; null: none. @param {HTMLElement | null} echo */
  showEcho(echo) {
    arrange(this.#echo, [echo]);
  }

  /** @param {Map<string, Seen>} seen by turn */
  showSeen(seen) {
    for (const [id, view] of this.#views) view.showSeen(seen.get(id) ?? "verbatim");
  }

  /** Scroll to the first call that needs a decision and focus its buttons. */
  showQuestion() {
    const form = this.#turns.querySelector(".approval");
    form?.scrollIntoView({ block: "center" });
    form?.querySelector("button")?.focus();
  }

  jumpToEnd() {
    this.#isAtEnd = true;
    this.#follow();
  }

  /** Show a page of older turns; fetch them if they are not in memory. */
  async showOlder() {
    const conversation = this.#conversation;
    if (!conversation || this.#isLoading) return;
    this.#isLoading = true;
    this.#older.disabled = true;
    try {
      if (!this.#hidden.length && conversation.manager.hasOlder) await conversation.loadOlder();
      if (conversation === this.#conversation) this.#prepend(this.#hidden.slice(-PAGE_TURNS));
      this.#older.textContent = TEXTS.showOlder;
    } catch {
      this.#older.textContent = TEXTS.olderFailed;
    } finally {
      this.#isLoading = false;
      this.#older.disabled = false;
      this.#showOlderButton();
    }
  }

  /** The turns in memory before the first one in the document. @returns {Turn[]} */
  get #hidden() {
    const turns = this.#conversation?.manager.turns ?? [];
    const first = this.#turns.firstElementChild?.getAttribute("data-turn");
    const index = turns.findIndex((turn) => turn.id === first);
    return index < 0 ? [] : turns.slice(0, index);
  }

  async #showOlderIfReached() {
    // Before the reader has scrolled, a visible button is no request.
    if (!this.#isAtEnd && this.#older.textContent === TEXTS.showOlder) await this.showOlder();
  }

  #showOlderButton() {
    this.#older.hidden = !this.#hidden.length && !(this.#conversation?.manager.hasOlder && this.#views.size > 0);
  }

  /** @param {Turn[]} turns */
  #append(turns) {
    this.#turns.append(...turns.map((turn) => this.#viewOf(turn).element));
  }

  /** @param {Turn[]} turns */
  #prepend(turns) {
    const anchor = this.#turns.firstElementChild;
    const before = anchor?.getBoundingClientRect().top ?? 0;
    // The browser's own scroll anchoring fails at the very top, and must not interfere.
    this.#scroller.style.overflowAnchor = "none";
    this.#turns.prepend(...turns.map((turn) => this.#viewOf(turn).element));
    this.#scroller.scrollTop += (anchor?.getBoundingClientRect().top ?? 0) - before;
    requestAnimationFrame(() => (this.#scroller.style.overflowAnchor = ""));
  }

  #dropOldest() {
    if (!this.#isAtEnd || this.#views.size <= MAX_TURNS) return;
    for (const element of [...this.#turns.children].slice(0, this.#views.size - PAGE_TURNS)) {
      this.#views.delete(element.getAttribute("data-turn") ?? "");
      element.remove();
    }
    this.#showOlderButton();
  }

  /** Show the partial output. @param {boolean} isFresh */
  showPartial(isFresh) {
    const partial = this.#conversation?.manager.partial ?? null;
    if (this.#writingTurn && this.#writingTurn !== partial?.message_id)
      this.#views.get(this.#writingTurn)?.showPartial(null, false);
    this.#writingTurn = partial?.message_id ?? null;
    if (partial) this.#views.get(partial.message_id)?.showPartial(partial, isFresh);
  }

  /** Show how far a running call is. @param {import("../conversation/wire.js").CallProgress} progress */
  showProgress({ call_id, text }) {
    const progress = this.#turns.querySelector(`.tool.running[data-call="${CSS.escape(call_id)}"] .tool-progress`);
    if (progress) setText(progress, text);
  }

  /** @param {Turn} turn @returns {TurnView} */
  #viewOf(turn) {
    const conversation = /** @type {Conversation} */ (this.#conversation);
    const view = new TurnView(turn, {
      sessionId: conversation.id,
      decide: (call, decision, reason) => conversation.decide(call, decision, reason),
      approvalOf: (callId) => conversation.approvalOf(callId),
      readBlob: (hash) => readBlob(conversation.id, hash),
      readArguments: (hash) => readArguments(conversation.id, hash),
      retry: (failed) => conversation.retry(failed),
      fork: (completed) => conversation.fork(completed),
    });
    this.#views.set(turn.id, view);
    return view;
  }

  #updatePosition() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    // Added content is no scrolling: only scrolling back leaves the end.
    if (scrollHeight - scrollTop - clientHeight <= AT_END_PX) this.#isAtEnd = true;
    else if (scrollTop < this.#lastTop) this.#isAtEnd = false;
    this.#lastTop = scrollTop;
    this.#jump.hidden = this.#isAtEnd;
  }

  #follow() {
    if (this.#isAtEnd) this.#scroller.scrollTop = this.#scroller.scrollHeight;
    this.#updatePosition();
  }
}

/** A prompt, rendered like a turn. @param {{text: string, words: string}} prompt @param {...Node} actions */
export function echoOf({ text, words }, ...actions) {
  return h(
    "article",
    { class: "turn echo" },
    h(
      "header",
      { class: "request" },
      h("div", { class: "bubble", dir: "auto" }, text),
      h("div", { class: "facts fine numbers" }, icon("clock"), h("span", {}, words), ...actions),
    ),
  );
}
