/**
 * What somebody has written in this tab and not sent yet: drafts, prompts, and sessions that are to be started. It is in
 * the tab's storage, so that it survives a reload, under keys that begin with `turnkeeper:`. It belongs to one person.
 *
 * @import {Caller} from "./wire.js"
 */

const PREFIX = "turnkeeper:";
const OWNER = `${PREFIX}owner`;

const ourKeys = () => Object.keys(sessionStorage).filter((key) => key.startsWith(PREFIX));

/** Whether there is any. */
export const hasUnsentTexts = () => ourKeys().some((key) => key !== OWNER);

/** Remove all of it. */
export function forgetUnsentTexts() {
  for (const key of ourKeys()) sessionStorage.removeItem(key);
}

/** Remove it if it is another person's. @param {Caller} caller who uses the tab now */
export function keepUnsentTextsOf({ tenant, user }) {
  const owner = JSON.stringify([tenant, user]);
  if ((sessionStorage.getItem(OWNER) ?? owner) !== owner) forgetUnsentTexts();
  sessionStorage.setItem(OWNER, owner);
}
