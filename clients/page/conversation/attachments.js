/**
 * Files of a prompt, before they are sent. A `File` is uploaded right before its prompt is sent; from then on the prompt
 * has the gateway's answer, an attachment with a hash.
 *
 * @import {Attachment} from "./wire.js"
 */

import { TEXTS, attachmentTooLarge, attachmentsTooLarge, attachmentsTooMany, unknownImage } from "../words.js";

const MAX_ATTACHMENTS = 20;
const MAX_BYTES = 7_000_000;
const MAX_BYTES_TOGETHER = 7_500_000;
const IMAGE_TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
/** Types that browsers give to texts: `.ts` is a video's suffix too. */
const UNSURE_TYPES = ["", "application/octet-stream", "video/mp2t"];

/** @typedef {File | Attachment} PromptFile */

/** @param {PromptFile} file @returns {file is File} */
export const isUnsent = (file) => file instanceof File;

/** @param {PromptFile} file @returns {number} */
export const bytesOf = (file) => (isUnsent(file) ? file.size : (file.bytes ?? 0));

/**
 * Why a file can't be added to those that are there; empty: it can.
 * @param {File} file @param {readonly PromptFile[]} others @returns {string}
 */
export function problemWith(file, others) {
  if (others.length >= MAX_ATTACHMENTS) return attachmentsTooMany(MAX_ATTACHMENTS);
  if (!file.size) return `${file.name}: ${TEXTS.emptyFile}`;
  if (file.size > MAX_BYTES) return attachmentTooLarge(file.name, MAX_BYTES);
  if (file.type.startsWith("image/") && !IMAGE_TYPES.includes(file.type) && file.type !== "image/svg+xml")
    return unknownImage(file.name);
  const together = others.reduce((sum, other) => sum + bytesOf(other), file.size);
  return together > MAX_BYTES_TOGETHER ? attachmentsTooLarge(MAX_BYTES_TOGETHER) : "";
}

/** The media type; a text of an unknown type is plain text. @param {File} file @returns {Promise<string>} */
export async function mediaTypeOf(file) {
  if (!UNSURE_TYPES.includes(file.type)) return file.type;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? "application/octet-stream" : "text/plain";
  } catch {
    return "application/octet-stream";
  }
}
