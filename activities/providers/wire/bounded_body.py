"""Limits of response bodies, whatever the vendor sends (AGT-9). Import it together with the SDK.

The SDKs read pages, errors and lines completely before they return any of it, so bytes are counted below them. A body
that is not a stream of events is cut: its beginning is enough. A stream that is too large fails. The limits are for
uncompressed bytes, so requests ask for no compression. Of a server that compresses anyway only errors are read, as far
as the limit allows: they say what to change.
"""

import re
import zlib
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx2

from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.activities.providers.wire.event_stream import NO_STREAMS, content_type

MAX_BODY_BYTES = 1024 * 1024
"""Limit of an error, a page, or anything else that is not an event stream."""

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""Limit of one event: some repeat the whole answer with the request's tools and instructions."""

MAX_EVENT_LINES = 1_000
"""Limit of the lines of one event, which has a handful. The SDKs need quadratic time for them."""

MAX_STREAM_BYTES = 64 * 1024 * 1024
"""Limit of one answer on the wire: about fifty times the largest answer that is stored."""

_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""The compressions that can be read, as `zlib` identifies them."""

_END_OF_LINE = re.compile(rb"[\r\n]")
_END_OF_EVENT = re.compile(rb"\r\r|\n\n|\r\n\r\n")


def client_of(sdk: Any) -> httpx2.AsyncClient:
    """Return an SDK's default HTTP client, with the limits, and without following redirections.

    The conversation must not be sent to an address that nobody configured.
    """
    client: httpx2.AsyncClient = sdk.DefaultAsyncHttpxClient(
        headers={"Accept-Encoding": "identity"}, event_hooks={"response": [_bound]}, follow_redirects=False
    )
    return client


async def _bound(response: httpx2.Response) -> None:
    """Limit the body of a response that has not been read yet."""
    body = cast(httpx2.AsyncByteStream, response.stream)
    encoding = response.headers.pop("content-encoding", "identity").strip().lower()
    is_compressed = encoding != "identity"
    if not response.is_success and encoding in _WINDOW_BITS:
        response.stream = _Beginning(_Inflated(body, _WINDOW_BITS[encoding]), max_bytes=MAX_BODY_BYTES)
    elif not response.is_success:
        response.stream = _Unread(body) if is_compressed else _Beginning(body, max_bytes=MAX_BODY_BYTES)
    elif is_compressed:
        response.stream = _Unreadable(body)
    elif content_type(response.headers) in NO_STREAMS:
        response.stream = _Beginning(body, max_bytes=MAX_BODY_BYTES)
    else:
        response.stream = _Stream(body)


class _Bounded(httpx2.AsyncByteStream):
    """A body with a limit."""

    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body

    async def aclose(self) -> None:
        await self._body.aclose()


class _Unreadable(_Bounded):
    """A compressed body, which can't be limited. There is no answer without it."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        raise httpx2.DecodingError("it is compressed")
        yield b""  # makes it a generator


class _Inflated(_Bounded):
    """A compressed body of an error, read up to `MAX_BODY_BYTES`, or to where it is damaged."""

    def __init__(self, body: httpx2.AsyncByteStream, window_bits: int) -> None:
        super().__init__(body)
        self._window_bits = window_bits

    async def __aiter__(self) -> AsyncIterator[bytes]:
        inflater = zlib.decompressobj(self._window_bits)
        async for piece in self._body:
            try:
                yield inflater.decompress(piece, MAX_BODY_BYTES)
            except zlib.error:
                return


class _Unread(_Bounded):
    """A body of an error in an unknown compression: the status is enough."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"(not read: it is compressed, which was not asked for)"


class _Beginning(_Bounded):
    """A body that is cut after its first `max_bytes` bytes."""

    def __init__(self, body: httpx2.AsyncByteStream, *, max_bytes: int) -> None:
        super().__init__(body)
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        remaining = self._max_bytes
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
            # The end of an event may span two pieces. The rest of a piece after it isn't counted: pieces are small.
            if _END_OF_EVENT.search(end + piece):
                event = lines = 0
            end = (end + piece)[-3:]
            if whole > MAX_STREAM_BYTES:
                raise ModelError("too_large", f"it has over {MAX_STREAM_BYTES:,} bytes on the wire")
            if event > MAX_EVENT_BYTES or lines > MAX_EVENT_LINES:
                max_bytes = f"{MAX_EVENT_BYTES:,} bytes or {MAX_EVENT_LINES:,} lines"
                raise ModelError("too_large", f"an event of it has over {max_bytes}")
            yield piece
