/**
 * An open session: what is known of it, how that is kept up to date, and what can be done to it.
 *
 * The stream tells what is new, `ConversationManager` holds it, the outbox has what this tab has sent. Whoever listens
 * is told what to show anew. Every action goes to the gateway and changes nothing here: what came of it, the stream
 * tells, to this tab as to every other.
 *
 * @import {Change} from "./conversation_manager.js"
 * @import {Connection} from "./events.js"
 * @import {Outgoing} from "./outbox.js"
 * @import {ContextView, Decision, PromptMode, SessionDescription, ToolCall, Turn} from "./wire.js"
 */

import { ConversationManager } from "./conversation_manager.js";
import { Events } from "./events.js";
import * as gateway from "./gateway.js";
import { GatewayError } from "./gateway.js";
import { isSessionId } from "./ids.js";
import { Outbox } from "./outbox.js";
import { TEXTS, isClosed } from "../words.js";

/** Turns of a page: what is fetched, and shown, at once. */
export const PAGE_TURNS = 30;

const MAX_CONTEXT_TURNS = 500;
const RETRY_MS = 2_000;
const SILENCE_MS = 6_000;

/** What is no failure: the session was quicker, and the stream tells what it did. */
const OVERTAKEN = ["not-running", "not-waiting", "unknown-prompt", "not-awaiting-approval"];

/**
 * @typedef {Omit<Outgoing, "status"> & {status: "sending" | "queued" | "failed"}} Waiting A prompt that has not begun:
 *   on its way, or in the queue.
 *
 * @typedef {object} Listener
 * @property {() => void} onBegin all turns are to be shown anew
 * @property {(change: Change) => void} onTurns
 * @property {(isFresh: boolean) => void} onPartial
 * @property {() => void} onState the state, the waiting prompts, the connection
 * @property {() => void} onDescription
 * @property {() => void} onContext
 * @property {(words: string) => void} onFailure
 * @property {(draft: {text: string, model: string}, words: string) => void} onNotStarted there is no session
 */

export class Conversation {
  #listener;
  #events;
  #outbox;
  #isOpen = true;
  /** @type {{model?: string} | null} how it is to be started, while it is not known to be */
  #start;
  /** @type {Promise<void> | null} */
  #starting = null;
  /** @type {number | undefined} */
  #silence;
  #isCheckingFates = false;
  #openedAt;
  /** How many reads there were of each: an answer to an older one comes too late. */
  #reads = { description: 0, context: 0 };

