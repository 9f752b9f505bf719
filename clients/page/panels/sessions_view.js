/**
 * The list of sessions, the latest activity first, by days. It is a moment behind.
 *
 * It is refreshed when the page becomes visible, after actions, and every 20 s.
 *
 * @import {ListedSession} from "../conversation/wire.js"
 */

import { arrange, byId, h, setText } from "../dom.js";
import { GatewayError, listSessions } from "../conversation/gateway.js";
import { TEXTS, ago, dayGroup, statusLabel, turnsAndCost } from "../words.js";

const REFRESH_MS = 20_000;
const TYPING_MS = 250;
/** After an action, the list is refreshed this much later, since it is a moment behind. */
const LAG_MS = [300, 1_500];
/** What a gateway without the feature `listing` answers: it has no such route, or only `POST`. */
const NO_LISTS = [404, 405];

/**
 * @typedef {{workflow_id: string, title: string | null, status: string, started_at: string}} OpenSession `started_at`:
 *   empty while it is unknown
 * @typedef {OpenSession & Partial<Omit<ListedSession, keyof OpenSession>>} Entry
 */

export class SessionsView {
  #list = byId("sessions", HTMLElement);
  #search = byId("search", HTMLInputElement);
  #status = byId("status-filter", HTMLSelectElement);
  #more = byId("more-sessions", HTMLButtonElement);
  #note = byId("sessions-note", HTMLElement);
  /** @type {Entry[]} */
  #sessions = [];
  /** @type {string | null} */
  #next = null;
  #pages = 1;
  #reads = 0;
  /**
   * How the last read went; `none`: the gateway is without the feature that lists sessions.
   *
   * @type {"reading" | "read" | "failed" | "none"}
   */
  #state = "reading";
  /** @type {OpenSession | null} */
  #open = null;
  /** @type {Map<string, HTMLElement>} */
  #rows = new Map();
  /** The headings of days. @type {Map<string, HTMLElement>} */
  #groups = new Map();

  constructor() {
    /** @type {number | undefined} */
    let typing;
    this.#search.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => void this.#readFromStart(), TYPING_MS);
    });
    this.#status.addEventListener("change", () => void this.#readFromStart());
    this.#more.addEventListener("click", () => {
      this.#pages += 1;
      void this.#read();
    });
    document.addEventListener("visibilitychange", () => void this.refresh());
    window.addEventListener("focus", () => void this.refresh());
    setInterval(() => void this.refresh(), REFRESH_MS);
  }

  /** Mark the open session; its own state is newer than the list's. @param {OpenSession | null} open */
  showOpen(open) {
    this.#open = open;
    this.#show();
  }

  /** Read the list again if the page is visible. */
  async refresh() {
    if (document.visibilityState === "visible" && this.#state !== "none") await this.#read();
  }

  /** Read the list again once it can show the last action. */
  refreshSoon() {
    for (const ms of LAG_MS) setTimeout(() => void this.refresh(), ms);
  }

  async #readFromStart() {
    this.#pages = 1;
    await this.#read();
  }

  async #read() {
    const read = ++this.#reads;
    try {
      /** @type {Entry[]} */
      const sessions = [];
      /** @type {string | null} */
      let cursor = null;
      for (let page = 0; page < this.#pages; page++) {
        const answer = await listSessions({ q: this.#search.value.trim(), status: this.#status.value, cursor });
        if (read !== this.#reads) return;
        sessions.push(...answer.sessions);
        cursor = answer.next_cursor;
        if (!cursor) break;
      }
      [this.#sessions, this.#next, this.#state] = [sessions, cursor, "read"];
      this.#show();
    } catch (error) {
      if (!(error instanceof GatewayError)) throw error;
      if (read !== this.#reads) return;
      this.#state = NO_LISTS.includes(error.status) ? "none" : "failed";
      this.#show();
    }
  }

  #show() {
    const isFiltered = Boolean(this.#search.value.trim() || this.#status.value);
    const isListed = this.#sessions.some((session) => session.workflow_id === this.#open?.workflow_id);
    const sessions = [...this.#sessions];
    // If the open session is on a later page, insert it by its start.
    if (this.#open?.started_at && !isListed && !isFiltered) insert(sessions, this.#open);
    arrange(this.#list, this.#grouped(sessions));
    this.#more.hidden = !this.#next;
    this.#search.hidden = this.#status.hidden = this.#state === "none";
    setText(this.#note, this.#noteWords(sessions.length > 0, isFiltered));
  }

  /** @param {boolean} hasSessions @param {boolean} isFiltered @returns {string} */
  #noteWords(hasSessions, isFiltered) {
    if (this.#state === "none") return TEXTS.sessionsNotListed;
    if (this.#state === "failed") return TEXTS.sessionsFailed;
    if (hasSessions || this.#state === "reading") return "";
    if (!isFiltered) return TEXTS.noSessions;
    const isAsking = this.#status.value === "awaiting_approval" && !this.#search.value.trim();
    return isAsking ? TEXTS.nothingAwaitsApproval : TEXTS.noMatchingSessions;
  }

  /** The rows, with a heading before the first one of a day. @param {Entry[]} sessions @returns {HTMLElement[]} */
  #grouped(sessions) {
    /** @type {Set<string>} */
    const groups = new Set();
    return sessions.flatMap((session) => {
      const row = this.#row(session);
      const group = dayGroup(activityOf(session));
      if (groups.has(group)) return [row];
      groups.add(group);
      const heading = this.#groups.get(group) ?? h("li", { class: "group fine" }, group);
      this.#groups.set(group, heading);
      return [heading, row];
    });
  }

  /** @param {Entry} session @returns {HTMLElement} */
  #row(session) {
    const id = session.workflow_id;
    const isOpen = id === this.#open?.workflow_id;
    const title = (isOpen && this.#open?.title) || session.title || id;
    const status = (isOpen && this.#open?.status) || session.status;
    const row = this.#rows.get(id) ?? h("li", {}, linkTo(id));
    this.#rows.set(id, row);
    const link = /** @type {HTMLAnchorElement} */ (row.firstElementChild);
    if (isOpen) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    link.dataset.status = status;
    const [titleLine, previewLine, stateLine] = /** @type {HTMLElement[]} */ ([...link.children]);
    setText(titleLine, title);
    link.title = title;
    // The first prompt of a session is its title too.
    const preview = session.preview && !session.preview.startsWith(title.replace(/…$/, "")) ? session.preview : "";
    setText(previewLine, preview);
    previewLine.hidden = !preview;
    const facts = session.turn_count ? ` · ${turnsAndCost(session.turn_count, session.cost)}` : "";
    setText(stateLine, `${statusLabel(status)} · ${ago(activityOf(session))}${facts}`);
    return row;
  }
}

/** @param {string} id @returns {HTMLAnchorElement} */
function linkTo(id) {
  return h(
    "a",
    { href: `/?session=${encodeURIComponent(id)}` },
    h("span", { class: "one-line", dir: "auto" }),
    h("span", { class: "one-line quiet preview", dir: "auto" }),
    h("span", { class: "fine" }),
  );
}

/** When a session was last active, as far as the list knows. @param {Entry} session @returns {string} */
function activityOf(session) {
  return session.last_activity_at ?? session.closed_at ?? session.started_at;
}

/**
 * Insert a session before those that were active earlier.
 * @param {Entry[]} sessions @param {Entry} session
 */
function insert(sessions, session) {
  const at = new Date(activityOf(session));
  const place = sessions.findIndex((other) => new Date(activityOf(other)) < at);
  sessions.splice(place < 0 ? sessions.length : place, 0, session);
}
