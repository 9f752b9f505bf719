/**
 * Calls of the gateway's public HTTP API.
 *
 * A request without a response may have been processed, so every one of them is safe to repeat: the page chooses the ids
 * of prompts and sessions, and names what it decides or stops.
 *
 * @import {AgentList, Attachment, ContextView, CopyReceipt, Decision, FullConversation, Me, PendingApprovals, PromptMode, QueueView,
 *   SessionDescription, SessionList} from "./wire.js"
 */

import { TEXTS, unexpectedStatus } from "../words.js";

const TIMEOUT_MS = 15_000;
const UPLOAD_TIMEOUT_MS = 60_000;
const MAX_NAME_CHARS = 200;
const CONFIRM_MS = 1_000;
/** Fates of prompts that never run. */
const REFUSED = new Set(["rejected", "discarded", "withdrawn"]);
/** How long a request over a limit is sent again, each time after the time that the gateway names. */
const PATIENCE_MS = 10_000;
/** Between two receipts of a copy. */
const COPY_PAUSE_MS = 300;
const JSON_BODY = { "content-type": "application/json" };

/** The event of the window when a request was refused for want of a valid key. */
export const LOGIN_NEEDED = "turnkeeper:login-needed";

/** A failed request; `status` is 0 if no gateway answered. */
export class GatewayError extends Error {
  /**
   * @param {number} status @param {string} type @param {string} detail @param {number | null} retryAfter seconds
   * @param {boolean} isOverLimit whether the request was over a limit, so that it had no effect
   */
  constructor(status, type, detail, retryAfter = null, isOverLimit = false) {
    super(detail);
    this.status = status;
    this.type = type;
    this.retryAfter = retryAfter;
    this.isOverLimit = isOverLimit;
  }

