/**
 * All texts of the page, except those in `index.html`.
 *
 * @import {PromptFile} from "./conversation/attachments.js"
 * @import {Waiting} from "./conversation/conversation.js"
 * @import {Approval, Caller, ContextView, PendingApproval, Seen, SessionState, SummaryInContext, Turn, TurnMetrics, Usage}
 *   from "./conversation/wire.js"
 */

export const TEXTS = {
  product: "Turnkeeper",
  newSession: "New session",
  noAgent: "None",
  unknownSession: "Session not found",
  promptRefused: "The session refused this prompt",
  thisSession: "this session",
  demoModel: "Built-in demo model, works offline",
  contextSize: "What the model was sent last",
  nearLimit: "The oldest messages will soon be dropped from the model's context",
  nextModel: "Model of the next turn",

  noSessions: "No sessions yet",
  noMatchingSessions: "No matching sessions",
  nothingAwaitsApproval: "Nothing needs your approval",
  sessionsFailed: "Can't load sessions. Trying again.",
  sessionsNotListed: "This gateway doesn't list sessions.",

  noTurns: "No prompts yet. Write the first one below.",
  noTurnsEver: "This session has no prompts.",
  showOlder: "Show older turns",
  olderFailed: "Can't load older turns. Try again",

  writePrompt: "Write a prompt",
  takesNoPrompts: "This session accepts no prompts",
  send: "Send",
  sendToQueue: "Send to the queue",
  sending: "Sending",
  notSentYet: "Not sent yet. Trying again…",
  queued: "Queued",
  retry: "Retry",
  forkHere: "Fork from here",
  sessionCopyFailed: "The session could not be copied.",
  edit: "Edit",
  remove: "Remove",
  rejectedPrompt: "The session rejected this prompt.",
  attachmentsLost: "Its files were lost when the page was reloaded. Edit it to attach them again.",
  emptyFile: "the file is empty.",
  unnamedFile: "Unnamed",

  openTask: "Open this task's session",

  thinking: "Thinking",
  thought: "Thought",
  steered: "Steering prompt",
  stoppedHere: "Stopped here",
  interruptedHere: "Interrupted here",
  showAll: "Show all",
  theText: "The text",

  arguments: "Arguments",
  approvalText: "What you decide on",
  result: "Result",
  lostResult: "Part of this result was lost because its store was unavailable.",

  approve: "Approve",
  allowForSession: "Allow for this session",
  askToReject: "Reject…",
  reject: "Reject",
  back: "Back",
  reason: "Reason, sent to the model",
  approverDecides: "Somebody with the approver role decides on this.",
  reasonHint: "Reason (optional, sent to the model)",

  code: "Code",
  plainCode: "text",
  table: "Table",
  copyAnswer: "Copy answer",
  copyCode: "Copy code",
  copyPrompt: "Copy prompt",
  copied: "Copied",
  copyForbidden: "Copying is not allowed here",
  copyFailed: "Can't load the text. Try again",

  nothingInContext: "No prompts yet.",
  turnByTurn: "Turn by turn",
  olderNotListed: "Older turns are not listed.",

  connecting: "Connecting…",
  connectionLost: "Connection lost. Reconnecting…",
  unreachable: "Can't reach the server.",
};

// ---- times and amounts

