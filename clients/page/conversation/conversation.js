/**
 * An open session: its state, the connection that updates it, and the actions on it.
 *
 * `ConversationManager` has the state, the event stream updates it, the outbox has the prompts of this tab. The listener
 * learns what to render again. An action only calls the gateway: its effect arrives by the stream, in every tab.
 *
 * @import {PromptFile} from "./attachments.js"
 * @import {Change} from "./conversation_manager.js"
 * @import {Connection} from "./events.js"
 * @import {Outgoing} from "./outbox.js"
 * @import {ContextView, Decision, PendingApproval, PromptMode, SessionDescription, ToolCall, Turn} from "./wire.js"
 */

import { isUnsent, mediaTypeOf } from "./attachments.js";
import { ConversationManager } from "./conversation_manager.js";
import { Events } from "./events.js";
import * as gateway from "./gateway.js";
import { GatewayError } from "./gateway.js";
import { isSessionId, newId } from "./ids.js";
import { Outbox } from "./outbox.js";
import { TEXTS, isClosed } from "../words.js";

/** How many turns are fetched and rendered at a time. */
export const PAGE_TURNS = 30;

const MAX_CONTEXT_TURNS = 500;
const RETRY_MS = 2_000;
const SILENCE_MS = 6_000;

/** Problems that need no message: the session changed first, and the stream shows how. */
const HARMLESS_CONFLICTS = ["not-running", "not-waiting", "unknown-prompt", "not-awaiting-approval"];

/**
 * @typedef {Omit<Outgoing, "status"> & {status: "sending" | "queued" | "failed"}} Waiting A prompt that has not started:
 *   in the outbox or in the session's queue.
 *
 * @typedef {object} Listener
 * @property {() => void} onBegin render all turns
 * @property {(change: Change) => void} onTurns
 * @property {(isFresh: boolean) => void} onPartial
 * @property {(progress: import("./wire.js").CallProgress) => void} onProgress
 * @property {() => void} onState the state, the waiting prompts, the connection, the description
 * @property {() => void} onContext
 * @property {(words: string) => void} onFailure
 * @property {(draft: {text: string, model: string, agent: string | null, attachments: PromptFile[]}, words: string) => void} onStartFailed the session was not started
 */

export class Conversation {
  #listener;
  #events;
  #outbox;
  #isOpen = true;
  /** @type {{model?: string, agent?: string} | null} the options to start it with, until it has started */
  #start;
  /** @type {Promise<void> | null} */
  #starting = null;
  /** @type {number | undefined} */
  #silence;
  #isCheckingFates = false;
  #openedAt;
  /** The number of the latest read of each: the answers of older reads are dropped. */
  #reads = { description: 0, context: 0, approvals: 0 };

