"""A vendor's answer that is read only so far, whatever the vendor sends: to be loaded with its SDK (AGT-9).

Theory of operation. The SDKs read pages and errors whole, and lines to their end, before they show any of it; so bytes
are counted where they come in, under everything that gathers them. A body that is no stream of events is cut: its
beginning says what it is. A stream is given up. Bytes are counted as they are sent, so nothing may be compressed on the
way: requests ask for that, and the body of a server that does it all the same is not read.
"""

import re
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx2

from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.activities.providers.wire.content_types import NO_STREAMS, content_type

MAX_BODY_BYTES = 1024 * 1024
"""Of an error, a page, or anything else that is no stream of events."""

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""Of one event: some repeat the whole answer, and the request's tools and instructions with it."""

MAX_EVENT_LINES = 1_000
"""Of one event; each has a handful. The SDKs take time by the square of them."""

MAX_STREAM_BYTES = 64 * 1024 * 1024
"""Of one answer on the wire: some fifty times of what the largest answer that is kept has there."""

_END_OF_LINE = re.compile(rb"[\r\n]")
_END_OF_EVENT = re.compile(rb"\r\r|\n\n|\r\n\r\n")


def client_of(sdk: Any) -> httpx2.AsyncClient:
    """Return the HTTP client of an SDK, as it makes it itself, but for the bounds, and that it follows no redirection.

    The conversation is for the address it was set up for, and not for whoever that names.
    """
    client: httpx2.AsyncClient = sdk.DefaultAsyncHttpxClient(
        headers={"Accept-Encoding": "identity"}, event_hooks={"response": [_bound]}, follow_redirects=False
    )
    return client


async def _bound(response: httpx2.Response) -> None:
    """Bound the body of a response that has not been read yet."""
    body = cast(httpx2.AsyncByteStream, response.stream)
    is_compressed = response.headers.pop("content-encoding", "identity").strip().lower() != "identity"
    if not response.is_success:
        response.stream = _Unread(body) if is_compressed else _Beginning(body, max_bytes=MAX_BODY_BYTES)
    elif is_compressed:
        response.stream = _Unreadable(body)
    elif content_type(response.headers) in NO_STREAMS:
        response.stream = _Beginning(body, max_bytes=MAX_BODY_BYTES)
    else:
        response.stream = _Stream(body)


class _Bounded(httpx2.AsyncByteStream):
    """A body of which no more is read than is good."""

    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body

    async def aclose(self) -> None:
        await self._body.aclose()


class _Unreadable(_Bounded):
    """A body that could not be bounded, and without which there is no answer."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        raise httpx2.DecodingError("it is compressed")
        yield b""  # makes it a generator


class _Unread(_Bounded):
    """A body that could not be bounded, and that need not be read: an error says most by its status."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"(not read: it is compressed, which was not asked for)"


class _Beginning(_Bounded):
    """A body that is cut after its first `max_bytes` bytes."""

    def __init__(self, body: httpx2.AsyncByteStream, *, max_bytes: int) -> None:
        super().__init__(body)
        self._most = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        remaining = self._most
        async for piece in self._body:
            yield piece[:remaining]
            remaining -= len(piece)
            if remaining <= 0:
                return


class _Stream(_Bounded):
    """A stream of events. Reading raises `ModelError` where it, or one event of it, is too large."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        whole = event = lines = 0
        end = b""
        async for piece in self._body:
            whole, event, lines = whole + len(piece), event + len(piece), lines + len(_END_OF_LINE.findall(piece))
            # An event may end over two pieces. What stands behind the end in one needs no count: no piece is large.
            if _END_OF_EVENT.search(end + piece):
                event = lines = 0
            end = (end + piece)[-3:]
            if whole > MAX_STREAM_BYTES:
                raise ModelError("too_large", f"it has over {MAX_STREAM_BYTES:,} bytes on the wire")
            if event > MAX_EVENT_BYTES or lines > MAX_EVENT_LINES:
                max_bytes = f"{MAX_EVENT_BYTES:,} bytes or {MAX_EVENT_LINES:,} lines"
                raise ModelError("too_large", f"an event of it has over {max_bytes}")
            yield piece