/** @param {number} ms @returns {string} */
export function duration(ms) {
  if (Math.round(ms) < 1000) return `${Math.round(ms)} ms`;
  const tenths = Math.round(ms / 100);
  if (tenths < 100) return `${(tenths / 10).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60
    ? `${minutes} min ${seconds % 60} s`
    : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** @param {number} count @returns {string} 12345 as "12,345" */
const grouped = (count) => count.toLocaleString("en");

/** @param {number} count @returns {string} */
export function tokens(count) {
  if (count < 10_000) return `${grouped(count)} tokens`;
  return `${(count / 1000).toLocaleString("en", { maximumFractionDigits: 1 })}k tokens`;
}

/** A cost in US dollars; below a cent, its first two digits. @param {number} cost @returns {string} */
function dollars(cost) {
  if (cost >= 0.01) return `$${cost.toFixed(2)}`;
  return `$${cost.toFixed(Math.min(9, 1 - Math.floor(Math.log10(cost))))}`;
}

/** @param {Usage | null | undefined} usage @returns {string} empty where nothing was used */
export function usageWords(usage) {
  const count = (usage?.input_tokens ?? 0) + (usage?.output_tokens ?? 0);
  if (!usage || !count) return "";
  return usage.cost ? `${tokens(count)} · ${dollars(usage.cost)}` : tokens(count);
}

/** @param {Usage} usage @param {Usage | null | undefined} ofTasks the part that tasks used @returns {string} */
export function usageDetails(usage, ofTasks) {
  const parts = [`${grouped(usage.input_tokens)} in`, `${grouped(usage.output_tokens)} out`];
  if (usage.cached_tokens) parts.push(`${grouped(usage.cached_tokens)} cached`);
  if (usage.reasoning_tokens) parts.push(`${grouped(usage.reasoning_tokens)} for thinking`);
  const used = (ofTasks?.input_tokens ?? 0) + (ofTasks?.output_tokens ?? 0);
  if (used) parts.push(`${grouped(used)} by tasks`);
  if (usage.estimated_tokens) parts.push(`${grouped(usage.estimated_tokens)} estimated`);
  return `Tokens: ${parts.join(", ")}${usage.cost ? `; $${usage.cost}` : ""}`;
}

/**
 * How much the model sees, of at most how many messages; empty before the first request.
 * @param {TurnMetrics | null | undefined} metrics @param {number} cap 0 for none @returns {string}
 */
export function contextSizeWords(metrics, cap) {
  if (!metrics?.message_count) return "";
  const messages = cap ? `${metrics.message_count} of ${cap} messages` : `${metrics.message_count} messages`;
  return `${messages}, ~${tokens(metrics.estimated_tokens)}`;
}

/**
 * Over 80 % of the cap, older messages are soon no longer sent.
 * @param {TurnMetrics | null | undefined} metrics @param {number} cap @returns {boolean}
 */
export const isNearLimit = (metrics, cap) => cap > 0 && (metrics?.message_count ?? 0) * 5 > cap * 4;

/** The time; of an earlier day, with the date. @param {string} iso @returns {string} */
export function clock(iso) {
  const at = new Date(iso);
  const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  if (at.toDateString() === new Date().toDateString()) return time;
  return `${at.toLocaleDateString([], { day: "numeric", month: "short" })}, ${time}`;
}

/** @param {string} iso @returns {string} */
export const fullTime = (iso) => new Date(iso).toLocaleString([], { dateStyle: "long", timeStyle: "medium" });

/** A duration in whole seconds. @param {number} ms @returns {string} */
export const elapsed = (ms) => duration(Math.floor(ms / 1_000) * 1_000).replace(".0", "");

/** The time from now, in whole seconds; null: unknown. @param {string | null} iso @returns {string} */
export function countdown(iso) {
  if (!iso) return "soon";
  const seconds = Math.ceil((new Date(iso).getTime() - Date.now()) / 1_000);
  return seconds > 0 ? `in ${elapsed(seconds * 1_000)}` : "now";
}

/** The heading of the sessions of a day. @param {string} iso @returns {string} */
export function dayGroup(iso) {
  const midnight = new Date();
  midnight.setHours(0, 0, 0, 0);
  const days = Math.ceil((midnight.getTime() - new Date(iso).getTime()) / (24 * 60 * 60_000));
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days <= 7) return "Last 7 days";
  return days <= 30 ? "Last 30 days" : "Older";
}

/** What a session has had so far. @param {number} turns @param {number | null | undefined} cost @returns {string} */
export function turnsAndCost(turns, cost) {
  const count = `${grouped(turns)} ${turns === 1 ? "turn" : "turns"}`;
  return cost ? `${count} · ${dollars(cost)}` : count;
}

/** The time since, rounded. @param {string} iso @returns {string} */
export function ago(iso) {
  const minutes = Math.floor((Date.now() - new Date(iso).getTime()) / 60_000);
  if (minutes < 1) return "just now";
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h`;
  return `${Math.floor(minutes / (24 * 60))} d`;
}

