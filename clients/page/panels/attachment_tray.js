/**
 * The files of the prompt that is being written: chosen, dropped or pasted. What can't be sent is said at once.
 *
 * @import {PromptFile} from "../conversation/attachments.js"
 */

import { problemWith } from "../conversation/attachments.js";
import { byId, h, iconButton } from "../dom.js";
import { thumbnailOf } from "../turns/attachments_view.js";
import { TEXTS, fileName } from "../words.js";

export class AttachmentTray {
  #list = byId("attachments", HTMLUListElement);
  #input = byId("attach-input", HTMLInputElement);
  /** By session; the empty id is that of a new one. @type {Map<string, PromptFile[]>} */
  #files = new Map();
  #sessionId = "";
  #onChange;
  #onProblem;

  /** @param {{onChange: () => void, onProblem: (words: string) => void}} composer */
  constructor({ onChange, onProblem }) {
    this.#onChange = onChange;
    this.#onProblem = onProblem;
    byId("attach", HTMLButtonElement).addEventListener("click", () => this.#input.click());
    this.#input.addEventListener("change", () => {
      this.add(this.#input.files ?? []);
      this.#input.value = ""; // so that the same file can be chosen again
    });
  }

  /** @returns {readonly PromptFile[]} */
  get files() {
    return this.#files.get(this.#sessionId) ?? [];
  }

  /** Show the files of a session's prompt. @param {string | null} sessionId */
  begin(sessionId) {
    this.#sessionId = sessionId ?? "";
    this.#show();
  }

  /** Remove all files, and return them. @returns {PromptFile[]} */
  clear() {
    const files = [...this.files];
    this.#set([]);
    return files;
  }

  /** Add files, except those that can't be sent. @param {Iterable<File>} files */
  add(files) {
    const problems = [];
    for (const file of files) {
      const problem = problemWith(file, this.files);
      if (problem) problems.push(problem);
      else this.#set([...this.files, file]);
    }
    if (problems.length) this.#onProblem(problems.join(" "));
  }

  /** Put back files of a prompt that was not sent. @param {readonly PromptFile[]} files */
  restore(files) {
    this.#set([...files, ...this.files]);
  }

  /** @param {PromptFile[]} files */
  #set(files) {
    this.#files.set(this.#sessionId, files);
    this.#show();
    this.#onChange();
  }

  #show() {
    this.#list.hidden = !this.files.length;
    this.#list.replaceChildren(...this.files.map((file) => this.#chip(file)));
  }

  /** @param {PromptFile} file @returns {HTMLElement} */
  #chip(file) {
    const name = fileName(file);
    const remove = iconButton(`${TEXTS.remove}: ${name}`, "cross", () => {
      this.#set(this.files.filter((other) => other !== file));
      byId("composer-text", HTMLTextAreaElement).focus();
    });
    const label = h("span", { class: "one-line" }, name);
    return h("li", { class: "chip row box" }, thumbnailOf(this.#sessionId, file), label, remove);
  }
}
