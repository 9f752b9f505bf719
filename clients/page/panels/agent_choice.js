/**
 * On the start page: the agent of a new session, where there is a choice, and for admins, which tools do not work.
 *
 * @import {Agent} from "../conversation/wire.js"
 */

import { TEXTS, toolProblem } from "../words.js";
import { byId, h } from "../dom.js";
import { listAgents } from "../conversation/gateway.js";

/** What the settings say, as the gateway calls it. */
const PLAIN = "default";

export class AgentChoice {
  #row = byId("new-agent-row", HTMLElement);
  #select = byId("new-agent", HTMLSelectElement);
  #problems = byId("tool-problems", HTMLElement);
  #default = PLAIN;
  /** @type {Agent[]} */
  #agents = [];

  /** Read the agents again, since a worker may have brought others; after a failure the earlier ones stay. */
  async refresh() {
    const list = await listAgents().catch(() => null);
    if (!list) return;
    const chosen = this.chosen;
    this.#agents = list.agents;
    this.#default = list.default ?? PLAIN;
    const names = list.agents.map(({ name }) => name);
    if (!names.includes(this.#default)) names.push(this.#default); // `default`, or one of an earlier version
    if (!names.includes(PLAIN)) names.push(PLAIN);
    this.#select.replaceChildren(
      ...names.map((name) => h("option", { value: name }, name === PLAIN ? TEXTS.noAgent : name)),
    );
    this.#select.value = chosen && names.includes(chosen) ? chosen : this.#default;
    this.#row.hidden = names.length < 2;
    const problems = Object.entries(list.tool_problems);
    this.#problems.replaceChildren(...problems.map(([server, problem]) => h("li", {}, toolProblem(server, problem))));
    this.#problems.hidden = !problems.length;
  }

  /** What is to be said of a new session; null: nothing, since it is the usual agent. @returns {string | null} */
  get chosen() {
    const { value } = this.#select;
    return value && value !== this.#default ? value : null;
  }

  /** @param {string | null} agent */
  choose(agent) {
    if (this.#agents.some(({ name }) => name === agent)) this.#select.value = agent ?? "";
  }
}
