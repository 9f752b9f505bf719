"""Limits of response bodies, whatever the vendor sends (AGT-9). Import it together with the SDK.

The SDKs read pages, errors and lines completely before they return any of it, so bytes are counted below them. A body
that is not a stream of events is cut: its beginning is enough. A stream that is too large fails. The limits are for
uncompressed bytes, so requests ask for no compression. Of a server that compresses anyway only errors are read, as far
as the limit allows: they say what to change.
"""

import re
import zlib
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, cast

import httpx2

from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.activities.providers.transport import NO_STREAMS, content_type

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
    body = cast(httpx2.AsyncByteStream, response.stream)
    encoding = response.headers.pop("content-encoding", "identity").strip().lower()
    if encoding in _WINDOW_BITS and not response.is_success:
        pieces = _beginning(_inflated(body, _WINDOW_BITS[encoding]))
    elif encoding != "identity":
        pieces = _unreadable(is_error=not response.is_success)
    elif not response.is_success or content_type(response.headers) in NO_STREAMS:
        pieces = _beginning(body)
    else:
        pieces = _events(body)
    response.stream = _Bounded(body, pieces)


class _Bounded(httpx2.AsyncByteStream):
    """A body of which only these `pieces` are read."""

    def __init__(self, body: httpx2.AsyncByteStream, pieces: AsyncIterator[bytes]) -> None:
        self._body = body
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def aclose(self) -> None:
        await self._body.aclose()


async def _unreadable(*, is_error: bool) -> AsyncIterator[bytes]:
    """Read nothing of a compression that can't be limited. Of an error the status is enough."""
    if not is_error:
        raise httpx2.DecodingError("it is compressed")
    yield b"(not read: it is compressed, which was not asked for)"


async def _inflated(body: AsyncIterable[bytes], window_bits: int) -> AsyncIterator[bytes]:
    """Yield a compressed body up to `MAX_BODY_BYTES` for each piece, or up to where it is damaged."""
    inflater = zlib.decompressobj(window_bits)
    async for piece in body:
        try:
            yield inflater.decompress(piece, MAX_BODY_BYTES)
        except zlib.error:
            return


async def _beginning(body: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    remaining = MAX_BODY_BYTES
    async for piece in body:
        yield piece[:remaining]
        remaining -= len(piece)
        if remaining <= 0:
            return


async def _events(body: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield a stream of events. Raises `ModelError` where it, or one event of it, is too large."""
    whole = event = lines = 0
    end = b""
    async for piece in body:
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
