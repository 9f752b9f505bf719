/**
 * What the model sees of each turn (CTX-8): all, a part, a summary, or nothing.
 *
 * @import {ContextView, SummaryInContext, TurnInContext} from "../conversation/wire.js"
 */

import { byId, h } from "../dom.js";
import { Prose } from "../text/prose.js";
import { SEEN, SEEN_WORDS, TEXTS, absentServer, aboutTokens, contextLimit, contextWords, summaryTitle, tokens } from "../words.js";

export class ContextPanel {
  #dialog = byId("context-dialog", HTMLDialogElement);
  #body = byId("context-body", HTMLElement);

  open() {
    this.#dialog.showModal();
  }

  close() {
    this.#dialog.close();
  }

  /**
   * @param {ContextView | null} context
   * @param {(turnId: string) => string} promptOf the prompt of a turn, or ""
   */
  show(context, promptOf) {
    const parts = context?.turns.length ? partsOf(context, promptOf) : [h("p", {}, TEXTS.nothingInContext)];
    this.#body.replaceChildren(...parts);
  }
}

/** @param {ContextView} context @param {(turnId: string) => string} promptOf @returns {HTMLElement[]} */
function partsOf(context, promptOf) {
  return [
    h("p", {}, contextWords(context)),
    ...(context.max_tokens ? [h("p", { class: "quiet" }, contextLimit(context.max_tokens))] : []),
    ...context.absent_tool_servers.map((absent) => h("p", { class: "quiet" }, absentServer(absent))),
    ...(context.summary ? [summaryOf(context.summary)] : []),
    h("h3", {}, TEXTS.turnByTurn),
    h("ol", { class: "turns-in-context" }, ...[...context.turns].reverse().map((turn) => rowOf(turn, promptOf))),
    ...(context.has_more ? [h("p", { class: "quiet" }, TEXTS.olderNotListed)] : []),
  ];
}

/** @param {SummaryInContext} summary @returns {HTMLElement} */
function summaryOf(summary) {
  const prose = new Prose();
  prose.show(summary.text);
  return h(
    "section",
    { class: "summary box" },
    h("h3", {}, summaryTitle(summary)),
    prose.element,
    h("p", { class: "quiet" }, aboutTokens(summary.estimated_tokens)),
  );
}

/** @param {TurnInContext} turn @param {(turnId: string) => string} promptOf @returns {HTMLElement} */
function rowOf({ number, message_id, seen, estimated_tokens }, promptOf) {
  return h(
    "li",
    { "data-seen": seen, title: SEEN_WORDS[seen] },
    h("span", { class: "quiet numbers" }, String(number)),
    h("span", { class: "one-line", dir: "auto" }, message_id ? promptOf(message_id) : ""),
    h("span", {}, SEEN[seen]),
    h("span", { class: "turn-tokens quiet numbers" }, estimated_tokens ? tokens(estimated_tokens) : ""),
  );
}