// ---- attachments

/** @param {number} bytes @returns {string} empty for 0 */
export function fileSize(bytes) {
  if (!bytes) return "";
  return bytes >= 1_000_000 ? `${(bytes / 1_000_000).toFixed(1)} MB` : `${Math.max(1, Math.round(bytes / 1_000))} KB`;
}

/** @param {{name?: string | null, url?: string | null}} file @returns {string} */
export const fileName = ({ name, url }) => name || url || TEXTS.unnamedFile;

/** A prompt in one line: its text, or the names of its files. @param {{text: string, attachments: PromptFile[]}} prompt */
export const promptWords = ({ text, attachments }) =>
  [text, attachments.length ? `[${attachments.map(fileName).join(", ")}]` : ""].filter((part) => part.trim()).join(" ");

/** @param {string} name @param {number} limit @returns {string} */
export const attachmentTooLarge = (name, limit) => `${name} is over ${fileSize(limit)}.`;

/** @param {number} limit @returns {string} */
export const attachmentsTooLarge = (limit) => `The files of a prompt may have ${fileSize(limit)} together.`;

/** @param {number} limit @returns {string} */
export const attachmentsTooMany = (limit) => `A prompt may have ${limit} files.`;

/** @param {string} name @returns {string} */
export const unknownImage = (name) => `${name}: images must be PNG, JPEG, GIF or WebP.`;

// ---- states of sessions and turns

/** @param {string} model @returns {boolean} */
export const isDemoModel = (model) => model === "offline" || model.startsWith("offline:");

/**
 * The state of a session as one sentence; empty if it is ready. The time of a retry is shown after it.
 * @param {SessionState} state @param {number} questions how many tool calls need a decision
 */
export function statusWords({ status, waiting_reason }, questions) {
  const calls = questions > 1 ? `${questions} tool calls need` : "A tool call needs";
  return {
    idle: "",
    processing: waiting_reason ?? "Working on it",
    awaiting_approval: `${calls} your approval.`,
    waiting_retry: `${waiting_reason ?? "The model did not answer."} Trying again`,
    ending: "This session ends after its queued prompts and accepts no new ones.",
    ended: "This session has ended and is read-only.",
    cancelled: "This session was cancelled and is read-only.",
    terminated: "This session was terminated and is read-only.",
    stuck: STUCK,
  }[status];
}

const STUCK = "This session is stuck: a step keeps failing. Nothing is lost; it continues once the cause is fixed.";

/** Texts that replace the gateway's own, by problem type. */
const PROBLEMS = {
  unreachable: "Can't reach the server. Reconnecting… Everything you sent is safe.",
  "temporal-unreachable": "The server can't reach Temporal. Reconnecting… Everything you sent is safe.",
  "no-worker": "No worker is running. Everything you sent is safe and continues when one is back.",
  "session-stuck": STUCK,
  "unknown-session": "This session doesn't exist or was deleted.",
  "no-session-id": "This session doesn't exist: the address has no valid session id.",
};

/** @param {{type: string, message: string}} problem @returns {string} */
export const problemWords = ({ type, message }) => PROBLEMS[/** @type {keyof typeof PROBLEMS} */ (type)] ?? message;

/** That the archive answered, as no worker did. @param {string} time when the newest turn ended @returns {string} */
export const asOfWords = (time) =>
  `As of ${clock(time)}, no worker is running. Everything you sent is safe and continues when one is back.`;

/** @param {number} status @returns {string} */
export const unexpectedStatus = (status) => `The gateway answered with status ${status}.`;

/** Texts that replace the gateway's own reasons for a stop. @type {[RegExp, string][]} */
const STOPS = [
  [/^Stopped by the user\.$/, "You stopped this answer."],
  [/^Interrupted by /, "Stopped because you sent a new prompt."],
  [/^The session was cancelled\.$/, "Stopped because the session was cancelled."],
];

/** Why a turn ended without an answer. @param {Turn} turn @returns {string} */
export function endingWords({ status, error }) {
  if (status !== "cancelled" || !error?.startsWith("Cancelled: ")) return error ?? "";
  const reason = error.slice("Cancelled: ".length);
  return STOPS.find(([pattern]) => pattern.test(reason))?.[1] ?? `Stopped: ${reason}`;
}

