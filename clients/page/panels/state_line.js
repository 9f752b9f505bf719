/**
 * One line that says how things stand: beside the notices, all of the page that is read aloud by itself. Seconds run
 * beside it, unspoken.
 *
 * @import {Conversation} from "../conversation/conversation.js"
 */

import { byId, setText } from "../dom.js";
import { STUCK, countdown, duration, isClosed, statusWords } from "../words.js";

/** What is wrong, in words of our own where we have better ones than the answer's. */
const PROBLEMS = {
  unreachable: "Can't reach the server. Reconnecting… Everything you sent is safe.",
  "temporal-unreachable": "The server can't reach Temporal. Reconnecting… Everything you sent is safe.",
  "no-worker": "No worker is answering. Everything you sent is saved, and continues when one is back.",
  "session-stuck": STUCK,
  "unknown-session": "This session doesn't exist or was deleted.",
  "no-session-id": "This session doesn't exist: the address holds no session's id.",
};

export class StateLine {
  #line = byId("state", HTMLElement);
  #words = byId("state-words", HTMLElement);
  #seconds = byId("state-seconds", HTMLElement);
  #action = byId("state-action", HTMLButtonElement);
  /** @type {Conversation | null} */
  #conversation = null;

  /** @param {{onShowQuestion: () => void}} page */
  constructor({ onShowQuestion }) {
    setInterval(() => this.#showSeconds(), 1_000);
    this.#action.addEventListener("click", onShowQuestion);
  }

  /** @param {Conversation | null} conversation */
  show(conversation) {
    this.#conversation = conversation;
    const { kind, words } = this.#stateOf(conversation);
    this.#line.dataset.kind = kind;
    setText(this.#words, words);
    this.#line.classList.toggle("off-screen", conversation?.connection === "unknown"); // the page says it in its middle
    this.#action.hidden = !conversation?.questions.length;
    this.#showSeconds();
  }

  /** @param {Conversation | null} conversation @returns {{kind: string, words: string}} */
  #stateOf(conversation) {
    if (!conversation) return { kind: "idle", words: "" };
    const { connection, problem, manager, description } = conversation;
    const status = description?.status === "stuck" && problem === null ? "stuck" : manager.state.status;
    if (problem)
      return {
        kind: "problem",
        words: PROBLEMS[/** @type {keyof typeof PROBLEMS} */ (problem.type)] ?? problem.message,
      };
    if (connection === "connecting") return { kind: "busy", words: "Connecting…" };
    if (connection === "away") return { kind: "problem", words: "Connection lost. Reconnecting…" };
    return { kind: kindOf(status), words: statusWords({ ...manager.state, status }, conversation.questions.length) };
  }

  #showSeconds() {
    setText(this.#seconds, this.#secondsWords());
  }

  /** How long the turn has been running, or how long until the model is asked again. @returns {string} */
  #secondsWords() {
    const turn = this.#conversation?.manager.current;
    const state = this.#conversation?.manager.state;
    const { kind } = this.#line.dataset;
    if (kind === "waiting" && state?.status === "waiting_retry")
      return state.waiting_until ? countdown(state.waiting_until) : "soon";
    const isCounting = turn && kind === "busy" && state?.is_processing;
    const ms = isCounting ? Date.now() - new Date(turn.timestamp).getTime() : 0;
    return ms >= 1_000 ? duration(Math.floor(ms / 1_000) * 1_000).replace(".0", "") : "";
  }
}

/** @param {import("../conversation/wire.js").SessionStatus} status */
function kindOf(status) {
  if (status === "processing") return "busy";
  if (status === "idle") return "idle";
  if (isClosed(status)) return "closed";
  return status === "stuck" ? "problem" : "waiting";
}
