/**
 * Follows a session's events. It reconnects with the cursor of the last update, so it neither loses nor repeats anything.
 *
 * A connection can be dead without an error, such as after the computer slept. The gateway sends a comment at least every
 * 15 seconds, so after a longer silence, or when in doubt, the stream is opened again, which is cheap.
 *
 * @import {CallProgress, ConversationUpdate, PartialGrowth, WaitingPrompts} from "./wire.js"
 */

import { eventsOf } from "./event_stream.js";
import { GatewayError, errorOfProblem, openEvents } from "./gateway.js";

const MIN_PAUSE_MS = 250;
const MAX_PAUSE_MS = 5_000;

/** Timeouts of the response's headers, and of the next byte of the stream. */
const RESPONSE_TIMEOUT_MS = 15_000;
const SILENCE_TIMEOUT_MS = 40_000;

/** If the tab was hidden for longer, the computer may have slept. */
const MIN_SLEEP_MS = 5_000;

/** A hidden tab of an idle session disconnects after this: browsers allow six connections to a host. */
const HIDDEN_IDLE_MS = 60_000;

/**
 * @typedef {"connecting" | "live" | "away" | "unknown" | "over"} Connection `unknown`: the session does not exist;
 *   `over`: it is closed, and all of it was received.
 *
 * @typedef {object} Listener
 * @property {() => Object<string, string | number | null>} cursor of the last update
 * @property {() => boolean} isBusy whether events are expected
 * @property {() => boolean} isOver whether the last update closed the session
 * @property {(update: ConversationUpdate) => void} onUpdate
 * @property {(queue: WaitingPrompts) => void} onQueue
 * @property {(growth: PartialGrowth) => void} onPartial
 * @property {(progress: CallProgress) => void} onProgress
 * @property {() => void} onConnected the gateway answered, for the first time or again
 * @property {(connection: Connection, problem: GatewayError | null) => void} onConnection
 */

export class Events {
  #sessionId;
  #listener;
  /** Aborts the open stream. @type {AbortController | null} */
  #controller = null;
  /** @type {number | undefined} */
  #silenceTimer;
  /** @type {number | undefined} */
  #timer;
  #pause = MIN_PAUSE_MS;
  /** Until when the page's events are followed. @type {AbortController | null} */
  #listening = null;
  /** @type {number | undefined} */
  #idleTimer;
  #isPaused = false;
  #hiddenAt = 0;

  /** @param {string} sessionId @param {Listener} listener */
  constructor(sessionId, listener) {
    this.#sessionId = sessionId;
    this.#listener = listener;
  }

  open() {
    this.#listening = new AbortController();
    const { signal } = this.#listening;
    window.addEventListener("online", () => this.reopen(), { signal });
    window.addEventListener("pageshow", (event) => event.persisted && this.reopen(), { signal });
    document.addEventListener("visibilitychange", () => this.#onVisibilityChange(), { signal });
    void this.#connect();
  }

  close() {
    this.#listening?.abort();
    this.#listening = null;
    clearTimeout(this.#idleTimer);
    this.#disconnect();
  }

  /** Reconnect, unless closed or paused: the current connection may be dead. */
  reopen() {
    if (!this.#listening || this.#isPaused) return;
    this.#pause = MIN_PAUSE_MS;
    void this.#connect();
  }

  #onVisibilityChange() {
    clearTimeout(this.#idleTimer);
    if (document.visibilityState === "hidden") {
      this.#hiddenAt = Date.now();
      this.#idleTimer = setTimeout(() => this.#pauseIfIdle(), HIDDEN_IDLE_MS);
    } else if (this.#isPaused || Date.now() - this.#hiddenAt > MIN_SLEEP_MS) {
      this.#isPaused = false;
      this.reopen();
    }
  }

  #pauseIfIdle() {
    if (this.#listener.isBusy()) {
      this.#idleTimer = setTimeout(() => this.#pauseIfIdle(), HIDDEN_IDLE_MS);
      return;
    }
    this.#disconnect();
    this.#isPaused = true;
  }

  #disconnect() {
    clearTimeout(this.#timer);
    clearTimeout(this.#silenceTimer);
    this.#controller?.abort();
    this.#controller = null;
  }

  async #connect() {
    this.#disconnect();
    const controller = new AbortController();
    this.#controller = controller;
    /** @type {GatewayError | null} */
    let problem = null;
    try {
      await this.#follow(controller);
    } catch (error) {
      if (!(error instanceof GatewayError)) throw error;
      problem = error;
    } finally {
      if (controller === this.#controller) this.#reconnect(problem);
    }
  }

  /** Dispatch events until the stream ends or is aborted. @param {AbortController} controller @throws {GatewayError} */
  async #follow(controller) {
    this.#expectActivity(controller, RESPONSE_TIMEOUT_MS);
    const stream = await openEvents(this.#sessionId, this.#listener.cursor(), controller.signal);
    if (!stream || controller.signal.aborted) return;
    this.#listener.onConnected();
    const onActivity = () => this.#expectActivity(controller, SILENCE_TIMEOUT_MS);
    for await (const { name, text } of eventsOf(stream, onActivity)) {
      if (controller.signal.aborted) return;
      this.#dispatch(name, JSON.parse(text));
      this.#pause = MIN_PAUSE_MS;
    }
  }

  /** @param {string} name @param {any} data */
  #dispatch(name, data) {
    // A problem means that the session can't be read now; the stream continues.
    this.#listener.onConnection("live", name === "problem" ? errorOfProblem(data) : null);
    if (name === "update") this.#listener.onUpdate(data);
    else if (name === "queue") this.#listener.onQueue(data);
    else if (name === "partial") this.#listener.onPartial(data);
    else if (name === "progress") this.#listener.onProgress(data);
  }

  /** Abort the stream unless this is called again within `ms`. @param {AbortController} controller @param {number} ms */
  #expectActivity(controller, ms) {
    if (controller !== this.#controller) return;
    clearTimeout(this.#silenceTimer);
    this.#silenceTimer = setTimeout(() => controller.abort(), ms);
  }

  /** @param {GatewayError | null} problem why the stream could not be opened */
  #reconnect(problem) {
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
    const pause = Math.max(this.#pause, (problem?.retryAfter ?? 0) * 1000);
    this.#timer = setTimeout(() => void this.#connect(), pause * (0.75 + Math.random() / 2));
    this.#pause = Math.min(MAX_PAUSE_MS, this.#pause * 2);
  }
}