/** @param {string} status of a session, live or listed @returns {string} one or two words */
export function statusLabel(status) {
  const labels = {
    open: "open",
    idle: "open",
    processing: "working",
    awaiting_approval: "needs approval",
    waiting_retry: "waiting for the model",
    ending: "ending",
  };
  return labels[/** @type {keyof typeof labels} */ (status)] ?? status;
}

/** @param {string} status @returns {boolean} */
export const isClosed = (status) => ["ended", "cancelled", "terminated"].includes(status);

/** What the model still sees of a turn; empty if all of it. @type {Record<Seen, string>} */
export const SEEN_WORDS = {
  verbatim: "",
  truncated: "The model sees only part of this turn",
  summarised: "The model sees this turn only in a summary",
  refused: "The model's provider refused this turn, so it is no longer sent",
  retried: "A retry has taken this turn's place for the model",
  not_at_all: "The model no longer sees this turn",
};

/** @param {number} steps of a turn that are only in the archive @returns {string} */
export const omittedWords = (steps) => `${steps} earlier ${steps === 1 ? "step is" : "steps are"} not shown here.`;

// ---- waiting prompts

const MODES = { enqueue: "", steer: "joins this turn", interrupt: "interrupts" };

/** @param {Waiting} prompt @returns {string} */
export function waitingWords({ status, mode, problem, isTemporary }) {
  if (status === "failed") return isTemporary ? `Not sent: ${problem} Trying again soon.` : `Not sent: ${problem}`;
  if (status === "sending") return problem ? TEXTS.notSentYet : "sending";
  return MODES[mode];
}

/** @param {Waiting[]} prompts @returns {string} */
export function waitingTitle(prompts) {
  const unsent = prompts.filter(({ status }) => status === "failed").length;
  const count = prompts.length - unsent;
  const queued = count === 1 ? "1 prompt queued" : `${count} prompts queued`;
  const failed = unsent === 1 ? "1 prompt not sent" : `${unsent} prompts not sent`;
  return [...(count ? [queued] : []), ...(unsent ? [failed] : [])].join(", ");
}

// ---- tasks

/** @type {Record<import("./conversation/wire.js").TaskStatus, string>} */
export const TASK_STATES = {
  working: "working",
  input_required: "needs approval",
  completed: "done",
  failed: "failed",
  cancelled: "cancelled",
};

/** @param {import("./conversation/wire.js").SubTask[]} tasks @returns {string} */
export function tasksTitle(tasks) {
  const running = tasks.filter(({ status }) => status === "working" || status === "input_required").length;
  const ended = tasks.length - running;
  return [running === 1 ? "1 task is running" : `${running} tasks are running`, ...(ended ? [`${ended} ended`] : [])].join(", ");
}

/** @param {number} questions how many calls of tasks need a decision @returns {string} */
export const taskApprovalWords = (questions) =>
  questions > 1 ? `${questions} tool calls of tasks need your approval.` : "A tool call of a task needs your approval.";

// ---- tool calls

/** A text of several lines in one. @param {string} text @returns {string} */
export const oneLine = (text) => text.slice(0, 500).replace(/\n[ |-]*/g, ", ").replaceAll(":, ", ": ");

/** The state of a call, in one or two words. */
export const CALL_STATES = {
  preparing: "preparing",
  running: "running",
  waiting: "needs approval",
  ok: "done",
  error: "failed",
  denied: "not allowed",
  rejected: "rejected",
  cancelled: "cancelled",
  outcome_unknown: "outcome unknown",
};

const DECISIONS = {
  approve: "Approved",
  allow_for_session: "Allowed for the session",
  reject: "Rejected",
  expired: "Rejected because nobody decided in time",
};

/** @param {Approval} approval @returns {string} */
export function decisionWords({ decision, reason, decided_by }) {
  const words = [decision && DECISIONS[decision], decided_by && `by ${decided_by}`].filter(Boolean).join(" ");
  return reason ? `${words}: ${reason}` : `${words}.`;
}

