/**
 * Markdown as HTML, rendered and sanitised by the gateway: requested in batches, cached for the life of the page.
 *
 * This is the one place of the page where HTML is made of a string. The browser is told so by a policy (Trusted Types),
 * and refuses it anywhere else.
 */

import { GatewayError, renderMarkdown } from "../conversation/gateway.js";

/** What one request may have; the gateway takes more. */
const MAX_TEXTS = 32;
const MAX_CHARS = 100_000;
const MAX_CACHED = 500;
const TRIES = 3;
const PAUSE_MS = 1_000;

/** @type {{createHTML: (html: string) => any}} */
const policy = /** @type {any} */ (window).trustedTypes?.createPolicy("sanitised-markdown", {
  createHTML: (/** @type {string} */ html) => html,
}) ?? { createHTML: (/** @type {string} */ html) => html };

/** @type {Map<string, string>} HTML by text, the oldest first */
const cache = new Map();
/** @type {Map<string, ((html: string | null) => void)[]>} who waits for which text */
let pending = new Map();

/**
 * Return a text as elements, at once where it is known; null where it can't be had, and is to be shown as it is.
 * @param {string} text @returns {DocumentFragment | null | Promise<DocumentFragment | null>}
 */
export function render(text) {
  const html = cache.get(text);
  if (html !== undefined) return fragmentOf(html);
  if (text.length > MAX_CHARS) return null;
  if (!pending.size) queueMicrotask(() => void askForAll());
  return new Promise((resolve) => {
    const take = (/** @type {string | null} */ html) => resolve(html === null ? null : fragmentOf(html));
    pending.set(text, [...(pending.get(text) ?? []), take]);
  });
}

/** @param {string} html @returns {DocumentFragment} */
function fragmentOf(html) {
  const template = document.createElement("template");
  template.innerHTML = policy.createHTML(html);
  return template.content;
}

async function askForAll() {
  const requests = pending;
  pending = new Map();
  // The newest turns are at the end, and seen first.
  for (const batch of batches([...requests.keys()].reverse())) {
    const answers = await ask(batch);
    batch.forEach((text, index) => {
      const html = answers?.[index] ?? null;
      if (html !== null) remember(text, html);
      for (const take of requests.get(text) ?? []) take(html);
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
      if (!error.mayPass || tries === TRIES) return null;
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS * tries));
    }
  }
}

/** @param {string} text @param {string} html */
function remember(text, html) {
  cache.set(text, html);
  if (cache.size > MAX_CACHED) cache.delete(/** @type {string} */ (cache.keys().next().value));
}
