/**
 * The stream of a session's events, for as long as the page is open: it comes back by itself after every cut, with the
 * cursor of what was taken in last, so nothing is lost and nothing is shown twice.
 *
 * Not every cut is told. After a sleep, behind a router that has forgotten the connection, a line can be dead and look
 * merely quiet. But the gateway writes at least a comment every 15 seconds: where nothing at all arrives for longer, or
 * where there is reason to doubt, the stream is opened anew. That costs little and changes nothing that is shown.
 *
 * @import {ConversationUpdate, PartialGrowth, WaitingPrompts} from "./wire.js"
 */

import { eventsOf } from "./event_stream.js";
import { GatewayError, openEvents } from "./gateway.js";

const MIN_PAUSE_MS = 250;
const MAX_PAUSE_MS = 5_000;

/** Without an answer, or without a byte of the stream, for so long: it is dead. */
const ANSWER_MS = 15_000;
const QUIET_MS = 40_000;

/** After so long out of sight the machine may have slept. */
const AWAY_MS = 5_000;

/** A tab that nobody sees, of a session where nothing happens, lets go: browsers allow six connections to one host. */
const UNSEEN_MS = 60_000;

/**
 * @typedef {"connecting" | "live" | "away" | "unknown" | "over"} Connection `unknown`: there is no such session;
 *   `over`: it is closed, and all of it was received.
 *
 * @typedef {object} Listener
 * @property {() => Object<string, string | number | null>} cursor what was taken in last
 * @property {() => boolean} isBusy whether something is expected to happen
 * @property {() => boolean} isOver whether the session is closed, by what was taken in
 * @property {(update: ConversationUpdate) => void} onUpdate
 * @property {(queue: WaitingPrompts) => void} onQueue
 * @property {(growth: PartialGrowth) => void} onPartial
 * @property {() => void} onConnected the gateway answers, for the first time or again
 * @property {(connection: Connection, problem: GatewayError | null) => void} onConnection
 */

export class Events {
  #sessionId;
  #listener;
  /** Ends the stream that is followed, if one is. @type {AbortController | null} */
  #cut = null;
  /** @type {number | undefined} */
  #watch;
  /** @type {number | undefined} */
  #timer;
  #pause = MIN_PAUSE_MS;
  #isWanted = false;
  /** @type {number | undefined} */
  #unseen;
  #hasLetGo = false;
  #hiddenAt = 0;

  /** @param {string} sessionId @param {Listener} listener */
  constructor(sessionId, listener) {
    this.#sessionId = sessionId;
    this.#listener = listener;
  }

  open() {
    this.#isWanted = true;
    window.addEventListener("online", this.reopen);
    window.addEventListener("pageshow", this.#notePageShow);
    document.addEventListener("visibilitychange", this.#noteVisibility);
    void this.#connect();
  }

  close() {
    this.#isWanted = false;
    window.removeEventListener("online", this.reopen);
    window.removeEventListener("pageshow", this.#notePageShow);
    document.removeEventListener("visibilitychange", this.#noteVisibility);
    clearTimeout(this.#unseen);
    this.#disconnect();
  }

  /** Follow the stream by a new connection, if it is followed at all: the one there is may be dead. */
  reopen = () => {
    if (!this.#isWanted || this.#hasLetGo) return;
    this.#pause = MIN_PAUSE_MS;
    void this.#connect();
  };

  /** @param {PageTransitionEvent} event */
  #notePageShow = (event) => {
    if (event.persisted) this.reopen();
  };

  #noteVisibility = () => {
    clearTimeout(this.#unseen);
    if (document.visibilityState === "hidden") {
      this.#hiddenAt = Date.now();
      this.#unseen = setTimeout(() => this.#letGo(), UNSEEN_MS);
    } else if (this.#hasLetGo || Date.now() - this.#hiddenAt > AWAY_MS) {
      this.#hasLetGo = false;
      this.reopen();
    }
  };

  #letGo() {
    if (this.#listener.isBusy()) {
      this.#unseen = setTimeout(() => this.#letGo(), UNSEEN_MS);
      return;
    }
    this.#disconnect();
    this.#hasLetGo = true;
  }

  #disconnect() {
    clearTimeout(this.#timer);
    clearTimeout(this.#watch);
    this.#cut?.abort();
    this.#cut = null;
  }

  async #connect() {
    this.#disconnect();
    const cut = new AbortController();
    this.#cut = cut;
    /** @type {GatewayError | null} */
    let problem = null;
    try {
      await this.#follow(cut);
    } catch (error) {
      if (!(error instanceof GatewayError)) throw error;
      problem = error;
    } finally {
      if (cut === this.#cut) this.#comeBack(problem);
    }
  }

  /** Take in what is told, until the stream ends or is cut. @param {AbortController} cut @throws {GatewayError} */
  async #follow(cut) {
    this.#expectSign(cut, ANSWER_MS);
    const stream = await openEvents(this.#sessionId, this.#listener.cursor(), cut.signal);
    if (!stream || cut.signal.aborted) return;
    this.#listener.onConnected();
    for await (const { name, text } of eventsOf(stream, () => this.#expectSign(cut, QUIET_MS))) {
      if (cut.signal.aborted) return;
      this.#dispatch(name, JSON.parse(text));
      this.#pause = MIN_PAUSE_MS;
    }
  }

  /** @param {string} name @param {any} data */
  #dispatch(name, data) {
    this.#listener.onConnection("live", null);
    if (name === "update") this.#listener.onUpdate(data);
    else if (name === "queue") this.#listener.onQueue(data);
    else if (name === "partial") this.#listener.onPartial(data);
  }

  /** @param {AbortController} cut @param {number} ms */
  #expectSign(cut, ms) {
    if (cut !== this.#cut) return;
    clearTimeout(this.#watch);
    this.#watch = setTimeout(() => cut.abort(), ms);
  }

  /** @param {GatewayError | null} problem why the stream could not be opened */
  #comeBack(problem) {
    this.#disconnect();
    if (this.#listener.isOver()) {
      this.#listener.onConnection("over", null);
      return;
    }
    if (problem?.status === 404) {
      this.#listener.onConnection("unknown", problem);
      return;
    }
    this.#listener.onConnection("away", problem);
    this.#timer = setTimeout(() => void this.#connect(), this.#pause * (0.75 + Math.random() / 2));
    this.#pause = Math.min(MAX_PAUSE_MS, this.#pause * 2);
  }
}
