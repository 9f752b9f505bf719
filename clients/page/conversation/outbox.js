/**
 * This tab's prompts, from when they are sent until the session shows them.
 *
 * They are sent one at a time, since the session queues them in the order of the requests. Prompts that steer or
 * interrupt have a lane of their own: they need not wait for queued ones.
 *
 * Each prompt gets its id before it is first sent, so it can be sent again. A prompt that can't be sent blocks its lane,
 * is retried with growing pauses, and survives a reload. One that was rejected survives it too, and is not sent again.
 *
 * @import {PromptFile} from "./attachments.js"
 * @import {PromptMode} from "./wire.js"
 */

import { isUnsent } from "./attachments.js";
import { GatewayError } from "./gateway.js";
import { newId } from "./ids.js";
import { TEXTS } from "../words.js";

const PAUSES_MS = [400, 1_000, 2_000];
const MIN_RETRY_MS = 5_000;
const MAX_RETRY_MS = 60_000;

/**
 * @typedef {object} Outgoing
 * @property {string} id
 * @property {string} text
 * @property {PromptMode} mode
 * @property {PromptFile[]} attachments
 * @property {"sending" | "accepted" | "failed"} status
 * @property {string | null} problem the message of the last error
 * @property {boolean} isTemporary whether sending it again may succeed
 *
 * @typedef {"next" | "now"} Lane
 */

/** @param {Outgoing} entry @returns {Lane} */
const laneOf = ({ mode }) => (mode === "enqueue" ? "next" : "now");

export class Outbox {
  /** The open outbox of each session: a new one closes the old one. */
  static #senders = /** @type {Map<string, Outbox>} */ (new Map());
  #key;
  #send;
  #onChange;
  /** @type {Outgoing[]} */
  #entries = [];
  /** The lanes that are sending. @type {Set<Lane>} */
  #busy = new Set();
  #isClosed = false;
  /** @type {number | undefined} */
  #timer;
  #retryMs = MIN_RETRY_MS;

  /**
   * @param {string} sessionId
   * @param {(prompt: Outgoing) => Promise<unknown>} send it may replace files by attachments
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

  /** Send the prompts that were unsent at the last reload, and show those that were rejected. */
  restore() {
    /** @type {(Outgoing & {hasLostFiles?: boolean})[]} */
    const unsent = JSON.parse(sessionStorage.getItem(this.#key) ?? "[]");
    for (const { hasLostFiles, ...stored } of unsent) {
      const entry = { ...stored, attachments: stored.attachments ?? [] };
      const isRejected = entry.status === "failed" && !entry.isTemporary;
      if (hasLostFiles)
        this.#entries.push({ ...entry, status: "failed", problem: TEXTS.attachmentsLost, isTemporary: false });
      else this.#entries.push(isRejected ? entry : { ...entry, status: "sending", problem: null });
    }
    this.retry();
  }

  /** @param {string} text @param {PromptMode} mode @param {PromptFile[]} [attachments] */
  send(text, mode, attachments = []) {
    this.#entries.push({ id: newId(), text, mode, attachments, status: "sending", problem: null, isTemporary: false });
    this.#store();
    this.retry();
  }

  /** Send prompts with temporary errors again, in their order. */
  retry = () => {
    clearTimeout(this.#timer);
    const again = this.#entries.filter(({ status, isTemporary }) => status === "failed" && isTemporary);
    for (const entry of again) Object.assign(entry, { status: "sending", problem: null });
    this.#onChange();
    void this.#sendAll("next");
    void this.#sendAll("now");
  };

  /** Mark an accepted prompt as rejected. @param {string} id @param {string} reason */
  reject(id, reason) {
    const entry = this.#entries.find((entry) => entry.id === id);
    if (entry) this.#change(entry, { status: "failed", problem: reason, isTemporary: false });
  }

  /** @param {(entry: Outgoing) => boolean} shouldRemove */
  remove(shouldRemove) {
    const remaining = this.#entries.filter((entry) => !shouldRemove(entry));
    if (remaining.length === this.#entries.length) return;
    this.#entries = remaining;
    this.#store();
  }

  /** Stop sending and remove all prompts. */
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

  /** Send a lane's prompts, each after the previous one was accepted or rejected. @param {Lane} lane */
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
        this.#retryMs = MIN_RETRY_MS;
        this.#change(entry, { status: "accepted", problem: null });
        return;
      } catch (error) {
        if (!(error instanceof GatewayError)) throw error;
        if (this.#isClosed) return;
        if (!error.isTemporary) {
          this.#change(entry, { status: "failed", problem: error.message, isTemporary: false });
          return;
        }
        if (pause === null) {
          this.#blockLane(laneOf(entry), error);
          return;
        }
        this.#change(entry, { problem: error.message });
        await new Promise((resolve) => setTimeout(resolve, (error.retryAfter ?? 0) * 1000 || pause));
      }
    }
  }

  /** Mark all prompts of a lane as unsent, since none may overtake the first. @param {Lane} lane @param {GatewayError} error */
  #blockLane(lane, error) {
    const waiting = this.#entries.filter((entry) => entry.status === "sending" && laneOf(entry) === lane);
    for (const entry of waiting) this.#change(entry, { status: "failed", problem: error.message, isTemporary: true });
    clearTimeout(this.#timer);
    this.#timer = setTimeout(this.retry, this.#retryMs);
    this.#retryMs = Math.min(MAX_RETRY_MS, this.#retryMs * 2);
  }

  /** @param {Outgoing} entry @param {Partial<Outgoing>} change */
  #change(entry, change) {
    if (this.#isClosed) return;
    Object.assign(entry, change);
    this.#store();
    this.#onChange();
  }

  #store() {
    // The tab's storage has no room for files that were not uploaded yet: it is remembered that there were some.
    const unsent = this.#entries
      .filter((entry) => entry.status !== "accepted")
      .map((entry) => ({
        ...entry,
        attachments: entry.attachments.filter((file) => !isUnsent(file)),
        ...(entry.attachments.some(isUnsent) ? { hasLostFiles: true } : {}),
      }));
    if (unsent.length) sessionStorage.setItem(this.#key, JSON.stringify(unsent));
    else sessionStorage.removeItem(this.#key);
  }
}
