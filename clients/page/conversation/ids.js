/** Ids that the page chooses: a request that is sent twice is then done once. */

/** Whether a session may be called so. @param {string} text @returns {boolean} */
export const isSessionId = (text) => /^[A-Za-z0-9._~-]{1,128}$/.test(text) && !/^\.{1,2}$/.test(text);

/** A new id, 22 characters of the alphabet that ids may have. @returns {string} */
export function newId() {
  // Not `crypto.randomUUID`: browsers give it only to pages from this machine or by HTTPS.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
}
