/** Builds elements. Text is always set as text, never as HTML. */

const SVG = "http://www.w3.org/2000/svg";

/** @typedef {Node | string | null | false | undefined} Child */

/**
 * Make an element. Attributes named `on…` are listeners, `true` sets an attribute, `false` and null omit it.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag @param {Object<string, unknown>} [attributes] @param {...Child} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== false && child !== undefined));
  return element;
}

/** @param {string} style classes @param {string} words @param {(event: MouseEvent) => void} onclick */
export const button = (style, words, onclick) => h("button", { type: "button", class: style, onclick }, words);

/** A button with only an icon. @param {string} label @param {string} name of the icon @param {() => void} onclick */
export const iconButton = (label, name, onclick) =>
  h("button", { type: "button", class: "quiet-button", "aria-label": label, title: label, onclick }, icon(name));

/**
 * An icon of the sprite in `index.html`. It is decoration: text stands beside it or in a label.
 * @param {string} name @returns {SVGSVGElement}
 */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

/**
 * The element of `index.html` with this id.
 * @template {HTMLElement} Kind @param {string} id @param {new () => Kind} kind @returns {Kind}
 */
export function byId(id, kind) {
  const element = document.getElementById(id);
  if (!(element instanceof kind)) throw new Error(`the page has no ${kind.name} #${id}`);
  return element;
}

/**
 * Make `children` the children of `parent`, in this order, without false and null. Elements that stay are not moved, so
 * they keep focus, selection and scroll position.
 * @param {Element} parent @param {(Element | false | null)[]} children
 */
export function arrange(parent, children) {
  const elements = children.filter((child) => child instanceof Element);
  const remaining = new Set(elements);
  for (const child of [...parent.children]) if (!remaining.has(child)) child.remove();
  elements.forEach((child, index) => {
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
  });
}

/** Set text only if it differs, so that equal text is not announced or laid out again. */
export function setText(/** @type {Element} */ element, /** @type {string} */ text) {
  if (element.textContent !== text) element.textContent = text;
}
