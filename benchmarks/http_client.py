"""A client that costs little: what a benchmark measures is the gateway, and both share the processors."""

import asyncio
import json
from time import monotonic
from typing import Any

from httpx import codes

from turnkeeper.ops.local.processes import LOOPBACK

KEPT_OPEN_SECONDS = 1.0
"""The gateway closes a connection that is idle for 5 s."""

LIMIT = 2**24
"""The longest line of an answer or event, in bytes."""

COMPLETE = b'"is_complete":true'


class HttpConnection:
    """One connection to a gateway on this machine, which is opened again after a pause."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._used_at = 0.0

    async def get(self, path: str) -> Any:
        """Return the JSON of an answer. Raises `RuntimeError` unless its status is 200."""
        status, body = await self._exchange("GET", path, b"")
        if status != codes.OK:
            raise RuntimeError(f"GET {path}: {status} {body!r}")
        return json.loads(body)

    async def post(self, path: str, body: Any) -> Any:
        """Return the JSON of an answer. A request that a busy machine refused is repeated, as clients do.

        Raises `RuntimeError` at any other status but 2xx.
        """
        while True:
            status, answer = await self._exchange("POST", path, json.dumps(body).encode())
            if codes.is_success(status):
                return json.loads(answer)
            if status != codes.SERVICE_UNAVAILABLE:
                raise RuntimeError(f"POST {path}: {status} {answer!r}")

    def close(self) -> None:
        if self._streams:
            self._streams[1].close()

    async def _exchange(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if self._streams is None or monotonic() - self._used_at > KEPT_OPEN_SECONDS:
            self.close()
            self._streams = await asyncio.open_connection(LOOPBACK, self._port, limit=LIMIT)
        reader, writer = self._streams
        head = f"{method} {path} HTTP/1.1\r\nHost: {LOOPBACK}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        headers = await reader.readuntil(b"\r\n\r\n")
        length = int(headers.lower().partition(b"content-length: ")[2].partition(b"\r")[0] or 0)
        answer = await reader.readexactly(length)
        self._used_at = monotonic()
        return int(headers.split()[1]), answer


class EventStream:
    """A watcher of a session, from its newest turn on."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def of(cls, port: int, session_id: str, *, after: str | None = None) -> "EventStream":
        """Watch the session at a gateway; `after`: the id of the last event that the watcher has seen."""
        reader, writer = await asyncio.open_connection(LOOPBACK, port, limit=LIMIT)
        last = f"Last-Event-ID: {after}\r\n" if after else ""
        writer.write(f"GET /workflow/{session_id}/events HTTP/1.1\r\nHost: {LOOPBACK}\r\n{last}\r\n".encode())
        await reader.readuntil(b"event: update")
        return cls(reader, writer)

    async def until_complete(self, message_id: str) -> None:
        """Wait until the answer to the prompt is there."""
        while line := await self._reader.readline():
            if COMPLETE in line:
                update = json.loads(line[line.index(b"{") :])
                for turn in (*update.get("new_messages", ()), *update.get("updated_messages", ())):
                    if turn["id"] == message_id and turn["is_complete"]:
                        return
        raise ConnectionError("the gateway has closed the stream")

    def close(self) -> None:
        self._writer.close()
