/**
 * The conversation as it is read: turns, oldest first, and what is about to become one.
 *
 * Only the newest turns are in the document; older ones come when they are asked for. Who reads at the end stays at the
 * end, who reads elsewhere stays there, whatever is added above or below.
 *
 * @import {Conversation} from "../conversation/conversation.js"
 * @import {Change} from "../conversation/conversation_manager.js"
 * @import {Seen, Turn} from "../conversation/wire.js"
 */

import { PAGE_TURNS } from "../conversation/conversation.js";
import { byId, h, icon } from "../dom.js";
import { readBlob } from "../conversation/gateway.js";
import { TurnView } from "./turn_view.js";
import { TEXTS } from "../words.js";

/** Pixels from the end within which the reader is taken to be at the end. */
const AT_END_PX = 48;

/** What changes how high something is. */
const SIZE_ATTRIBUTES = ["class", "hidden", "open"];

/** Turns in the document beyond which the oldest leave it, as long as nobody reads them. */
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
  /** @type {string | null} the turn of which the model is shown writing */
  #writingTurn = null;
  #isAtEnd = true;
  #lastTop = 0;
  #isLoading = false;

  constructor() {
    this.#scroller.addEventListener("scroll", () => this.#noteScroll(), { passive: true });
    this.#older.addEventListener("click", () => void this.showOlder());
    this.#jump.addEventListener("click", () => this.jumpToEnd());
    const follow = new ResizeObserver(() => this.#follow());
    follow.observe(this.#content);
    follow.observe(this.#scroller);
    // At once, not with the next frame: a log that shrinks and grows in between looks as if somebody had scrolled back.
    new MutationObserver(() => this.#isAtEnd && this.#follow()).observe(this.#content, {
      childList: true,
      subtree: true,
      characterData: true,
      attributeFilter: SIZE_ATTRIBUTES,
    });
    new IntersectionObserver(
      (entries) => entries.some((entry) => entry.isIntersecting) && void this.#showOlderIfRead(),
      { root: this.#scroller, rootMargin: "200px" },
    ).observe(this.#older);
  }

  /**
   * Show a conversation from its newest turns on; null: none. The echo stays until another one is shown, or none: a
   * prompt that was just sent is not to blink.
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
    this.#forgetOldest();
  }

  /** Show a prompt that is about to become a turn, as if it were one; null: none. @param {HTMLElement | null} echo */
  showEcho(echo) {
    this.#echo.replaceChildren(...(echo ? [echo] : []));
  }

  /** @param {Map<string, Seen>} seen by turn */
  showSeen(seen) {
    for (const [id, view] of this.#views) view.showSeen(seen.get(id) ?? "verbatim");
  }

  /** Bring the first call that waits for a decision into sight, and the keys to its choices. */
  showQuestion() {
    const form = this.#turns.querySelector(".approval");
    form?.scrollIntoView({ block: "center" });
    form?.querySelector("button")?.focus();
  }

  jumpToEnd() {
    this.#isAtEnd = true;
    this.#follow();
  }

  /** Show a page of turns before the first one shown: those that are held, else those the gateway has. */
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

  /** The turns that are held and come before the first one in the document. @returns {Turn[]} */
  get #hidden() {
    const turns = this.#conversation?.manager.turns ?? [];
    const first = this.#turns.firstElementChild?.getAttribute("data-turn");
    const index = turns.findIndex((turn) => turn.id === first);
    return index < 0 ? [] : turns.slice(0, index);
  }

  async #showOlderIfRead() {
    // At the very beginning, before anyone has scrolled, the button may be in sight: it is not meant by that.
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
    // The browser's own anchoring does not work at the very top, and must not work beside ours.
    this.#scroller.classList.add("unanchored");
    this.#turns.prepend(...turns.map((turn) => this.#viewOf(turn).element));
    this.#scroller.scrollTop += (anchor?.getBoundingClientRect().top ?? 0) - before;
    requestAnimationFrame(() => this.#scroller.classList.remove("unanchored"));
  }

  #forgetOldest() {
    if (!this.#isAtEnd || this.#views.size <= MAX_TURNS) return;
    for (const element of [...this.#turns.children].slice(0, this.#views.size - PAGE_TURNS)) {
      this.#views.delete(element.getAttribute("data-turn") ?? "");
      element.remove();
    }
    this.#showOlderButton();
  }

  /** Show what the model is writing. @param {boolean} isFresh */
  showPartial(isFresh) {
    const partial = this.#conversation?.manager.partial ?? null;
    if (this.#writingTurn && this.#writingTurn !== partial?.message_id)
      this.#views.get(this.#writingTurn)?.showPartial(null, false);
    this.#writingTurn = partial?.message_id ?? null;
    if (partial) this.#views.get(partial.message_id)?.showPartial(partial, isFresh);
  }

  /** @param {Turn} turn @returns {TurnView} */
  #viewOf(turn) {
    const conversation = /** @type {Conversation} */ (this.#conversation);
    const view = new TurnView(turn, {
      sessionId: conversation.id,
      decide: (call, decision, reason) => conversation.decide(call, decision, reason),
      readBlob: (hash) => readBlob(conversation.id, hash),
      retry: (failed) => conversation.retry(failed),
    });
    this.#views.set(turn.id, view);
    return view;
  }

  #noteScroll() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    // What was added since the last frame is no scrolling: only who goes back leaves the end.
    if (scrollHeight - scrollTop - clientHeight <= AT_END_PX) this.#isAtEnd = true;
    else if (scrollTop < this.#lastTop) this.#isAtEnd = false;
    this.#lastTop = scrollTop;
    this.#jump.hidden = this.#isAtEnd;
  }

  #follow() {
    if (this.#isAtEnd) this.#scroller.scrollTop = this.#scroller.scrollHeight;
    this.#noteScroll();
  }
}

/** A prompt as a turn that has not begun. @param {{text: string, words: string}} prompt @param {...Node} actions */
export function echoOf({ text, words }, ...actions) {
  return h(
    "article",
    { class: "turn echo" },
    h(
      "header",
      { class: "request" },
      h("div", { class: "bubble" }, text),
      h("div", { class: "facts fine numbers" }, icon("clock"), h("span", {}, words), ...actions),
    ),
  );
}
