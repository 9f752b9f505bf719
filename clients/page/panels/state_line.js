/**
 * The line with the session's state. Screen readers announce it, but not the running seconds beside it.
 *
 * @import {Conversation} from "../conversation/conversation.js"
 */

import { byId, setText } from "../dom.js";
import { TEXTS, asOfWords, countdown, elapsed, isClosed, problemWords, statusWords, taskApprovalWords } from "../words.js";

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
    this.#line.classList.toggle("off-screen", conversation?.connection === "unknown"); // the page shows it in its middle
    this.#action.hidden = !conversation?.questions.length;
    this.#showSeconds();
  }

  /** @param {Conversation | null} conversation @returns {{kind: string, words: string}} */
  #stateOf(conversation) {
    if (!conversation) return { kind: "idle", words: "" };
    const { connection, problem, manager, description } = conversation;
    const status = description?.status === "stuck" && problem === null ? "stuck" : manager.state.status;
    const asOf = manager.state.archive_time;
    if (asOf && (!problem || problem.type === "no-worker")) return { kind: "problem", words: asOfWords(asOf) };
    if (problem) return { kind: "problem", words: problemWords(problem) };
    if (connection === "connecting") return { kind: "busy", words: TEXTS.connecting };
    if (connection === "away") return { kind: "problem", words: TEXTS.connectionLost };
    const taskQuestions = conversation.taskApprovals.length;
    if (taskQuestions && !conversation.questions.length) return { kind: "waiting", words: taskApprovalWords(taskQuestions) };
    return { kind: kindOf(status), words: statusWords({ ...manager.state, status }, conversation.questions.length) };
  }

  #showSeconds() {
    setText(this.#seconds, this.#secondsWords());
  }

  /** How long the turn has been running, or the time until the next try. @returns {string} */
  #secondsWords() {
    const turn = this.#conversation?.manager.current;
    const state = this.#conversation?.manager.state;
    const { kind } = this.#line.dataset;
    if (kind === "waiting" && state?.status === "waiting_retry")
      return countdown(state.waiting_until);
    const isCounting = turn && kind === "busy" && state?.is_processing;
    const ms = isCounting ? Date.now() - new Date(turn.timestamp).getTime() : 0;
    return ms >= 1_000 ? elapsed(ms) : "";
  }
}

/** @param {import("../conversation/wire.js").SessionStatus} status */
function kindOf(status) {
  if (status === "processing") return "busy";
  if (status === "idle") return "idle";
  if (isClosed(status)) return "closed";
  return status === "stuck" ? "problem" : "waiting";
}
