/**
 * Prompts on their way from this tab: shown from the moment they are sent, kept until the session is seen to have them.
 *
 * They go one at a time, in the order in which they were written: the session's queue has the order of the requests.
 * What joins or interrupts the running turn need not wait for what comes after it, so there are two such lanes.
 *
 * Each has its id before it is first sent, so a request that may have been lost is sent again without harm. What could
 * not be sent holds up what comes behind it, is tried again by itself, ever more rarely, and survives a reload.
 *
 * @import {PromptMode} from "./wire.js"
 */

import { GatewayError } from "./gateway.js";
import { newId } from "./ids.js";

const PAUSES_MS = [400, 1_000, 2_000];
const MIN_REST_MS = 5_000;
const MAX_REST_MS = 60_000;

/**
 * @typedef {object} Outgoing
 * @property {string} id
 * @property {string} text
 * @property {PromptMode} mode
 * @property {"sending" | "accepted" | "failed"} status
 * @property {string | null} problem why it is not sent, for people
 * @property {boolean} mayPass it failed for a reason that goes away by itself
 *
 * @typedef {"next" | "now"} Lane
 */

/** Which of the two a prompt goes by. @param {Outgoing} entry @returns {Lane} */
const laneOf = ({ mode }) => (mode === "enqueue" ? "next" : "now");

export class Outbox {
  /** The senders of this page, one for each session: who leaves a session and comes back takes over. */
  static #senders = /** @type {Map<string, Outbox>} */ (new Map());
  #key;
  #send;
  #onChange;
  /** @type {Outgoing[]} */
  #entries = [];
  /** The lanes on which something is under way. @type {Set<Lane>} */
  #busy = new Set();
  #isClosed = false;
  /** @type {number | undefined} */
  #timer;
  #rest = MIN_REST_MS;

  /**
   * @param {string} sessionId
   * @param {(prompt: {id: string, text: string, mode: PromptMode}) => Promise<unknown>} send
   * @param {() => void} onChange
   */
  constructor(sessionId, send, onChange) {
    this.#key = `turnkeeper:outbox:${sessionId}`;
    this.#send = send;
    this.#onChange = onChange;
    const earlier = Outbox.#senders.get(sessionId);
    if (earlier) earlier.#close();
    Outbox.#senders.set(sessionId, this);
    window.addEventListener("online", this.retry);
  }

  /** Oldest first. @returns {readonly Outgoing[]} */
  get entries() {
    return this.#entries;
  }

  /** Send again what an earlier life of this page could not. */
  restore() {
    for (const { id, text, mode } of JSON.parse(sessionStorage.getItem(this.#key) ?? "[]")) this.#add(id, text, mode);
    this.retry();
  }

  /** @param {string} text @param {PromptMode} mode */
  send(text, mode) {
    this.#add(newId(), text, mode);
    this.retry();
  }

  /** Try again what failed for a reason that may have gone, in its order. */
  retry = () => {
    clearTimeout(this.#timer);
    const again = this.#entries.filter(({ status, mayPass }) => status === "failed" && mayPass);
    for (const entry of again) Object.assign(entry, { status: "sending", problem: null });
    this.#onChange();
    void this.#sendAll("next");
    void this.#sendAll("now");
  };

  /** Say that the session refused it after all. @param {string} id @param {string} reason */
  refuse(id, reason) {
    const entry = this.#entries.find((entry) => entry.id === id);
    if (entry) this.#change(entry, { status: "failed", problem: reason, mayPass: false });
  }

  /** Keep only the entries for which this holds. @param {(entry: Outgoing) => boolean} isWanted */
  keep(isWanted) {
    const remaining = this.#entries.filter(isWanted);
    if (remaining.length === this.#entries.length) return;
    this.#entries = remaining;
    this.#store();
  }

  /** Send nothing more, and forget what was not sent. */
  discard() {
    this.#close();
    this.#entries = [];
    this.#store();
  }

  #close() {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    window.removeEventListener("online", this.retry);
  }

  /** @param {string} id @param {string} text @param {PromptMode} mode */
  #add(id, text, mode) {
    this.#entries.push({ id, text, mode, status: "sending", problem: null, mayPass: false });
    this.#store();
  }

  /** Each after the one before it was accepted or refused, until one can't be sent now. @param {Lane} lane */
  async #sendAll(lane) {
    if (this.#busy.has(lane)) return;
    this.#busy.add(lane);
    const next = () => this.#entries.find((entry) => entry.status === "sending" && laneOf(entry) === lane);
    try {
      for (let entry = next(); entry && !this.#isClosed; entry = next()) await this.#dispatch(entry);
    } finally {
      this.#busy.delete(lane);
    }
  }

  /** @param {Outgoing} entry */
  async #dispatch(entry) {
    for (const pause of [...PAUSES_MS, null]) {
      try {
        await this.#send(entry);
        this.#rest = MIN_REST_MS;
        this.#change(entry, { status: "accepted", problem: null });
        return;
      } catch (error) {
        if (!(error instanceof GatewayError)) throw error;
        if (this.#isClosed) return;
        if (!error.mayPass) {
          this.#change(entry, { status: "failed", problem: error.message, mayPass: false });
          return;
        }
        if (pause === null) {
          this.#holdUp(laneOf(entry), error);
          return;
        }
        this.#change(entry, { problem: error.message });
        await new Promise((resolve) => setTimeout(resolve, (error.retryAfter ?? 0) * 1000 || pause));
      }
    }
  }

  /** None of a lane can be sent now: none may overtake the first. @param {Lane} lane @param {GatewayError} error */
  #holdUp(lane, error) {
    const waiting = this.#entries.filter((entry) => entry.status === "sending" && laneOf(entry) === lane);
    for (const entry of waiting) this.#change(entry, { status: "failed", problem: error.message, mayPass: true });
    clearTimeout(this.#timer);
    this.#timer = setTimeout(this.retry, this.#rest);
    this.#rest = Math.min(MAX_REST_MS, this.#rest * 2);
  }

  /** @param {Outgoing} entry @param {Partial<Outgoing>} change */
  #change(entry, change) {
    if (this.#isClosed) return;
    Object.assign(entry, change);
    this.#store();
    this.#onChange();
  }

  #store() {
    const unsent = this.#entries.filter((entry) => entry.status !== "accepted");
    if (unsent.length) sessionStorage.setItem(this.#key, JSON.stringify(unsent));
    else sessionStorage.removeItem(this.#key);
  }
}