  /** @param {string} sessionId @param {Listener} listener @param {{model?: string} | null} [start] */
  constructor(sessionId, listener, start = null) {
    this.id = sessionId;
    this.manager = new ConversationManager();
    /** @type {Connection} */
    this.connection = "connecting";
    /** @type {GatewayError | null} what is wrong now */
    this.problem = null;
    /** @type {SessionDescription | null} */
    this.description = null;
    /** @type {ContextView | null} */
    this.context = null;
    this.#listener = listener;
    this.#start = start ?? JSON.parse(sessionStorage.getItem(this.#startKey) ?? "null");
    this.isNew = Boolean(this.#start);
    this.#openedAt = new Date().toISOString();
    if (this.#start) sessionStorage.setItem(this.#startKey, JSON.stringify(this.#start));
    this.#outbox = new Outbox(
      sessionId,
      (prompt) => this.#sendPrompt(prompt),
      () => this.#noteOutgoing(),
    );
    this.#events = new Events(sessionId, {
      cursor: () => this.manager.cursor,
      isBusy: () => this.#isExpecting,
      isOver: () => isClosed(this.manager.state.status),
      onUpdate: (update) => this.#applyUpdate(update),
      onQueue: (queue) => this.#applyQueue(queue),
      onPartial: (growth) => this.#applyPartial(growth),
      onConnected: () => this.#outbox.retry(),
      onConnection: (connection, problem) => this.#noteConnection(connection, problem),
    });
  }

  get #startKey() {
    return `turnkeeper:start:${this.id}`;
  }

  /** Read the newest turns and follow what is new, for as long as it takes until somebody answers. */
  async open() {
    if (!isSessionId(this.id)) {
      this.#noteConnection("unknown", new GatewayError(404, "no-session-id", ""));
      return;
    }
    this.#outbox.restore();
    while (this.#isOpen) {
      try {
        await this.#started();
        this.manager.begin(await gateway.readNewest(this.id, PAGE_TURNS));
        break;
      } catch (error) {
        if (!(error instanceof GatewayError)) throw error;
        if (!this.#isOpen) return;
        if (this.#start && !error.mayPass) {
          this.#giveUp(error);
          return;
        }
        this.#noteConnection(error.status === 404 ? "unknown" : "away", error);
        if (!error.mayPass) return;
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
    if (!this.#isOpen) return;
    this.#listener.onBegin();
    this.#noteOutgoing();
    void this.refreshDescription();
    void this.refreshContext();
    this.#events.open();
  }

  close() {
    this.#isOpen = false;
    clearTimeout(this.#silence);
    this.#events.close();
  }

  // ---- what is shown

  /** The prompts that have not begun, in the order they will. @returns {Waiting[]} */
  get waiting() {
    const queued = this.manager.queue.filter(({ id }) => !this.#hasBegun(id));
    const queuedIds = new Set(queued.map(({ id }) => id));
    const outgoing = this.#outbox.entries.filter(({ id }) => !queuedIds.has(id) && !this.#hasBegun(id));
    const isQueued = { status: /** @type {const} */ ("queued"), problem: null, mayPass: false };
    return [
      ...queued.map(({ id, text, mode }) => ({ id, text, mode, ...isQueued })),
      ...outgoing.map(({ status, ...prompt }) => (status === "accepted" ? { ...prompt, ...isQueued } : { ...prompt, status })),
    ];
  }

  /** When it was started, if that is known. @returns {string | null} */
  get startedAt() {
    return this.description?.created_at ?? (this.isNew ? this.#openedAt : null);
  }

  /** The calls that a person is to decide on now. @returns {ToolCall[]} */
  get questions() {
    const last = this.manager.current?.reasoning_trajectory?.steps.at(-1);
    const calls = this.manager.state.status === "awaiting_approval" && last?.kind === "model" ? last.tool_calls : [];
    return calls.filter(({ approval, result }) => approval && !approval.decision && !result);
  }

  /** The newest text that a person sent, wherever it is now. @returns {string} */
  get lastPrompt() {
    return this.waiting.at(-1)?.text ?? this.manager.turns.at(-1)?.user_message ?? "";
  }

  // ---- what can be done

  /** @param {string} text @param {PromptMode} mode */
  send(text, mode) {
    this.#outbox.send(text, mode);
  }

  /** Try again to send what could not be sent; in its order, so not one alone. */
  resend() {
    this.#outbox.retry();
  }

  /** Take a waiting prompt back. @param {string} id */
  async withdraw(id) {
    const isUnsent = this.#outbox.entries.some((entry) => entry.id === id && entry.status === "failed");
    if (!isUnsent && !(await this.#attempt(gateway.withdraw(this.id, id)))) return;
    this.manager.applyQueue({ waiting: this.manager.queue.filter((prompt) => prompt.id !== id) });
    this.#outbox.keep((entry) => entry.id !== id);
    this.#listener.onState();
  }

  async stop() {
    const turn = this.manager.state.current_message_id;
    if (turn) await this.#attempt(gateway.stopTurn(this.id, turn));
  }

  /** @param {Turn} turn @returns {Promise<boolean>} */
  retry(turn) {
    return this.#attempt(gateway.retryTurn(this.id, turn.id));
  }

  /** @param {ToolCall} call @param {Decision} decision @param {string} [reason] @returns {Promise<boolean>} */
  decide(call, decision, reason) {
    const digest = call.approval?.args_digest ?? "";
    const body = { args_digest: digest, decision, ...(reason ? { reason } : {}) };
    return this.#attempt(gateway.decide(this.id, call.id, body));
  }

  /** @param {{title?: string, model?: string}} change @returns {Promise<boolean>} */
  async configure(change) {
    const isDone = await this.#attempt(gateway.configure(this.id, change));
    if (isDone) await this.refreshDescription();
    return isDone;
  }

  /** @param {boolean} discardQueue @returns {Promise<boolean>} */
  end(discardQueue) {
    return this.#attempt(gateway.endSession(this.id, discardQueue));
  }

  /** Hold a page of older turns too. @returns {Promise<Turn[]>} those that are new here, oldest first */
  async loadOlder() {
    const first = this.manager.turns[0];
    if (!first) return [];
    return this.manager.prepend(await gateway.readBefore(this.id, first.id, PAGE_TURNS));
  }

  async refreshDescription() {
    const read = ++this.#reads.description;
    const description = await gateway.describe(this.id).catch(() => null);
    if (!description || !this.#isOpen || read !== this.#reads.description) return;
    this.description = description;
    this.#listener.onDescription();
  }

  async refreshContext() {
    const read = ++this.#reads.context;
    const context = await gateway.readContext(this.id, MAX_CONTEXT_TURNS).catch(() => null);
    if (!context || !this.#isOpen || read !== this.#reads.context) return;
    this.context = context;
    this.#listener.onContext();
  }

  /** @param {Promise<unknown>} action @returns {Promise<boolean>} whether it was done, as far as anyone can tell */
  async #attempt(action) {
    try {
      await action;
    } catch (error) {
      if (!(error instanceof GatewayError)) throw error;
      if (!OVERTAKEN.includes(error.type)) {
        this.#listener.onFailure(error.message);
        return false;
      }
    }
    return true;
  }

  // ---- starting and sending

  /** The session exists. A first try that may have been lost is made again, under the same id. */
  #started() {
    if (!this.#start) return Promise.resolve();
    this.#starting ??= gateway
      .startSession({ id: this.id, ...this.#start })
      .then(() => {
        this.#start = null;
        sessionStorage.removeItem(this.#startKey);
      })
      .finally(() => {
        this.#starting = null;
      });
    return this.#starting;
  }

  /** There will be no such session: what was written for it is given back. @param {GatewayError} error */
  #giveUp(error) {
    const text = this.#outbox.entries.map((entry) => entry.text).join("\n\n");
    const model = this.#start?.model ?? "";
    this.close();
    this.#outbox.discard();
    sessionStorage.removeItem(this.#startKey);
    this.#listener.onNotStarted({ text, model }, error.message);
  }

  /** @param {{id: string, text: string, mode: PromptMode}} prompt */
  async #sendPrompt(prompt) {
    await this.#started();
    await gateway.sendPrompt(this.id, prompt);
  }

  #noteOutgoing() {
    this.#outbox.keep(({ id }) => !this.#hasBegun(id));
    this.#listenForSilence();
    this.#listener.onState();
  }

  /** @param {string} id @returns {boolean} whether the prompt became a turn, or joined one */
  #hasBegun(id) {
    if (this.manager.turn(id)) return true;
    const steps = this.manager.turns.at(-1)?.reasoning_trajectory?.steps ?? [];
    return steps.some((step) => step.kind === "user" && step.message_id === id);
  }

  // ---- what the stream brings

  /** @param {import("./wire.js").ConversationUpdate} update */
  #applyUpdate(update) {
    const change = this.manager.applyUpdate(update);
    this.#listener.onTurns(change);
    this.#noteOutgoing();
    void this.#checkFates();
    if ([...change.added, ...change.updated].some((turn) => turn.is_complete)) {
      void this.refreshDescription();
      void this.refreshContext();
    }
  }

  /** @param {import("./wire.js").WaitingPrompts} queue */
  #applyQueue(queue) {
    this.manager.applyQueue(queue);
    this.#noteOutgoing();
    void this.#checkFates();
  }

  /** @param {import("./wire.js").PartialGrowth} growth */
  #applyPartial(growth) {
    const isFresh = this.manager.applyPartial(growth);
    this.#listenForSilence();
    this.#listener.onPartial(isFresh);
  }

  /** @param {Connection} connection @param {GatewayError | null} problem */
  #noteConnection(connection, problem) {
    const isNews = connection !== this.connection || problem?.type !== this.problem?.type;
    this.connection = connection;
    this.problem = problem;
    if (isNews) this.#listener.onState();
  }

  /**
   * A prompt that was accepted, and neither waits nor has begun, may have been withdrawn elsewhere, dropped with the
   * session's end, or rejected after all. Its fate says so.
   */
  async #checkFates() {
    const missing = () => {
      const queued = new Set(this.manager.queue.map(({ id }) => id));
      return this.#outbox.entries.filter(({ id, status }) => status === "accepted" && !queued.has(id));
    };
    if (this.#isCheckingFates || !missing().length) return;
    this.#isCheckingFates = true;
    const fates = await gateway.readQueue(this.id).then(
      (queue) => queue.fates,
      () => [],
    );
    this.#isCheckingFates = false;
    for (const { id } of missing()) {
      const fate = fates.find((fate) => fate.id === id);
      if (fate?.fate === "rejected") this.#outbox.refuse(id, fate.reason ?? TEXTS.rejectedPrompt);
      else if (fate?.fate === "withdrawn" || fate?.fate === "discarded") this.#outbox.keep((entry) => entry.id !== id);
    }
    this.#listener.onState();
  }

  /** Something is to happen, and to be told. */
  get #isExpecting() {
    const isAwaited = this.manager.state.is_processing || this.waiting.some(({ status }) => status === "queued");
    return isAwaited && !isClosed(this.manager.state.status);
  }

  /** While something is expected and nobody says anything, ask now and then what is wrong: maybe it is the stream. */
  #listenForSilence() {
    clearTimeout(this.#silence);
    if (!this.#isExpecting || !this.#isOpen) return;
    this.#silence = setTimeout(() => void this.#askAboutSilence(), SILENCE_MS);
  }

  async #askAboutSilence() {
    if (document.visibilityState === "visible" && this.connection === "live") {
      try {
        this.description = await gateway.describe(this.id);
        this.#listener.onDescription();
        this.problem = null;
        if (!["stuck", this.manager.state.status].includes(this.description.status)) this.#events.reopen();
      } catch (error) {
        if (!(error instanceof GatewayError)) throw error;
        this.problem = error;
        this.#events.reopen();
      }
      this.#listener.onState();
    }
    this.#listenForSilence();
  }
}
