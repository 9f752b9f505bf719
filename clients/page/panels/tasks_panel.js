/**
 * The session's tasks, above the composer: how far each is, and the calls in them that need a decision.
 *
 * Finished tasks are shown while others are running; later, only the log has them.
 *
 * @import {Conversation} from "../conversation/conversation.js"
 * @import {PendingApproval, SubTask} from "../conversation/wire.js"
 */

import { arrange, byId, h, setText } from "../dom.js";
import { readArguments, readBlob } from "../conversation/gateway.js";
import { ToolCard } from "../turns/tool_card.js";
import { TASK_STATES, TEXTS, tasksTitle } from "../words.js";

export class TasksPanel {
  #panel = byId("tasks-panel", HTMLElement);
  #title = byId("tasks-title", HTMLElement);
  #list = byId("tasks-list", HTMLElement);
  /** @type {Map<string, HTMLElement>} rows of tasks, and of calls that need a decision */
  #rows = new Map();
  /** @type {Conversation | null} */
  #conversation = null;

  /** @param {Conversation | null} conversation */
  show(conversation) {
    if (conversation !== this.#conversation) this.#rows.clear();
    this.#conversation = conversation;
    const tasks = conversation?.manager.tasks ?? [];
    this.#panel.hidden = !tasks.some(({ status }) => status === "working" || status === "input_required");
    if (this.#panel.hidden || !conversation) {
      this.#rows.clear();
      this.#list.replaceChildren();
      return;
    }
    setText(this.#title, tasksTitle(tasks));
    const questions = conversation.taskApprovals.map((pending) => this.#question(conversation, pending));
    arrange(this.#list, [...questions, ...tasks.map((task) => this.#task(task))]);
  }

  /** @param {SubTask} task @returns {HTMLElement} */
  #task(task) {
    const row = this.#row(task.task_id, () => h("li", { class: "row", "data-task": task.task_id }));
    const href = `/?session=${encodeURIComponent(task.task_id)}`;
    const key = JSON.stringify(task);
    if (row.dataset.key === key) return row;
    row.dataset.key = key;
    row.dataset.status = task.status;
    row.replaceChildren(
      // Isolated: no character in the title turns the words beside it around.
      h("a", { class: "one-line", dir: "auto", href, title: TEXTS.openTask }, task.title),
      h("span", { class: "quiet" }, progressOf(task)),
    );
    return row;
  }

  /** @param {Conversation} conversation @param {PendingApproval} pending @returns {HTMLElement} */
  #question(conversation, pending) {
    return this.#row(`${pending.workflow_id} ${pending.call_id} ${pending.args_digest}`, () => {
      const { tool: name, args_blob, args_digest, expires_at, call_id: id } = pending;
      const approval = { args_digest, expires_at, decision: null, reason: null, decided_at: null };
      const task = pending.workflow_id ?? conversation.id;
      const card = new ToolCard({
        decide: (call, decision, reason) => conversation.decide(call, decision, reason),
        approvalOf: () => pending,
        readBlob: (hash) => readBlob(task, hash),
        readArguments: (hash) => readArguments(task, hash),
      });
      card.show({ id, name, legible_args: null, args_blob, approval, result: null }, true);
      return h("li", {}, card.element);
    });
  }

  /** @param {string} key @param {() => HTMLElement} make @returns {HTMLElement} */
  #row(key, make) {
    const row = this.#rows.get(key) ?? make();
    this.#rows.set(key, row);
    return row;
  }
}

/** @param {SubTask} task @returns {string} */
function progressOf({ status, percent, message }) {
  return [TASK_STATES[status], percent === null ? "" : `${percent} %`, message ?? ""].filter(Boolean).join(" · ");
}