  /** @param {string} sessionId @param {Listener} listener @param {{model?: string, agent?: string} | null} [start] */
  constructor(sessionId, listener, start = null) {
    this.id = sessionId;
    this.manager = new ConversationManager();
    /** @type {Connection} */
    this.connection = "connecting";
    /** @type {GatewayError | null} */
    this.problem = null;
    /** @type {SessionDescription | null} */
    this.description = null;
    /** @type {ContextView | null} */
    this.context = null;
    /** What needs a decision, in the session and in its tasks. @type {PendingApproval[]} */
    this.approvals = [];
    this.#listener = listener;
    this.#start = start ?? JSON.parse(sessionStorage.getItem(this.#startKey) ?? "null");
    this.isNew = Boolean(this.#start);
    this.#openedAt = new Date().toISOString();
    if (this.#start) sessionStorage.setItem(this.#startKey, JSON.stringify(this.#start));
    this.#outbox = new Outbox(
      sessionId,
      (prompt) => this.#sendPrompt(prompt),
      () => this.#onOutboxChange(),
    );
    this.#events = new Events(sessionId, {
      cursor: () => this.manager.cursor,
      isBusy: () => this.#isBusy,
      isOver: () => isClosed(this.manager.state.status),
      onUpdate: (update) => this.#applyUpdate(update),
      onQueue: (queue) => this.#applyQueue(queue),
      onPartial: (growth) => this.#applyPartial(growth),
      onProgress: (progress) => this.#listener.onProgress(progress),
      onConnected: () => this.#outbox.retry(),
      onConnection: (connection, problem) => this.#setConnection(connection, problem),
    });
  }

  get #startKey() {
    return `turnkeeper:start:${this.id}`;
  }

  /** Read the newest turns, trying until that works, then follow the session's events. */
  async open() {
    if (!isSessionId(this.id)) {
      this.#setConnection("unknown", new GatewayError(404, "no-session-id", ""));
      return;
    }
    this.#outbox.restore();
    while (this.#isOpen) {
      try {
        await this.#ensureStarted();
        this.manager.begin(await gateway.readNewest(this.id, PAGE_TURNS));
        break;
      } catch (error) {
        if (!(error instanceof GatewayError)) throw error;
        if (!this.#isOpen) return;
        if (this.#start && !error.isTemporary) {
          this.#discardUnstarted(error);
          return;
        }
        this.#setConnection(error.status === 404 ? "unknown" : "away", error);
        if (!error.isTemporary) return;
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
    if (!this.#isOpen) return;
    this.#listener.onBegin();
    this.#onOutboxChange();
    void this.refreshDescription();
    void this.refreshContext();
    void this.#refreshApprovals();
    this.#events.open();
  }

  close() {
    this.#isOpen = false;
    clearTimeout(this.#silence);
    this.#events.close();
  }

  // ---- state

  /** The prompts that have not started, in their order. @returns {Waiting[]} */
  get waiting() {
    const queued = this.manager.queue.filter(({ id }) => !this.#hasBegun(id));
    const queuedIds = new Set(queued.map(({ id }) => id));
    const outgoing = this.#outbox.entries.filter(({ id }) => !queuedIds.has(id) && !this.#hasBegun(id));
    const isQueued = { status: /** @type {const} */ ("queued"), problem: null, isTemporary: false };
    return [
      ...queued.map(({ id, text, mode, attachments = [] }) => ({ id, text, mode, attachments, ...isQueued })),
      ...outgoing.map(({ status, ...prompt }) => (status === "accepted" ? { ...prompt, ...isQueued } : { ...prompt, status })),
    ];
  }

  /** @returns {string | null} null while it is unknown */
  get startedAt() {
    return this.description?.created_at ?? (this.isNew ? this.#openedAt : null);
  }

  /** The calls that need a decision now. @returns {ToolCall[]} */
  get questions() {
    const last = this.manager.current?.reasoning_trajectory?.steps.at(-1);
    const calls = this.manager.state.status === "awaiting_approval" && last?.kind === "model" ? last.tool_calls : [];
    return calls.filter(({ approval, result }) => approval && !approval.decision && !result);
  }

  /** The text of the newest prompt, waiting or not. @returns {string} */
  get lastPrompt() {
    return this.waiting.at(-1)?.text ?? this.manager.turns.at(-1)?.user_message ?? "";
  }

  // ---- actions

  /** @param {string} text @param {PromptMode} mode @param {PromptFile[]} [attachments] */
  send(text, mode, attachments = []) {
    this.#outbox.send(text, mode, attachments);
  }

  /** Send all failed prompts again: a single one would lose its place. */
  resend() {
    this.#outbox.retry();
  }

  /** @param {string} id of a waiting prompt */
  async withdraw(id) {
    const isUnsent = this.#outbox.entries.some((entry) => entry.id === id && entry.status === "failed");
    if (!isUnsent && !(await this.#attempt(gateway.withdraw(this.id, id)))) return;
    this.manager.applyQueue({ waiting: this.manager.queue.filter((prompt) => prompt.id !== id) });
    this.#outbox.remove((entry) => entry.id === id);
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

  /** Start a session with the turns up to this one, and show it. @param {Turn} turn @returns {Promise<boolean>} */
  async fork(turn) {
    const id = newId();
    const isDone = await this.#attempt(gateway.forkSession(this.id, { id, turn: turn.id }));
    if (isDone) location.assign(`/?session=${id}`);
    return isDone;
  }

  /**
   * @param {PendingApproval} pending a call of this session or of a task @param {Decision} decision
   * @param {string} [reason] @returns {Promise<boolean>}
   */
  async decide({ workflow_id, call_id, args_digest }, decision, reason) {
    const sessionId = workflow_id ?? this.id;
    const body = { args_digest, decision, ...(reason ? { reason } : {}) };
    const isDone = await this.#attempt(gateway.decide(sessionId, call_id, body));
    if (isDone && sessionId !== this.id) await this.#refreshApprovals();
    return isDone;
  }

  /** The calls of the session's tasks that need a decision. @returns {PendingApproval[]} */
  get taskApprovals() {
    return this.approvals.filter(({ workflow_id }) => workflow_id && workflow_id !== this.id);
  }

  /** What is decided on in a call of this session, once it is known. @param {string} callId */
  approvalOf(callId) {
    return this.approvals.find(({ workflow_id, call_id }) => workflow_id === this.id && call_id === callId);
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

  /** Load one more page of older turns. */
  async loadOlder() {
    const first = this.manager.turns[0];
    if (first) this.manager.prepend(await gateway.readBefore(this.id, first.id, PAGE_TURNS));
  }

  async refreshDescription() {
    const read = ++this.#reads.description;
    const description = await gateway.describe(this.id).catch(() => null);
    if (!description || !this.#isOpen || read !== this.#reads.description) return;
    this.description = description;
    this.#listener.onState();
  }

  async refreshContext() {
    const read = ++this.#reads.context;
    const context = await gateway.readContext(this.id, MAX_CONTEXT_TURNS).catch(() => null);
    if (!context || !this.#isOpen || read !== this.#reads.context) return;
    this.context = context;
    this.#listener.onContext();
  }

  /** @param {Promise<unknown>} action @returns {Promise<boolean>} false if it failed and a message is shown */
  async #attempt(action) {
    try {
      await action;
    } catch (error) {
      if (!(error instanceof GatewayError)) throw error;
      if (!HARMLESS_CONFLICTS.includes(error.type)) {
        this.#listener.onFailure(error.message);
        return false;
      }
    }
    return true;
  }

  // ---- starting and sending

  /** Start the session if it is new. The same id is used again after an error, so it is started once. */
  #ensureStarted() {
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

  /** The session can't be started: return what was written for it. @param {GatewayError} error */
  #discardUnstarted(error) {
    const text = this.#outbox.entries.map((entry) => entry.text).join("\n\n");
    const attachments = this.#outbox.entries.flatMap((entry) => entry.attachments);
    const { model = "", agent = null } = this.#start ?? {};
    this.close();
    this.#outbox.discard();
    sessionStorage.removeItem(this.#startKey);
    this.#listener.onStartFailed({ text, model, agent, attachments }, error.message);
  }

  /** Upload the files of a prompt that are not stored yet, then send it. @param {Outgoing} prompt */
  async #sendPrompt(prompt) {
    await this.#ensureStarted();
    const attachments = [];
    for (const [index, file] of prompt.attachments.entries()) {
      const uploaded = isUnsent(file) ? await gateway.uploadFile(this.id, file, await mediaTypeOf(file)) : file;
      prompt.attachments[index] = uploaded; // after an error, it is not uploaded again
      attachments.push(uploaded);
    }
    await gateway.sendPrompt(this.id, { ...prompt, attachments });
  }

  #onOutboxChange() {
    this.#outbox.remove(({ id }) => this.#hasBegun(id));
    this.#watchForSilence();
    this.#listener.onState();
  }

  /** @param {string} id @returns {boolean} whether the prompt became a turn, or joined one */
  #hasBegun(id) {
    if (this.manager.turn(id)) return true;
    const steps = this.manager.turns.at(-1)?.reasoning_trajectory?.steps ?? [];
    return steps.some((step) => step.kind === "user" && step.message_id === id);
  }

  // ---- events

  /** @param {import("./wire.js").ConversationUpdate} update */
  #applyUpdate(update) {
    const change = this.manager.applyUpdate(update);
    void this.#refreshApprovals();
    this.#listener.onTurns(change);
    this.#onOutboxChange();
    void this.#checkFates();
    if ([...change.added, ...change.updated].some((turn) => turn.is_complete)) {
      void this.refreshDescription();
      void this.refreshContext();
    }
  }

  /** @param {import("./wire.js").WaitingPrompts} queue */
  #applyQueue(queue) {
    this.manager.applyQueue(queue);
    this.#onOutboxChange();
    void this.#checkFates();
  }

  /** @param {import("./wire.js").PartialGrowth} growth */
  #applyPartial(growth) {
    const isFresh = this.manager.applyPartial(growth);
    this.#watchForSilence();
    this.#listener.onPartial(isFresh);
  }

  /** @param {Connection} connection @param {GatewayError | null} problem */
  #setConnection(connection, problem) {
    const hasChanged = connection !== this.connection || problem?.type !== this.problem?.type;
    this.connection = connection;
    this.problem = problem;
    if (hasChanged) this.#listener.onState();
  }

  /**
   * Read the fates of accepted prompts that are neither queued nor in a turn: they were withdrawn in another tab,
   * discarded with the session's end, or rejected.
   */
  async #checkFates() {
    const missing = () => {
      const queued = new Set(this.manager.queue.map(({ id }) => id));
      return this.#outbox.entries.filter(({ id, status }) => status === "accepted" && !queued.has(id));
    };
    if (this.#isCheckingFates || !missing().length) return;
    this.#isCheckingFates = true;
    const { fates } = await gateway.readQueue(this.id).catch(() => ({ fates: [] }));
    this.#isCheckingFates = false;
    for (const { id } of missing()) {
      const fate = fates.find((fate) => fate.id === id);
      if (fate?.fate === "rejected") this.#outbox.reject(id, fate.reason ?? TEXTS.rejectedPrompt);
      else if (fate?.fate === "withdrawn" || fate?.fate === "discarded") this.#outbox.remove((entry) => entry.id === id);
    }
    this.#listener.onState();
  }

  /** Read what needs a decision, if anything does; on failure, again soon. */
  async #refreshApprovals() {
    const waits = this.questions.length || this.manager.tasks.some(({ status }) => status === "input_required");
    if (!waits && !this.approvals.length) return;
    const read = ++this.#reads.approvals;
    const known = waits ? await gateway.readApprovals(this.id).catch(() => null) : { approvals: [] };
    if (read !== this.#reads.approvals || !this.#isOpen) return;
    if (!known) {
      setTimeout(() => this.#isOpen && read === this.#reads.approvals && void this.#refreshApprovals(), RETRY_MS);
      return;
    }
    this.approvals = known.approvals;
    const running = this.manager.turns.at(-1);
    if (running) this.#listener.onTurns({ reset: false, added: [], updated: [running] });
    this.#listener.onState();
  }

  /** Whether events are expected. */
  get #isBusy() {
    const hasWork = this.manager.state.is_processing || this.waiting.some(({ status }) => status === "queued");
    return hasWork && !isClosed(this.manager.state.status);
  }

  /** While events are expected but none arrive, check the session every few seconds: the stream may be dead. */
  #watchForSilence() {
    clearTimeout(this.#silence);
    if (!this.#isBusy || !this.#isOpen) return;
    this.#silence = setTimeout(() => void this.#checkSilentSession(), SILENCE_MS);
  }

  async #checkSilentSession() {
    if (document.visibilityState === "visible" && this.connection === "live") {
      try {
        this.description = await gateway.describe(this.id);
        this.problem = null;
        if (!["stuck", this.manager.state.status].includes(this.description.status)) this.#events.reopen();
      } catch (error) {
        if (!(error instanceof GatewayError)) throw error;
        this.problem = error;
        this.#events.reopen();
      }
      this.#listener.onState();
    }
    this.#watchForSilence();
  }
}
