"""gzip for the gateway's own files and for its JSON (OPS-11), and ETags: how clients learn that nothing has changed.

Event streams, uploads and large texts pass as they are. So does an answer that sets a cookie: what is compressed
together with a secret can be guessed from the length (`docs/decisions/0070`).

ETags of what may be compressed are weak: they stand for both encodings.
"""

import asyncio
import zlib
from collections.abc import Mapping
from hashlib import sha256

from fastapi import Request, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnkeeper.models.session.messages import UpdatesRequest


def matches(etag: str, if_none_match: str) -> bool:
    """Return whether the header `If-None-Match` contains `etag`.

    >>> matches('W/"a"', 'W/"b", "a"'), matches('"a"', '*'), matches('"a"', '"b"')
    (True, True, False)
    """
    candidates = [candidate.strip().removeprefix("W/") for candidate in if_none_match.split(",")]
    return etag.removeprefix("W/") in candidates or "*" in candidates


def poll_etag(first_run_id: str, cursor: UpdatesRequest, revision: int) -> str:
    """Return the ETag of an answer to a poll: the session's first run, its revision, and the request.

    >>> page = UpdatesRequest(last_seen_message_id="p-1", since_revision=7, limit=1)
    >>> poll_etag("r", page, 7) == poll_etag("r", UpdatesRequest(limit=1), 7)
    False
    """
    question = sha256(cursor.model_dump_json().encode()).hexdigest()[:12]
    return f'W/"{first_run_id}-{revision}-{question}"'


MIN_BYTES = 1_400
"""A shorter answer takes one packet either way."""

MAX_INLINE_BYTES = 65_536
"""A longer one is compressed in a thread: this much takes 0.7 ms."""

_LEVEL = 3
"""Of JSON. Level 6 takes two to three times as long for a twelfth less."""


def gzipped(content: bytes, *, level: int = 9) -> bytes:
    """Return `content` in the format of gzip."""
    return zlib.compress(content, level, wbits=16 + zlib.MAX_WBITS)


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether a client with this header wants gzip.

    >>> [accepts_gzip(header) for header in ("br, gzip", "GZIP;q=0.5", "*", "gzip;q=0, *", "identity", "")]
    [True, True, True, False, False, False]
    """
    accepted = {}
    for entry in accept_encoding.lower().replace(" ", "").split(","):
        coding, _, weight = entry.partition(";q=")
        accepted[coding] = not weight or weight.strip("0.") != ""
    return accepted.get("gzip", accepted.get("*", False))


class StaticContent:
    """A text that never changes, kept gzipped in memory. Its ETag is weak, since it stands for both encodings."""

    def __init__(self, content: bytes, media_type: str, headers: Mapping[str, str]) -> None:
        self._gzipped = gzipped(content)
        self._media_type = media_type
        self._headers = {**headers, "ETag": f'W/"{sha256(content).hexdigest()[:32]}"', "Vary": "Accept-Encoding"}

    def response_to(self, request: Request) -> Response:
        """Return the text, or 304 if the client has it."""
        if matches(self._headers["ETag"], request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=self._headers)
        if accepts_gzip(request.headers.get("accept-encoding", "")):
            headers = {**self._headers, "Content-Encoding": "gzip"}
            return Response(self._gzipped, headers=headers, media_type=self._media_type)
        content = zlib.decompress(self._gzipped, wbits=16 + zlib.MAX_WBITS)
        return Response(content, headers=self._headers, media_type=self._media_type)


class CompressionMiddleware:
    """Compresses JSON that is sent as a whole, for clients that accept it. Streams pass as they are."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start: Message | None = None  # of JSON whose body has not begun

        async def send_compressed(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and _is_compressible(message):
                start = message
                return
            if start is not None:
                head, start = start, None
                if len(message.get("body", b"")) >= MIN_BYTES and not message.get("more_body"):
                    head, message = await _compressed(scope, head, message)
                await send(head)
            await send(message)

        await self._app(scope, receive, send_compressed)


def _is_compressible(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    is_json = headers.get("content-type", "").startswith("application/json")
    # A strong ETag stands for the bytes as they are, such as those of an upload.
    names_its_bytes = headers.get("etag", "W/")[:2] != "W/"
    has_encoding_or_cookie = "content-encoding" in headers or "set-cookie" in headers
    return is_json and start["status"] == 200 and not names_its_bytes and not has_encoding_or_cookie


async def _compressed(scope: Scope, start: Message, message: Message) -> tuple[Message, Message]:
    """Return both messages, as they are if the client doesn't accept gzip."""
    headers, body = MutableHeaders(raw=list(start["headers"])), message["body"]
    headers.add_vary_header("Accept-Encoding")
    if accepts_gzip(Headers(scope=scope).get("accept-encoding", "")):
        if len(body) > MAX_INLINE_BYTES:
            body = await asyncio.to_thread(gzipped, body, level=_LEVEL)
        else:
            body = gzipped(body, level=_LEVEL)
        headers.update({"Content-Encoding": "gzip", "Content-Length": str(len(body))})
    return {**start, "headers": headers.raw}, {**message, "body": body}
