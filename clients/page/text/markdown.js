/**
 * Markdown as HTML, rendered and sanitised by the gateway: asked for in batches, remembered for the life of the page.
 *
 * This is the one place of the page where HTML is made of a string. The browser is told so by a policy (Trusted Types),
 * and refuses it anywhere else.
 */

import { GatewayError, renderMarkdown } from "../conversation/gateway.js";

/** What one request may have; the gateway takes more. */
const MOST_TEXTS = 32;
const MOST_CHARS = 100_000;
const REMEMBERED = 500;
const TRIES = 3;
const PAUSE_MS = 1_000;

/** @type {{createHTML: (html: string) => any}} */
const policy = /** @type {any} */ (window).trustedTypes?.createPolicy("sanitised-markdown", {
  createHTML: (/** @type {string} */ html) => html,
}) ?? { createHTML: (/** @type {string} */ html) => html };

/** @type {Map<string, string>} HTML by text, the oldest first */
const remembered = new Map();
/** @type {Map<string, ((html: string | null) => void)[]>} who waits for which text */
let wanted = new Map();

/**
 * Return a text as elements, at once where it is known; null where it can't be had, and is to be shown as it is.
 * @param {string} text @returns {DocumentFragment | null | Promise<DocumentFragment | null>}
 */
export function render(text) {
  const html = remembered.get(text);
  if (html !== undefined) return fragmentOf(html);
  if (text.length > MOST_CHARS) return null;
  if (!wanted.size) queueMicrotask(() => void askForAll());
  return new Promise((resolve) => {
    const take = (/** @type {string | null} */ html) => resolve(html === null ? null : fragmentOf(html));
    wanted.set(text, [...(wanted.get(text) ?? []), take]);
  });
}

/** @param {string} html @returns {DocumentFragment} */
function fragmentOf(html) {
  const template = document.createElement("template");
  template.innerHTML = policy.createHTML(html);
  return template.content;
}

async function askForAll() {
  const asked = wanted;
  wanted = new Map();
  // The newest turns are at the end, and seen first.
  for (const batch of batches([...asked.keys()].reverse())) {
    const answers = await ask(batch);
    batch.forEach((text, index) => {
      const html = answers?.[index] ?? null;
      if (html !== null) remember(text, html);
      for (const take of asked.get(text) ?? []) take(html);
    });
  }
}

/** @param {string[]} texts @returns {Generator<string[]>} */
function* batches(texts) {
  /** @type {string[]} */
  let batch = [];
  let chars = 0;
  for (const text of texts) {
    if (batch.length === MOST_TEXTS || (batch.length && chars + text.length > MOST_CHARS)) {
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
  remembered.set(text, html);
  if (remembered.size > REMEMBERED) remembered.delete(/** @type {string} */ (remembered.keys().next().value));
}
