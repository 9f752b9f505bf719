/**
 * A client's copy of a conversation, updated by the rules of SES-12.
 *
 * It has the transcript's newest turns, without gaps. An update replaces changed turns and appends new ones; with
 * `reset`, it first drops all turns. Partial output and the queue are separate. This class knows neither the network nor
 * the page: each method applies data and returns what has changed.
 *
 * @import {ConversationUpdate, FullConversation, GrownPart, PartialGrowth, QueuedPrompt, SessionState, SubTask, Turn,
 *   WaitingPrompts} from "./wire.js"
 */

/** @typedef {Omit<GrownPart, "index">} PartialPart */
/** @typedef {Omit<PartialGrowth, "fresh" | "parts">} AnswerTag Identifies one attempt at one step. */
/** @typedef {AnswerTag & {parts: PartialPart[]}} PartialOutput */
/** @typedef {{reset: boolean, added: Turn[], updated: Turn[]}} Change The turns to render again. */

/** @type {SessionState} */
const UNKNOWN = {
  is_processing: false,
  current_message_id: null,
  revision: 0,
  status: "idle",
  waiting_until: null,
  waiting_reason: null,
  queue_length: 0,
  archive_time: null,
};

export class ConversationManager {
  /** @type {Map<string, Turn>} oldest first */
  #turns = new Map();
  /** @type {PartialOutput | null} */
  #partial = null;
  /** @type {string | null} */
  #lastSeen = null;
  /** @type {number | null} */
  #revision = null;

  constructor() {
    /** The session's state as of the last update. */
    this.state = UNKNOWN;
    /** The waiting prompts, in their order. @type {QueuedPrompt[]} */
    this.queue = [];
    /** The tasks that the session has started, oldest first. @type {SubTask[]} */
    this.tasks = [];
    /** The session that this one is a task of. @type {string | null} */
    this.parent = null;
    /** Whether there may be turns before the first one here. */
    this.hasOlder = false;
  }

  /** Oldest first. @returns {Turn[]} */
  get turns() {
    return [...this.#turns.values()];
  }

  /** @param {string} id @returns {Turn | undefined} */
  turn(id) {
    return this.#turns.get(id);
  }

  /** The running turn, if it is here. @returns {Turn | undefined} */
  get current() {
    return this.state.current_message_id === null ? undefined : this.#turns.get(this.state.current_message_id);
  }

  /** The parameters of a request for what is new. */
  get cursor() {
    return { last_seen_message_id: this.#lastSeen, since_revision: this.#revision };
  }

  /** The partial output of the running step; null if there is none, or if the step is complete. */
  get partial() {
    const turn = this.current;
    const partial = this.#partial;
    if (!turn || !partial || turn.is_complete || partial.message_id !== turn.id) return null;
    return partial.step > lastStepOf(turn) ? partial : null;
  }

  /** Start from the newest page of the transcript. @param {FullConversation} page */
  begin(page) {
    this.#turns = new Map(page.messages.map((turn) => [turn.id, turn]));
    this.#partial = null;
    this.#lastSeen = page.messages.at(-1)?.id ?? null;
    this.#revision = page.revision;
    this.hasOlder = page.has_more;
    this.state = stateOf(page);
    this.tasks = page.session.tasks;
    this.parent = page.session.task?.parent ?? null;
  }

  /** Add a page of older turns. @param {FullConversation} page */
  prepend(page) {
    const older = page.messages.filter((turn) => !this.#turns.has(turn.id));
    this.#turns = new Map([...older.map((turn) => /** @type {const} */ ([turn.id, turn])), ...this.#turns]);
    this.hasOlder = page.has_more;
  }

  /** @param {ConversationUpdate} update @returns {Change} */
  applyUpdate(update) {
    if (update.reset) {
      this.#turns.clear();
      this.#partial = null;
      this.hasOlder = true; // the archive may have some
    }
    const updated = update.updated_messages.filter((turn) => this.#turns.has(turn.id));
    for (const turn of updated) this.#turns.set(turn.id, turn);
    const again = update.new_messages.filter((turn) => this.#turns.has(turn.id));
    const added = update.new_messages.filter((turn) => !this.#turns.has(turn.id));
    for (const turn of update.new_messages) this.#turns.set(turn.id, turn);
    this.#lastSeen = update.last_seen_message_id;
    this.#revision = update.revision;
    this.state = stateOf(update);
    this.tasks = update.tasks;
    if (!update.queue_length) this.queue = []; // no queue event follows for an empty queue
    return { reset: update.reset, added, updated: [...updated, ...again] };
  }

  /** @param {WaitingPrompts} prompts */
  applyQueue({ waiting }) {
    this.queue = waiting;
  }

  /**
   * Apply partial output. Returns true if all of it has to be rendered again, else only the parts in `growth` have grown.
   * @param {PartialGrowth} growth @returns {boolean}
   */
  applyPartial({ fresh, parts, ...tag }) {
    if (fresh) this.#partial = { ...tag, parts: [] };
    if (!this.#partial || !isSameAnswer(this.#partial, tag)) return false;
    for (const grown of parts) append(this.#partial.parts, grown);
    return fresh;
  }
}

/** The number of a turn's newest model step; 0 before the first. @param {Turn} turn @returns {number} */
function lastStepOf(turn) {
  const steps = turn.reasoning_trajectory?.steps ?? [];
  return steps.reduce((last, step) => (step.kind === "model" ? Math.max(last, step.number) : last), 0);
}

/** @param {SessionState} state @returns {SessionState} */
function stateOf(state) {
  const { is_processing, current_message_id, revision, status, waiting_until, waiting_reason, queue_length } = state;
  const archive_time = state.archive_time ?? null;
  return { is_processing, current_message_id, revision, status, waiting_until, waiting_reason, queue_length, archive_time };
}

/** @param {PartialPart[]} parts @param {GrownPart} grown */
function append(parts, { index, kind, text, omitted }) {
  const part = parts[index];
  if (part) part.text += text;
  else parts[index] = { kind, text, omitted };
}

/** @param {AnswerTag} one @param {AnswerTag} other */
function isSameAnswer(one, other) {
  const names = /** @type {const} */ (["message_id", "step", "request", "attempt"]);
  return names.every((name) => one[name] === other[name]);
}
