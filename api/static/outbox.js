/**
 * Prompts on their way from this tab: shown from the moment they are sent, kept until the session is seen to have them.
 *
 * Each has its id before it is first sent, so a request that may have been lost is sent again without harm. What could
 * not be sent survives a reload of the page, and waits for a retry.
 *
 * @import {PromptMode} from "./wire.js"
 */

import { GatewayError } from "./gateway.js";
import { newId } from "./ids.js";

const PAUSES_MS = [400, 1_000, 2_000];

/**
 * @typedef {object} Outgoing
 * @property {string} id
 * @property {string} text
 * @property {PromptMode} mode
 * @property {"sending" | "accepted" | "failed"} status
 * @property {string | null} problem why it is not sent, for people
 * @property {boolean} mayPass it failed for a reason that goes away by itself
 */

export class Outbox {
  #key;
  #send;
  #onChange;
  /** @type {Outgoing[]} */
  #entries = [];

  /**
   * @param {string} sessionId
   * @param {(prompt: {id: string, text: string, mode: PromptMode}) => Promise<unknown>} send
   * @param {() => void} onChange
   */
  constructor(sessionId, send, onChange) {
    this.#key = `turnkeeper:outbox:${sessionId}`;
    this.#send = send;
    this.#onChange = onChange;
  }

  /** Oldest first. @returns {readonly Outgoing[]} */
  get entries() {
    return this.#entries;
  }

  /** Send again what an earlier life of this page could not. */
  restore() {
    for (const { id, text, mode } of JSON.parse(sessionStorage.getItem(this.#key) ?? "[]")) {
      void this.#dispatch(this.#add(id, text, mode));
    }
  }

  /** @param {string} text @param {PromptMode} mode @returns {Promise<void>} when it is accepted, or has failed */
  send(text, mode) {
    return this.#dispatch(this.#add(newId(), text, mode));
  }

  /** @param {string} id */
  retry(id) {
    const entry = this.#entries.find((entry) => entry.id === id && entry.status === "failed");
    if (entry) void this.#dispatch(entry);
  }

  /** Try again what failed only because nobody could be reached. */
  retryWhatMayPass() {
    for (const entry of this.#entries) if (entry.status === "failed" && entry.mayPass) void this.#dispatch(entry);
  }

  /** Say that the session refused it after all. @param {string} id @param {string} reason */
  refuse(id, reason) {
    const entry = this.#entries.find((entry) => entry.id === id);
    if (entry) this.#change(entry, { status: "failed", problem: reason, mayPass: false });
  }

  /** Keep only the entries for which this holds. @param {(entry: Outgoing) => boolean} isWanted */
  keep(isWanted) {
    const kept = this.#entries.filter(isWanted);
    if (kept.length === this.#entries.length) return;
    this.#entries = kept;
    this.#store();
  }

  /** @param {string} id @param {string} text @param {PromptMode} mode @returns {Outgoing} */
  #add(id, text, mode) {
    /** @type {Outgoing} */
    const entry = { id, text, mode, status: "sending", problem: null, mayPass: false };
    this.#entries.push(entry);
    this.#store();
    return entry;
  }

  /** @param {Outgoing} entry */
  async #dispatch(entry) {
    this.#change(entry, { status: "sending", problem: null });
    for (const pause of [...PAUSES_MS, null]) {
      try {
        await this.#send(entry);
        this.#change(entry, { status: "accepted", problem: null });
        return;
      } catch (error) {
        if (!(error instanceof GatewayError)) throw error;
        const isLast = pause === null || !error.mayPass;
        this.#change(entry, {
          status: isLast ? "failed" : "sending",
          problem: error.message,
          mayPass: error.mayPass,
        });
        if (isLast) return;
        await new Promise((resolve) => setTimeout(resolve, (error.retryAfter ?? 0) * 1000 || pause));
      }
    }
  }

  /** @param {Outgoing} entry @param {Partial<Outgoing>} change */
  #change(entry, change) {
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
