/** On a small screen, opens and closes the list of sessions, which covers the conversation. */

import { byId } from "../dom.js";

export class Sidebar {
  #opener = byId("open-sidebar", HTMLButtonElement);
  #main = byId("main", HTMLElement);

  constructor() {
    this.#opener.addEventListener("click", () => this.#open());
    byId("close-sidebar", HTMLButtonElement).addEventListener("click", () => this.close());
    byId("scrim", HTMLElement).addEventListener("click", () => this.close());
    // A wide window always shows the list, and not over the conversation.
    matchMedia("(min-width: 860px)").addEventListener("change", () => this.close());
  }

  #open() {
    document.body.classList.add("sidebar-open");
    this.#opener.setAttribute("aria-expanded", "true");
    this.#main.inert = true;
    byId("new-session", HTMLElement).focus();
  }

  /** @returns {boolean} whether it was open */
  close() {
    if (!document.body.classList.contains("sidebar-open")) return false;
    document.body.classList.remove("sidebar-open");
    this.#opener.setAttribute("aria-expanded", "false");
    this.#main.inert = false;
    this.#opener.focus();
    return true;
  }
}
