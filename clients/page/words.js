/**
 * What things are called on the page, for people.
 *
 * @import {Seen, SessionState, Turn, Usage} from "./conversation/wire.js"
 */

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

/** What can't be seen, or turns the text around it; an emoji's own sign of being one is harmless. */
const UNSEEN = /(?![\n\t\ufe0f])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu;

/**
 * A text with every character shown that would else work unseen, as JSON escapes it: what a person approves has to be
 * what they read. Line breaks and tabs are kept.
 * @param {string} text @returns {string}
 */
export function legible(text) {
  const escaped = (/** @type {string} */ unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return text.replaceAll(UNSEEN, (char) => char.split("").map(escaped).join(""));
}

/** @param {number} count @returns {string} */
export function tokens(count) {
  if (count < 10_000) return `${count.toLocaleString("en")} tokens`;
  return `${(count / 1000).toLocaleString("en", { maximumFractionDigits: 1 })}k tokens`;
}

/** A cost in US dollars; below a cent, its first two digits. @param {number} cost @returns {string} */
export function dollars(cost) {
  if (cost === 0 || cost >= 0.01) return `$${cost.toFixed(2)}`;
  return `$${cost.toFixed(Math.min(9, 1 - Math.floor(Math.log10(cost))))}`;
}

/** @param {Usage | null | undefined} usage @returns {string} empty where nothing was used */
export function usageWords(usage) {
  const count = (usage?.input_tokens ?? 0) + (usage?.output_tokens ?? 0);
  if (!usage || !count) return "";
  return usage.cost === null || usage.cost === undefined ? tokens(count) : `${tokens(count)} · ${dollars(usage.cost)}`;
}

/** @param {Usage} usage @returns {string} */
export function usageDetails(usage) {
  const parts = [`${usage.input_tokens.toLocaleString("en")} in`, `${usage.output_tokens.toLocaleString("en")} out`];
  if (usage.cached_tokens) parts.push(`${usage.cached_tokens.toLocaleString("en")} of them from the cache`);
  if (usage.reasoning_tokens) parts.push(`${usage.reasoning_tokens.toLocaleString("en")} for thinking`);
  if (usage.estimated_tokens) parts.push(`${usage.estimated_tokens.toLocaleString("en")} of them estimated`);
  return `Tokens: ${parts.join(", ")}${usage.cost ? `; $${usage.cost}` : ""}`;
}

/** A moment: its time today, else its day too. @param {string} iso @returns {string} */
export function clock(iso) {
  const at = new Date(iso);
  const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  if (at.toDateString() === new Date().toDateString()) return time;
  return `${at.toLocaleDateString([], { day: "numeric", month: "short" })}, ${time}`;
}

/** @param {string} iso @returns {string} */
export const fullTime = (iso) => new Date(iso).toLocaleString([], { dateStyle: "long", timeStyle: "medium" });

/** How long from now, to the second. @param {string} iso @param {number} [now] @returns {string} */
export function countdown(iso, now = Date.now()) {
  const seconds = Math.ceil((new Date(iso).getTime() - now) / 1_000);
  return seconds > 0 ? `in ${duration(seconds * 1_000).replace(".0", "")}` : "now";
}

/** How long ago, roughly. @param {string} iso @param {number} [now] @returns {string} */
export function ago(iso, now = Date.now()) {
  const minutes = Math.floor((now - new Date(iso).getTime()) / 60_000);
  if (minutes < 1) return "just now";
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h`;
  return `${Math.floor(minutes / (24 * 60))} d`;
}

/** How long from now, roughly. @param {string} iso @param {number} [now] @returns {string} */
export function until(iso, now = Date.now()) {
  const minutes = Math.ceil((new Date(iso).getTime() - now) / 60_000);
  if (minutes <= 0) return "now";
  if (minutes < 60) return `in ${minutes} min`;
  if (minutes < 48 * 60) return `in ${Math.round(minutes / 60)} h`;
  return `in ${Math.round(minutes / (24 * 60))} days`;
}

/** @param {string} model @returns {boolean} */
export const isStandIn = (model) => model === "offline" || model.startsWith("offline:");

/**
 * The state of a session, as one sentence; empty where it goes without saying. A retry's time is shown behind it.
 * @param {SessionState} state @param {number} questions how many tool calls wait for a decision
 * @returns {string}
 */
export function statusWords({ status, waiting_reason }, questions) {
  switch (status) {
    case "processing":
      return "Working on it";
    case "awaiting_approval":
      return questions > 1 ? `${questions} tool calls need your approval.` : "A tool call needs your approval.";
    case "waiting_retry":
      return `${waiting_reason ?? "The model did not answer."} Trying again`;
    case "ending":
      return "This session ends after the queued prompts and takes no new ones.";
    case "ended":
      return "This session has ended and is read-only.";
    case "cancelled":
      return "This session was cancelled and is read-only.";
    case "terminated":
      return "This session was terminated and is read-only.";
    case "stuck":
      return STUCK;
    default:
      return "";
  }
}

export const STUCK = "This session is stuck: a step keeps failing. Nothing is lost; it continues once that is fixed.";

/** Why a turn was stopped, where no person gave a reason of their own. @type {[RegExp, string][]} */
const STOPS = [
  [/^Stopped by the user\.$/, "You stopped this answer."],
  [/^Interrupted by /, "Stopped, because you sent a new prompt."],
  [/^The session was cancelled\.$/, "Stopped, because the session was cancelled."],
];

/** How a turn ended that has no answer, as one sentence. @param {Turn} turn @returns {string} */
export function endingWords({ status, error }) {
  if (status !== "cancelled" || !error?.startsWith("Cancelled: ")) return error ?? "";
  const reason = error.slice("Cancelled: ".length);
  return STOPS.find(([known]) => known.test(reason))?.[1] ?? `Stopped: ${reason}`;
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

/** What the model still has of a turn; empty where it has all of it. @param {Seen} seen @returns {string} */
export function seenWords(seen) {
  return {
    verbatim: "",
    truncated: "The model sees only part of this turn",
    summarised: "The model sees this turn only in its summary",
    refused: "The model's provider refused this turn, so it is no longer sent",
    not_at_all: "The model no longer sees this turn",
  }[seen];
}
