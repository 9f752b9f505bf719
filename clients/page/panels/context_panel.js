/**
 * What the model still remembers of the conversation (CTX-8): as it is, in part, in a summary, or not at all.
 *
 * @import {ContextView, TurnInContext} from "../conversation/wire.js"
 */

import { byId, h } from "../dom.js";
import { Prose } from "../text/prose.js";
import { seenWords, tokens } from "../words.js";

const LABELS = {
  verbatim: "in full",
  truncated: "partly",
  summarised: "in the summary",
  refused: "left out",
  not_at_all: "not sent any more",
};

export class ContextPanel {
  #dialog = byId("context-dialog", HTMLDialogElement);
  #body = byId("context-body", HTMLElement);

  constructor() {
    byId("context-close", HTMLButtonElement).addEventListener("click", () => this.#dialog.close());
  }

  open() {
    this.#dialog.showModal();
  }

  close() {
    this.#dialog.close();
  }

  /**
   * @param {ContextView | null} context
   * @param {(turnId: string) => string} promptOf what was asked in a turn, if known
   */
  show(context, promptOf) {
    const parts = context?.turns.length ? partsOf(context, promptOf) : [h("p", {}, "Nothing has been said yet.")];
    this.#body.replaceChildren(...parts);
  }
}

/** @param {ContextView} context @param {(turnId: string) => string} promptOf @returns {HTMLElement[]} */
function partsOf(context, promptOf) {
  const counted = context.reported_tokens ?? context.estimated_tokens;
  const word = context.reported_tokens === null ? "about " : "";
  const cap = context.max_messages ? ` of up to ${context.max_messages}` : "";
  return [
    h(
      "p",
      {},
      `The model currently sees ${word}${tokens(counted)}: ${context.message_count}${cap} messages, its instructions `,
      `and ${context.fixed.tools.length} tools.`,
    ),
    ...(context.max_tokens
      ? [h("p", { class: "quiet" }, `An earlier request was too long for it: at most ${tokens(context.max_tokens)} are sent now.`)]
      : []),
    ...(context.summary ? [summaryOf(context.summary)] : []),
    h("h3", {}, "Turn by turn"),
    h("ol", { class: "turns-in-context" }, ...[...context.turns].reverse().map((turn) => rowOf(turn, promptOf))),
    ...(context.has_more ? [h("p", { class: "quiet" }, "Older turns are not listed.")] : []),
  ];
}

/** @param {NonNullable<ContextView["summary"]>} summary @returns {HTMLElement} */
function summaryOf({ text, turns, estimated_tokens }) {
  const prose = new Prose();
  prose.show(text);
  const of = turns.map(([first, last]) => (first === last ? `${first}` : `${first} to ${last}`)).join(", ");
  return h(
    "section",
    { class: "summary" },
    h("h3", {}, of ? `Summary of turns ${of}` : "Summary"),
    prose.element,
    h("p", { class: "quiet" }, `about ${tokens(estimated_tokens)}`),
  );
}

/** @param {TurnInContext} turn @param {(turnId: string) => string} promptOf @returns {HTMLElement} */
function rowOf({ number, message_id, seen, estimated_tokens }, promptOf) {
  return h(
    "li",
    { "data-seen": seen, title: seenWords(seen) },
    h("span", { class: "turn-number" }, String(number)),
    h("span", { class: "turn-prompt" }, message_id ? promptOf(message_id) : ""),
    h("span", { class: "turn-seen" }, LABELS[seen]),
    h("span", { class: "turn-tokens quiet" }, estimated_tokens ? tokens(estimated_tokens) : ""),
  );
}