  /** Whether the same request may succeed later. */
  get isTemporary() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

/** @param {string} sessionId @param {string} [rest] @returns {string} */
const path = (sessionId, rest = "") => `/workflow/${encodeURIComponent(sessionId)}${rest}`;

/** @param {Object<string, string | number | null | undefined>} parameters @returns {string} */
function query(parameters) {
  const entries = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return entries.length ? `?${new URLSearchParams(entries.map(([name, value]) => [name, String(value)]))}` : "";
}

/**
 * @param {string} method @param {string} url @param {unknown} [body] a file, or what is sent as JSON
 * @param {Object<string, string>} [headers] @returns {Promise<Response>}
 * @throws {GatewayError}
 */
async function send(method, url, body, headers = JSON_BODY) {
  const raw = body instanceof File ? body : JSON.stringify(body);
  const content = body === undefined ? {} : { body: raw, headers };
  const timeout = body instanceof File ? UPLOAD_TIMEOUT_MS : TIMEOUT_MS;
  const until = Date.now() + PATIENCE_MS;
  for (;;) {
    const response = await orUnreachable(fetch(url, { method, signal: AbortSignal.timeout(timeout), ...content }));
    if (response.ok) return response;
    const error = await errorOf(response);
    const pause = (error.retryAfter ?? 0) * 1000;
    if (!error.isOverLimit || !pause || Date.now() + pause > until) throw error;
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

/**
 * Await a response or its body, either of which can be lost.
 * @template Answer @param {Promise<Answer>} answer @returns {Promise<Answer>}
 * @throws {GatewayError}
 */
async function orUnreachable(answer) {
  try {
    return await answer;
  } catch {
    throw new GatewayError(0, "unreachable", TEXTS.unreachable);
  }
}

/** @param {Response} response @returns {Promise<GatewayError>} */
async function errorOf(response) {
  if (response.status === 401) dispatchEvent(new Event(LOGIN_NEEDED));
  const problem = await response.json().catch(() => ({}));
  return errorOfProblem({ ...problem, status: response.status }, Number(response.headers.get("retry-after")) || null);
}

/**
 * @param {{status: number, type?: string, detail?: string, limit?: string}} problem @param {number | null} [retryAfter] seconds
 * @returns {GatewayError}
 */
export function errorOfProblem({ status, type, detail, limit }, retryAfter = null) {
  const name = String(type ?? "").replace("urn:turnkeeper:problem:", "");
  return new GatewayError(status, name, detail ?? unexpectedStatus(status), retryAfter, Boolean(limit));
}

/** @param {string} method @param {string} url @param {unknown} [body] @param {Object<string, string>} [headers] */
async function json(method, url, body, headers) {
  return orUnreachable((await send(method, url, body, headers)).json());
}

/** Who the page's login makes one. @returns {Promise<Me>} */
export const readMe = () => json("GET", "/me");

/** Log in with a key, which a cookie holds from then on. @param {string} key @returns {Promise<Me>} */
export const logIn = (key) => json("POST", "/login", { key });

export const logOut = () => send("POST", "/logout");

/**
 * The stream of a session's events after the cursor; null if the session is over.
 * @param {string} sessionId @param {Object<string, string | number | null>} cursor @param {AbortSignal} signal
 * @returns {Promise<ReadableStream<Uint8Array> | null>}
 * @throws {GatewayError}
 */
export async function openEvents(sessionId, cursor, signal) {
  const response = await orUnreachable(fetch(path(sessionId, `/events${query(cursor)}`), { signal, cache: "no-store" }));
  if (!response.ok) throw await errorOf(response);
  return response.status === 204 ? null : response.body;
}

/**
 * @param {{q?: string, status?: string, cursor?: string | null}} filter
 * @returns {Promise<SessionList>}
 */
export const listSessions = (filter) => json("GET", `/workflow${query(filter)}`);

/** Start a session, unless an earlier try did. @param {string} address @param {object} session with the new session's id */
async function startOnce(address, session) {
  try {
    await send("POST", address, session);
  } catch (error) {
    if (!(error instanceof GatewayError && error.type === "session-exists")) throw error;
  }
}

/** @returns {Promise<AgentList>} */
export const listAgents = () => json("GET", "/agents");

/** @param {{id: string, model?: string, agent?: string}} session */
export const startSession = (session) => startOnce("/workflow", session);

/** @param {string} sessionId @returns {Promise<SessionDescription>} */
export const describe = (sessionId) => json("GET", path(sessionId));

/** @param {string} sessionId @param {{title?: string, model?: string}} change */
export const configure = (sessionId, change) => send("PATCH", path(sessionId), change);

/** @param {string} sessionId @param {boolean} discardQueue */
export const endSession = (sessionId, discardQueue) =>
  send("POST", path(sessionId, "/end"), { discard_queue: discardQueue });

/**
 * Send a prompt, and have the session's answer if a worker gives one within a second; the prompt is safe in any case.
 *
 * @param {string} sessionId @param {{id: string, text: string, mode: PromptMode, attachments: Attachment[]}} prompt
 * @throws {GatewayError} also if the session will not run the prompt
 */
export async function sendPrompt(sessionId, { id, text, mode, attachments }) {
  const body = { message: text, id, mode, ...(attachments.length ? { attachments } : {}) };
  await send("POST", path(sessionId, "/prompt"), body);
  const silence = new Promise((resolve) => setTimeout(resolve, CONFIRM_MS, null));
  const fate = await Promise.race([json("GET", path(sessionId, `/queue/${id}`)).catch(() => null), silence]);
  if (fate !== null && REFUSED.has(fate.fate)) throw new GatewayError(409, "", fate.reason ?? TEXTS.promptRefused);
}

/** Store a file's content in the session. @param {string} sessionId @param {File} file @param {string} type @returns {Promise<Attachment>} */
export const uploadFile = (sessionId, file, type) => {
  const name = file.name.slice(-MAX_NAME_CHARS);
  return json("POST", path(sessionId, `/attachments${query({ name })}`), file, { "content-type": type });
};

/** The address of an attachment's content. @param {string} sessionId @param {string} hash @param {string} name */
export const attachmentPath = (sessionId, hash, name) => path(sessionId, `/attachments/${hash}${query({ name })}`);

/** Send a failed turn's prompt again; a repeated call has no effect. @param {string} sessionId @param {string} turnId */
export const retryTurn = (sessionId, turnId) => send("POST", path(sessionId, "/retry"), { message_id: turnId });

/**
 * Fork a session, and wait until the fork is there.
 * @param {string} sessionId @param {{id: string, turn: string}} fork the new session's id, and that of its last turn
 */
export const forkSession = async (sessionId, fork) => copied(await json("POST", path(sessionId, "/fork"), fork));

/** Import an exported session, and wait until it is there. @param {string} sessionId the new session's @param {File} file */
export const importSession = async (sessionId, file) =>
  copied(await json("POST", `/workflow/import${query({ id: sessionId })}`, file));

/** @param {CopyReceipt} receipt @throws {GatewayError} */
async function copied(receipt) {
  while (receipt.status === "running") {
    await new Promise((resolve) => setTimeout(resolve, COPY_PAUSE_MS));
    receipt = await json("GET", path(receipt.workflow_id, "/copy"));
  }
  if (receipt.status === "failed") throw new GatewayError(409, "copy-failed", receipt.reason ?? TEXTS.sessionCopyFailed);
}

/** Where a session is downloaded. @param {string} sessionId @param {"json" | "markdown"} format @returns {string} */
export const exportPath = (sessionId, format) => path(sessionId, `/export${query({ format })}`);

/** @param {string} sessionId @param {string} turnId */
export const stopTurn = (sessionId, turnId) => send("POST", path(sessionId, "/cancel"), { message_id: turnId });

/** @param {string} sessionId @returns {Promise<QueueView>} */
export const readQueue = (sessionId) => json("GET", path(sessionId, "/queue"));

/** @param {string} sessionId @param {string} messageId */
export const withdraw = (sessionId, messageId) =>
  send("DELETE", path(sessionId, `/queue/${encodeURIComponent(messageId)}`));

/**
 * @param {string} sessionId @param {string} callId
 * @param {{args_digest: string, decision: Decision, reason?: string}} decision
 */
export const decide = (sessionId, callId, decision) => send("POST", path(sessionId, `/approvals/${callId}`), decision);

/** What waits for a decision, in the session and in its tasks. @param {string} sessionId @returns {Promise<PendingApprovals>} */
export const readApprovals = (sessionId) => json("GET", path(sessionId, "/approvals"));

/** @param {string} sessionId @param {number} limit @returns {Promise<FullConversation>} */
export const readNewest = (sessionId, limit) => json("GET", path(sessionId, `/conversation/full${query({ limit })}`));

/** @param {string} sessionId @param {string} before @param {number} limit @returns {Promise<FullConversation>} */
export const readBefore = (sessionId, before, limit) =>
  json("GET", path(sessionId, `/conversation/full${query({ before, limit })}`));

/** @param {string} sessionId @param {number} limit @returns {Promise<ContextView>} */
export const readContext = (sessionId, limit) =>
  json("GET", path(sessionId, `/context${query({ format: "view", limit })}`));

/** @param {string} sessionId @param {string} hash @returns {Promise<string>} */
export const readBlob = async (sessionId, hash) =>
  orUnreachable((await send("GET", path(sessionId, `/blobs/${hash}`))).text());

/** A call's arguments as people read them. @param {string} sessionId @param {string} hash @returns {Promise<string>} */
export const readArguments = async (sessionId, hash) =>
  orUnreachable((await send("GET", path(sessionId, `/blobs/${hash}?legible=true`))).text());

/** @param {string[]} texts @returns {Promise<string[]>} */
export const renderMarkdown = async (texts) => (await json("POST", "/markdown", { texts })).html;
