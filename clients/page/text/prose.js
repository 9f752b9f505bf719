/** A text of the model: plain while it grows, rendered Markdown once it is complete. */

import { copyButton } from "./copying.js";
import { h } from "../dom.js";
import { highlight } from "./highlight.js";
import { render } from "./markdown.js";
import { TEXTS } from "../words.js";

export class Prose {
  #text = "";

  constructor() {
    this.element = h("div", { class: "prose" });
  }

  get text() {
    return this.#text;
  }

  /** Show a complete text; plain until its HTML arrives. @param {string} text */
  show(text) {
    if (text === this.#text) return;
    this.#text = text;
    this.element.hidden = !text;
    const rendered = render(text);
    if (rendered instanceof Promise) {
      this.#showPlain(text);
      void rendered.then((fragment) => {
        if (fragment && this.#text === text) this.#showRendered(fragment);
      });
    } else if (rendered) this.#showRendered(rendered);
    else this.#showPlain(text);
  }

  /** @param {string} text */
  #showPlain(text) {
    this.element.classList.add("plain");
    this.element.replaceChildren(text);
  }

  /** @param {DocumentFragment} fragment */
  #showRendered(fragment) {
    // Each block in the direction of its own first letters.
    for (const block of fragment.children) /** @type {HTMLElement} */ (block).dir = block.matches("pre") ? "ltr" : "auto";
    for (const code of fragment.querySelectorAll("pre > code")) frameCode(/** @type {HTMLElement} */ (code));
    for (const table of fragment.querySelectorAll("table")) frameTable(table);
    this.element.classList.remove("plain");
    this.element.replaceChildren(fragment);
  }
}

/** Put a header with the language and a copy button above a block of code. @param {HTMLElement} code */
function frameCode(code) {
  const block = /** @type {HTMLElement} */ (code.parentElement);
  const language = code.className.replace("language-", "");
  const frame = h("figure", { class: "code box" });
  block.replaceWith(frame);
  // Focusable, so that the keyboard can scroll it.
  block.tabIndex = 0;
  block.setAttribute("role", "group");
  block.setAttribute("aria-label", language ? `${TEXTS.code}, ${language}` : TEXTS.code);
  const header = h(
    "figcaption",
    { class: "row apart fine" },
    h("span", {}, language || TEXTS.plainCode),
    copyButton(TEXTS.copyCode, () => code.textContent ?? ""),
  );
  frame.append(header, block);
  highlight(code, language);
}

/** Let a wide table scroll by itself, and not the page; a date or a number in it stays on a line. @param {HTMLTableElement} table */
function frameTable(table) {
  const frame = h("div", { class: "table", tabindex: "0", role: "group", "aria-label": TEXTS.table });
  table.replaceWith(frame);
  frame.append(table);
  for (const cell of table.querySelectorAll("th, td")) {
    if (!/\s/.test(cell.textContent ?? "")) cell.classList.add("unbroken");
  }
}
