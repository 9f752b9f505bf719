/**
 * Reads server-sent events. The browser's `EventSource` hides the keep-alive comments, so it can't detect a dead
 * connection.
 */

/** @typedef {{name: string, text: string}} StreamEvent */

/**
 * Yield the events of a response until it ends or its connection is lost.
 *
 * Lines end with a line feed, optionally after a carriage return; `id` and `retry` are ignored.
 *
 * @param {ReadableStream<Uint8Array>} body
 * @param {() => void} onActivity called for every chunk, even of a comment
 * @returns {AsyncGenerator<StreamEvent, void>}
 */
export async function* eventsOf(body, onActivity) {
  let [name, text] = ["", ""];
  for await (const line of linesOf(body, onActivity)) {
    const [, field, value] = /^(\w*):? ?(.*)$/s.exec(line) ?? [];
    if (field === "event") name = value;
    else if (field === "data") text += text ? `\n${value}` : value;
    else if (!line) {
      if (text) yield { name, text };
      [name, text] = ["", ""];
    }
  }
}

/** @param {ReadableStream<Uint8Array>} body @param {() => void} onActivity @returns {AsyncGenerator<string, void>} */
async function* linesOf(body, onActivity) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let line = "";
  for (;;) {
    const { done, value } = await reader.read().catch(() => ({ done: true, value: undefined }));
    if (done) return;
    onActivity();
    const [first, ...others] = decoder.decode(value, { stream: true }).split("\n");
    line += first;
    for (const next of others) {
      yield line.replace(/\r$/, "");
      line = next;
    }
  }
}