/** The section of a text that people decide on, below its label. @param {string} text @param {string} label */
const sectionOf = (text, label) => text.split(`\n${label}:\n`)[1]?.split(/\n(?! )/)[0]?.trim() ?? "";

/** The question of an approval: a verb and its object. @param {PendingApproval} pending */
export function question({ tool, text, change }) {
  const path = change && /^ {2}path: "(.*)"$/m.exec(text)?.[1];
  if (!path) return { verb: "Run", object: tool };
  const isNew = change.sha256 === "";
  return { verb: isNew ? "Create the file" : change.sha256 ? "Replace the file" : "Write the file", object: path };
}

/** @param {PendingApproval} pending @returns {string} what allowing the tool for the session means */
export const allowWords = ({ tool }) => `Approves this call, and every later call of ${tool} in this session unasked`;

/** @param {number} count @returns {string} how many lines of a text are out of sight */
export const linesBelow = (count) => `${grouped(count)} more ${count === 1 ? "line" : "lines"} below ↓`;

/** The rounded time left to decide. @param {string} iso @returns {string} */
export function deadlineWords(iso) {
  const minutes = Math.ceil((new Date(iso).getTime() - Date.now()) / 60_000);
  if (minutes <= 0) return "Decision needed now.";
  if (minutes < 60) return `Decision needed within ${minutes} min.`;
  if (minutes < 48 * 60) return `Decision needed within ${Math.round(minutes / 60)} h.`;
  return `Decision needed within ${Math.round(minutes / (24 * 60))} days.`;
}

/** @param {PendingApproval} pending @returns {string} distinct for every call */
export const decideLabel = ({ tool, call_id, text }) =>
  `Decide on ${tool}, call ${call_id}: ${oneLine(sectionOf(text, TEXTS.arguments)).slice(0, 120)}`;

/** @param {string} title @returns {string} */
export const copyLabel = (title) => `Copy ${title.toLowerCase()}`;

/** The button that loads a long text. @param {number} chars @returns {string} */
export const showAllWords = (chars) => `${TEXTS.showAll} ${grouped(chars)} characters`;

/** @param {string} name of the text @returns {string} */
export const loadFailed = (name) => `Can't load ${name.toLowerCase()}. Try again`;

// ---- the model's context

/** @type {Record<Seen, string>} */
export const SEEN = {
  verbatim: "in full",
  truncated: "partly",
  summarised: "in the summary",
  refused: "left out",
  retried: "retried",
  not_at_all: "no longer sent",
};

/** @param {number} count @returns {string} */
export const aboutTokens = (count) => `about ${tokens(count)}`;

/** @param {{server: string, text: string}} absent @returns {string} */
export const absentServer = ({ server, text }) => `Tools of ${server}: not available now (${text}).`;

/** @param {ContextView} context @returns {string} */
export function contextWords({ reported_tokens, estimated_tokens, message_count, max_messages, fixed }) {
  const size = reported_tokens === null ? aboutTokens(estimated_tokens) : tokens(reported_tokens);
  const cap = max_messages ? ` of up to ${max_messages}` : "";
  const missing = fixed.tools_not_offered.length;
  const parts = `${message_count}${cap} messages, the instructions and ${fixed.tools.length - missing} tools`;
  const rest = missing ? ` Its API takes no more: ${missing} tools are not offered.` : "";
  return `The model currently sees ${size}: ${parts}.${rest}`;
}

/** @param {number} count @returns {string} */
export const contextLimit = (count) =>
  `An earlier request was too long, so now at most ${tokens(count)} are sent.`;

/** @param {SummaryInContext} summary @returns {string} */
export function summaryTitle({ turns }) {
  const ranges = turns.map(([first, last]) => (first === last ? `${first}` : `${first} to ${last}`)).join(", ");
  return ranges ? `Summary of turns ${ranges}` : "Summary";
}

/** @param {Caller} caller @returns {string} */
export const meWords = ({ user, tenant, role }) => [user, tenant, role].filter(Boolean).join(" · ");

/** @param {string} server @param {string} problem */
export const toolProblem = (server, problem) => `Tools of ${server}: ${problem}${problem.endsWith(".") ? "" : "."}`;
