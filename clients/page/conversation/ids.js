/** Ids of sessions and prompts. The page chooses them, so that a repeated request has no second effect. */

/** @param {string} text @returns {boolean} */
export const isSessionId = (text) => /^[A-Za-z0-9._~-]{1,128}$/.test(text) && !/^\.{1,2}$/.test(text);

/** A random id of 22 characters. @returns {string} */
export function newId() {
  // Not `crypto.randomUUID`: browsers offer it only on localhost and over HTTPS.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
}
