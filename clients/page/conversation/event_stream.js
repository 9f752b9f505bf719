/**
 * Server-sent events, read as they arrive: the browser's `EventSource` hides the comments that say that the line is
 * alive, and so can't tell a quiet session from a line on which nothing will ever come again.
 */

/** @typedef {{name: string, text: string}} StreamEvent */

/**
 * The events of an answer, until it ends. A cut is an end: what follows of the two is the same.
 *
 * Lines end with a line feed, which a carriage return may precede; `id` and `retry` are passed over.
 *
 * @param {ReadableStream<Uint8Array>} body
 * @param {() => void} onSign something arrived, be it a comment or half an event
 * @returns {AsyncGenerator<StreamEvent, void>}
 */
export async function* eventsOf(body, onSign) {
  let [name, text] = ["", ""];
  for await (const line of linesOf(body, onSign)) {
    const [, field, value] = /^(\w*):? ?(.*)$/s.exec(line) ?? [];
    if (field === "event") name = value;
    else if (field === "data") text += text ? `\n${value}` : value;
    else if (!line) {
      if (text) yield { name, text };
      [name, text] = ["", ""];
    }
  }
}

/** @param {ReadableStream<Uint8Array>} body @param {() => void} onSign @returns {AsyncGenerator<string, void>} */
async function* linesOf(body, onSign) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let line = "";
  for (;;) {
    const { done, value } = await reader.read().catch(() => ({ done: true, value: undefined }));
    if (done) return;
    onSign();
    const [first, ...others] = decoder.decode(value, { stream: true }).split("\n");
    line += first;
    for (const next of others) {
      yield line.replace(/\r$/, "");
      line = next;
    }
  }
}
