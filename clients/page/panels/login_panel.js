/**
 * Who one is, and the dialog that asks for a key where the gateway needs one.
 *
 * The key is in a cookie that this code can't read. Another key may see other sessions, so the page starts anew. What
 * one person has written is not sent as another's: texts are removed at a log-out, and when somebody else logs in. The
 * role stands at the body: the style sheet hides what needs another one (`data-needs`), and shows what is said in its
 * place (`data-lacks`). The gateway refuses it anyway.
 */

import { byId, setText } from "../dom.js";
import { GatewayError, LOGIN_NEEDED, logIn, logOut, readMe } from "../conversation/gateway.js";
import { forgetUnsentTexts, keepUnsentTextsOf } from "../conversation/unsent_texts.js";
import { meWords } from "../words.js";

export class LoginPanel {
  #dialog = byId("login-dialog", HTMLDialogElement);
  #key = byId("login-key", HTMLInputElement);
  #problem = byId("login-problem", HTMLElement);
  #me = byId("me", HTMLElement);
  #logOut = byId("log-out", HTMLButtonElement);
  /** Once it is known whose the unsent texts of this tab are, and somebody else's are gone. @type {Promise<void>} */
  ready;

  constructor() {
    addEventListener(LOGIN_NEEDED, () => this.#ask());
    this.#dialog.addEventListener("cancel", (event) => event.preventDefault()); // there is nothing behind it
    byId("login-form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#logIn();
    });
    this.#logOut.addEventListener("click", () => void this.#leave());
    this.ready = this.#showMe();
  }

  /** Whether the caller may change sessions; true until the gateway has said who that is. */
  get mayWrite() {
    return document.body.dataset.role !== "reader";
  }

  #ask() {
    if (!this.#dialog.open) this.#dialog.showModal();
  }

  async #showMe() {
    try {
      const { authentication, caller } = await readMe();
      if (caller) {
        document.body.dataset.role = caller.role;
        keepUnsentTextsOf(caller);
      } else this.#ask();
      setText(this.#me, caller ? meWords(caller) : "");
      this.#me.hidden = this.#logOut.hidden = !(authentication && caller);
    } catch (error) {
      if (!(error instanceof GatewayError)) throw error; // whatever is missing shows itself elsewhere
    }
  }

  async #logIn() {
    try {
      const { caller } = await logIn(this.#key.value);
      if (!caller?.user) forgetUnsentTexts(); // a key without a name may be anybody's
      location.reload();
    } catch (error) {
      if (!(error instanceof GatewayError)) throw error;
      setText(this.#problem, error.message);
      this.#problem.hidden = false;
      this.#key.select();
    }
  }

  async #leave() {
    try {
      await logOut();
    } catch (error) {
      if (!(error instanceof GatewayError)) throw error;
      if (error.type !== "archive-unavailable") return; // still logged in, as the page shows
    }
    forgetUnsentTexts();
    location.reload();
  }
}
