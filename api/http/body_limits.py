"""Limits of request bodies (API-4)."""

import re

import anyio
from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnkeeper.api.http.problem_responses import problem_response
from turnkeeper.api.problems import problem

MAX_BODY_BYTES = 1024 * 1024
MAX_HISTORY_BYTES = 10 * 1024 * 1024
"""For routes that accept a conversation or attachments."""

_TAKING_HISTORIES = frozenset({"/api/chat", "/mcp", "/tasks", "/tasks/preview", "/workflow", "/chat"})
_TAKING_ATTACHMENTS = re.compile(r"/workflow/[^/]+/(?:prompt|attachments)")

MAX_DRAINED_BYTES = 32 * 1024 * 1024
DRAIN_SECONDS = 5.0
"""How much of a rejected body is read and discarded, and for how long."""

IMPORT_PATH = "/workflow/import"


def max_body_bytes(path: str, *, max_import_bytes: int = MAX_HISTORY_BYTES) -> int:
    """Return the limit of a body sent to `path`, in bytes.

    >>> max_body_bytes("/workflow/s1"), max_body_bytes("/workflow/s1/prompt")
    (1048576, 10485760)
    >>> max_body_bytes("/workflow/import", max_import_bytes=64 * 1024 * 1024)
    67108864
    """
    if path == IMPORT_PATH:
        return max_import_bytes
    takes_more = path in _TAKING_HISTORIES or _TAKING_ATTACHMENTS.fullmatch(path)
    return MAX_HISTORY_BYTES if takes_more else MAX_BODY_BYTES


class BodyLimitMiddleware:
    """Rejects bodies over the limit without reading all of them.

    FastAPI's own limit has the same value, but responds in plain text.
    """

    def __init__(self, app: ASGIApp, *, max_import_bytes: int) -> None:
        self._app = app
        self._max_import_bytes = max_import_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        max_bytes = max_body_bytes(scope["path"], max_import_bytes=self._max_import_bytes)
        if _announced_bytes(scope) > max_bytes:
            await _drain(scope, receive)
            await problem_response(problem("too-large", mib=max_bytes // 1024**2))(scope, receive, send)
        else:
            await self._app(scope, _limit_received(scope, receive, max_bytes), send)


def _announced_bytes(scope: Scope) -> int:
    length = dict(scope["headers"]).get(b"content-length", b"0")
    return int(length) if length.isdigit() else 0


async def _drain(scope: Scope, receive: Receive) -> None:
    """Read and discard the rest of a body, up to a bound.

    A client that sends everything before it reads would otherwise see a connection reset instead of the response.
    """
    if any(name == b"expect" for name, _ in scope["headers"]):
        return  # the client waits for the response before it sends
    remaining = MAX_DRAINED_BYTES
    with anyio.move_on_after(DRAIN_SECONDS):
        while remaining > 0:
            message = await receive()
            remaining -= len(message.get("body", b""))
            if not message.get("more_body"):
                return


def _limit_received(scope: Scope, receive: Receive, max_bytes: int) -> Receive:
    received = 0

    async def receive_limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > max_bytes:
            if message.get("more_body"):
                await _drain(scope, receive)
            raise HTTPException(413, problem("too-large", mib=max_bytes // 1024**2).problem.detail)
        return message

    return receive_limited
