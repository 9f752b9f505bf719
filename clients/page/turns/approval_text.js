/**
 * The text that people decide on, exactly as the gateway has made it, and how much of it is out of sight.
 */

import { button, h } from "../dom.js";
import { TEXTS, linesBelow } from "../words.js";

/** The label of the section with a file's difference. Only labels begin a line. */
const CHANGE = "Change:";

export class ApprovalText {
  #box;
  #sign = button("link-button", "", () => this.#scrollOn());

  /** @param {string} text */
  constructor(text) {
    // Left to right, whatever the text begins with; the lines are copied as one text.
    this.#box = h("pre", { tabindex: "0", role: "group", "aria-label": TEXTS.approvalText, dir: "ltr" }, ...linesOf(text));
    this.element = h("div", { class: "approval-text" }, this.#box);
    this.sign = h("p", { class: "more-below", hidden: true }, this.#sign);
    this.#box.addEventListener("scroll", () => this.#showSign(), { passive: true });
    new ResizeObserver(() => this.#showSign()).observe(this.#box);
  }

  #showSign() {
    const { scrollHeight, clientHeight, scrollTop } = this.#box;
    const lines = Math.round((scrollHeight - clientHeight - scrollTop) / this.#lineHeight);
    this.sign.hidden = lines < 1;
    this.#sign.textContent = linesBelow(lines);
  }

  #scrollOn() {
    this.#box.scrollBy({ top: this.#box.clientHeight - this.#lineHeight });
  }

  get #lineHeight() {
    return parseFloat(getComputedStyle(this.#box).lineHeight) || 20;
  }
}

/**
 * The lines of a text. Labels are bold, so that no broken line can look like one; what a file loses or gets is coloured.
 * @param {string} text @returns {(Node | string)[]}
 */
function linesOf(text) {
  let isChange = false;
  return text.split("\n").map((line, index) => {
    const isLabel = !line.startsWith(" ");
    if (isLabel) isChange = line === CHANGE;
    const style = isLabel ? "label" : isChange ? { "+": "added", "-": "removed" }[line[2] ?? ""] : undefined;
    const whole = index ? `\n${line}` : line;
    return style ? h("span", { class: style }, whole) : whole;
  });
}
