/**
 * Attachments of a prompt or a result: images as pictures, everything else as a link to its content.
 *
 * @import {PromptFile} from "../conversation/attachments.js"
 * @import {Attachment} from "../conversation/wire.js"
 */

import { bytesOf, isUnsent } from "../conversation/attachments.js";
import { attachmentPath } from "../conversation/gateway.js";
import { h, icon } from "../dom.js";
import { fileName, fileSize } from "../words.js";

/**
 * A list of attachments; null: there are none.
 * @param {string} sessionId @param {readonly Attachment[] | undefined} attachments @returns {HTMLElement | null}
 */
export function attachmentsView(sessionId, attachments) {
  if (!attachments?.length) return null;
  const items = attachments.map((one) => h("li", {}, contentOf(sessionId, one)));
  return h("ul", { class: "attachments wrapping" }, ...items);
}

/** @param {string} sessionId @param {Attachment} attachment @returns {HTMLElement} */
function contentOf(sessionId, attachment) {
  const address = addressOf(sessionId, attachment);
  const name = fileName(attachment);
  // An image at an address elsewhere is not loaded: its server would learn who reads this.
  const isPicture = attachment.type === "image" && !attachment.url;
  // Browsers open no data: address, but they save one.
  const download = address?.startsWith("data:") ? name : null;
  const link = { href: address, target: "_blank", rel: "noreferrer", title: name, download };
  if (isPicture && address)
    return h("a", { ...link, class: "picture" }, h("img", { src: address, alt: name, loading: "lazy" }));
  const size = bytesOf(attachment);
  const words = [icon("clip"), h("span", { class: "one-line" }, name), size > 0 && h("span", { class: "fine" }, fileSize(size))];
  const chip = { class: "chip row box", title: name };
  return address ? h("a", { ...link, ...chip }, ...words) : h("span", chip, ...words);
}

/** Where the content is; null: it is nowhere. @param {string} sessionId @param {Attachment} attachment */
function addressOf(sessionId, attachment) {
  if (attachment.url) return attachment.url;
  if (attachment.hash) return attachmentPath(sessionId, attachment.hash, attachment.name ?? "");
  if (attachment.content) return `data:text/plain;charset=utf-8,${encodeURIComponent(attachment.content)}`;
  const mediaType = attachment.type === "image" ? attachment.media_type : "application/octet-stream";
  return attachment.data ? `data:${mediaType};base64,${attachment.data}` : null;
}

/** A small picture of a file that is to be sent, or an icon. @param {string} sessionId @param {PromptFile} file */
export function thumbnailOf(sessionId, file) {
  if (!isUnsent(file)) {
    const address = file.type === "image" && !file.url ? addressOf(sessionId, file) : null;
    return address ? h("img", { src: address, alt: "" }) : icon("clip");
  }
  if (!file.type.startsWith("image/")) return icon("clip");
  const picture = h("img", { alt: "" });
  const reader = new FileReader();
  reader.addEventListener("load", () => (picture.src = String(reader.result)));
  reader.readAsDataURL(file);
  return picture;
}
