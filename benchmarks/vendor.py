"""A model's vendor over HTTP, which speaks Chat Completions: `python -m benchmarks.vendor PORT`.

The name of a model says how it answers. `text-250` writes 250 chunks as vendors do: the first one after 300 ms, then 50
a second. `tools-250` does that in each of four calls, of which the first three also call a tool. With no chunks the
answer is whole and at once. Each chunk is the time at which it was written, so that a reader knows how late it is.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from time import monotonic
from typing import Any

from tests.vendors.chat_wire import DONE, call_deltas, chunk, sse, usage_of
from turnkeeper.ops.local.processes import LOOPBACK
from turnkeeper.testing.vendor_server import Answer, Call

FIRST_SECONDS, CHUNKS_A_SECOND = 0.3, 50

TOOL_CALLS = 3

HEADERS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def written_at(text: str) -> list[float]:
    """Return when each chunk of `text` was written, by the clock of `monotonic`."""
    return [float(word) for word in text.split()]


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length:")[2].partition(b"\r")[0]
            body = json.loads(await reader.readexactly(int(length)))
            writer.write(HEADERS)
            await _answer(writer, body)
            writer.write(b"0\r\n\r\n")
            await writer.drain()
    writer.close()


async def _answer(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
    def send(data: bytes) -> None:
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    kind, _, number = body["model"].partition("-")
    started_at = monotonic()
    for place in range(int(number)):
        await asyncio.sleep(started_at + FIRST_SECONDS + place / CHUNKS_A_SECOND - monotonic())
        send(sse(chunk({"content": f"{monotonic():.4f} "})))
    if not int(number):
        send(sse(chunk({"content": f"{monotonic():.4f} "})))
    calls = list(_call(body["messages"])) if kind == "tools" else []
    for delta in calls:
        send(sse(chunk({"tool_calls": [delta]})))
    usage = {**chunk({}), "choices": [], "usage": usage_of(Answer())}
    send(sse(chunk({}, "tool_calls" if calls else "stop")) + sse(usage) + DONE)


def _call(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the parts of the next tool call, unless the turn has had all."""
    turn = list(takewhile(lambda message: message["role"] != "user", reversed(messages)))
    results = sum(message["role"] == "tool" for message in turn)
    if results < TOOL_CALLS:
        yield from call_deltas(0, Call(f"call{len(messages):05}", "file_read", {"path": "notes.txt"}))


async def serve(port: int) -> None:
    server = await asyncio.start_server(_serve, LOOPBACK, port)
    await server.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(int(sys.argv[1])))
