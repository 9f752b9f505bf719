/**
 * One line that says how things stand, the only place of the page that is read aloud by itself. Seconds run beside it,
 * unspoken.
 *
 * @import {Conversation} from "./conversation.js"
 */

import { byId, setText } from "./dom.js";
import { duration, isClosed, statusWords } from "./words.js";

const FAILURE_MS = 8_000;

/** What is wrong, in words of our own where we have better ones than the answer's. */
const PROBLEMS = {
  unreachable: "The gateway can't be reached. Trying again; what was accepted is safe and goes on",
  "temporal-unreachable": "Temporal can't be reached. Trying again; what was accepted is safe",
  "no-worker": "No worker answers now. What was accepted is safe and goes on when one is back",
  "session-stuck": "This session is stuck: a step of it keeps failing. Nothing is lost; it goes on once that is mended",
  "unknown-session": "There is no such session, or no longer",
};

export class StateLine {
  #line = byId("state", HTMLElement);
  #words = byId("state-words", HTMLElement);
  #seconds = byId("state-seconds", HTMLElement);
  #failure = "";
  /** @type {number | undefined} */
  #failureTimer;
  /** @type {Conversation | null} */
  #conversation = null;

  constructor() {
    setInterval(() => this.#showSeconds(), 1_000);
  }

  /** @param {Conversation | null} conversation */
  show(conversation) {
    if (conversation !== this.#conversation) this.#failure = "";
    this.#conversation = conversation;
    const { kind, words } = this.#stateOf(conversation);
    this.#line.dataset.kind = kind;
    setText(this.#words, words);
    this.#showSeconds();
  }

  /** Say for a while that something was not done. @param {string} words */
  fail(words) {
    this.#failure = words;
    clearTimeout(this.#failureTimer);
    this.#failureTimer = setTimeout(() => {
      this.#failure = "";
      this.show(this.#conversation);
    }, FAILURE_MS);
    this.show(this.#conversation);
  }

  /** @param {Conversation | null} conversation @returns {{kind: string, words: string}} */
  #stateOf(conversation) {
    if (this.#failure) return { kind: "problem", words: this.#failure };
    if (!conversation) return { kind: "idle", words: "" };
    const { connection, problem, manager, description } = conversation;
    const status = description?.status === "stuck" && problem === null ? "stuck" : manager.state.status;
    if (problem)
      return {
        kind: "problem",
        words: PROBLEMS[/** @type {keyof typeof PROBLEMS} */ (problem.type)] ?? problem.message,
      };
    if (connection === "connecting") return { kind: "busy", words: "Connecting" };
    if (connection === "away") return { kind: "problem", words: "The connection was cut. Reconnecting" };
    if (isClosed(status)) return { kind: "closed", words: statusWords({ ...manager.state, status }) };
    return { kind: kindOf(status), words: statusWords({ ...manager.state, status }) };
  }

  #showSeconds() {
    const turn = this.#conversation?.manager.current;
    const isCounting = turn && this.#line.dataset.kind === "busy" && this.#conversation?.manager.state.is_processing;
    const ms = isCounting ? Date.now() - new Date(turn.timestamp).getTime() : 0;
    setText(this.#seconds, ms >= 1_000 ? duration(Math.floor(ms / 1_000) * 1_000).replace(".0", "") : "");
  }
}

/** @param {import("./wire.js").SessionStatus} status */
function kindOf(status) {
  if (status === "processing") return "busy";
  if (status === "idle") return "idle";
  return status === "stuck" ? "problem" : "waiting";
}
