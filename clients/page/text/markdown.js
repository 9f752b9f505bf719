/**
 * Markdown as HTML, rendered and sanitised by the gateway, requested in batches and cached.
 *
 * This is the only place of the page that makes HTML of a string: a Trusted Types policy makes the browser refuse it
 * anywhere else.
 */

import { GatewayError, renderMarkdown } from "../conversation/gateway.js";

/** The size of a request; the gateway accepts more. */
const MAX_TEXTS = 32;
const MAX_CHARS = 100_000;
const MAX_CACHED = 500;
const TRIES = 3;
const PAUSE_MS = 1_000;

const rules = { createHTML: (/** @type {string} */ html) => html };
/** @type {{createHTML: (html: string) => any}} */
const policy = /** @type {any} */ (window).trustedTypes?.createPolicy("sanitised-markdown", rules) ?? rules;

/** @type {Map<string, string>} HTML by text, oldest first */
const cache = new Map();
/** @type {Map<string, ((html: string | null) => void)[]>} callbacks by text */
let pending = new Map();

/**
 * Return a text as elements, without a promise if it is cached; null if it can't be rendered.
 * @param {string} text @returns {DocumentFragment | null | Promise<DocumentFragment | null>}
 */
export function render(text) {
  const html = cache.get(text);
  if (html !== undefined) return fragmentOf(html);
  if (text.length > MAX_CHARS) return null;
  if (!pending.size) queueMicrotask(() => void renderPending());
  return new Promise((resolve) => {
    const onHtml = (/** @type {string | null} */ html) => resolve(html === null ? null : fragmentOf(html));
    pending.set(text, [...(pending.get(text) ?? []), onHtml]);
  });
}

/** @param {string} html @returns {DocumentFragment} */
function fragmentOf(html) {
  const template = document.createElement("template");
  template.innerHTML = policy.createHTML(html);
  return template.content;
}

async function renderPending() {
  const requests = pending;
  pending = new Map();
  // The newest turns come last and are visible first.
  for (const batch of batches([...requests.keys()].reverse())) {
    const answers = await ask(batch);
    batch.forEach((text, index) => {
      const html = answers?.[index] ?? null;
      if (html !== null) store(text, html);
      for (const onHtml of requests.get(text) ?? []) onHtml(html);
    });
  }
}

/** @param {string[]} texts @returns {Generator<string[]>} */
function* batches(texts) {
  /** @type {string[]} */
  let batch = [];
  let chars = 0;
  for (const text of texts) {
    if (batch.length === MAX_TEXTS || (batch.length && chars + text.length > MAX_CHARS)) {
      yield batch;
      [batch, chars] = [[], 0];
    }
    batch.push(text);
    chars += text.length;
  }
  if (batch.length) yield batch;
}

/** @param {string[]} texts @returns {Promise<string[] | null>} */
async function ask(texts) {
  for (let tries = 1; ; tries++) {
    try {
      return await renderMarkdown(texts);
    } catch (error) {
      if (!(error instanceof GatewayError)) throw error;
      if (!error.isTemporary || tries === TRIES) return null;
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS * tries));
    }
  }
}

/** @param {string} text @param {string} html */
function store(text, html) {
  cache.set(text, html);
  if (cache.size > MAX_CACHED) cache.delete(/** @type {string} */ (cache.keys().next().value));
}
