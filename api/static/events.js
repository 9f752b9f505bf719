/**
 * The stream of a session's events, for as long as the page is open: it comes back by itself after every cut, with the
 * cursor of what was taken in last, so nothing is lost and nothing is shown twice.
 *
 * The browser would reconnect too, but after seconds, silently, and not once the gateway has answered with an error. So
 * each cut is handled here: ask what is wrong, say it, and try again soon, sooner when the browser is back online.
 *
 * @import {ConversationUpdate, PartialGrowth, QueuedPrompt} from "./wire.js"
 */

import { GatewayError, describe, eventsUrl } from "./gateway.js";

const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 5_000;

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
 * @property {(queue: {waiting: QueuedPrompt[]}) => void} onQueue
 * @property {(growth: PartialGrowth) => void} onPartial
 * @property {() => void} onConnected the gateway answers, for the first time or again
 * @property {(connection: Connection, problem: GatewayError | null) => void} onConnection
 */

export class Events {
  #sessionId;
  #listener;
  /** @type {EventSource | null} */
  #source = null;
  /** @type {number | undefined} */
  #timer;
  #pause = FIRST_PAUSE_MS;
  #isWanted = false;
  /** @type {number | undefined} */
  #unseen;
  #hasLetGo = false;

  /** @param {string} sessionId @param {Listener} listener */
  constructor(sessionId, listener) {
    this.#sessionId = sessionId;
    this.#listener = listener;
  }

  open() {
    this.#isWanted = true;
    window.addEventListener("online", this.#hurry);
    document.addEventListener("visibilitychange", this.#noteVisibility);
    this.#connect();
  }

  close() {
    this.#isWanted = false;
    window.removeEventListener("online", this.#hurry);
    document.removeEventListener("visibilitychange", this.#noteVisibility);
    clearTimeout(this.#unseen);
    this.#disconnect();
  }

  #hurry = () => {
    this.#pause = FIRST_PAUSE_MS;
    this.#connect();
  };

  #noteVisibility = () => {
    clearTimeout(this.#unseen);
    if (document.visibilityState === "hidden") this.#unseen = setTimeout(() => this.#letGo(), UNSEEN_MS);
    else if (this.#hasLetGo) this.#connect();
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
    this.#source?.close();
    this.#source = null;
  }

  #connect() {
    this.#disconnect();
    this.#hasLetGo = false;
    const source = new EventSource(eventsUrl(this.#sessionId, this.#listener.cursor()));
    this.#source = source;
    /** @param {string} name @param {(told: any) => void} take */
    const on = (name, take) =>
      source.addEventListener(name, (event) => {
        if (source !== this.#source) return;
        this.#noteLife();
        take(JSON.parse(/** @type {MessageEvent} */ (event).data));
      });
    source.addEventListener("open", this.#listener.onConnected);
    on("update", this.#listener.onUpdate);
    on("queue", this.#listener.onQueue);
    on("partial", this.#listener.onPartial);
    source.addEventListener("error", () => {
      if (source === this.#source) void this.#comeBack();
    });
  }

  #noteLife() {
    this.#pause = FIRST_PAUSE_MS;
    this.#listener.onConnection("live", null);
  }

  async #comeBack() {
    this.#disconnect();
    if (this.#listener.isOver()) {
      this.#listener.onConnection("over", null);
      return;
    }
    const problem = await this.#askWhatIsWrong();
    if (!this.#isWanted || this.#source) return;
    if (problem?.status === 404) {
      this.#listener.onConnection("unknown", problem);
      return;
    }
    this.#listener.onConnection("away", problem);
    this.#timer = setTimeout(() => this.#connect(), this.#pause * (0.75 + Math.random() / 2));
    this.#pause = Math.min(LONGEST_PAUSE_MS, this.#pause * 2);
  }

  /** An event stream that fails does not say why; any other request does. @returns {Promise<GatewayError | null>} */
  async #askWhatIsWrong() {
    try {
      await describe(this.#sessionId);
      return null;
    } catch (error) {
      if (error instanceof GatewayError) return error;
      throw error;
    }
  }
}
