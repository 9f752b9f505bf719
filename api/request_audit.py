"""The audit of HTTP requests: a dependency of all routes writes the entry, a middleware the outcome.

Every operation that is no GET must be in the table of `actions.py`; one that is not fails before it does anything.
A request that ends without an answer, because it is cancelled, gets a status that means: it may have been changed.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnkeeper.api.audit.actions import OPERATIONS, UNCHANGING, UNREAD, Change, RequestParts
from turnkeeper.api.audit.recorder import Recording
from turnkeeper.api.auth.open_requests import let_change_finish
from turnkeeper.api.callers import Caller
from turnkeeper.api.dependencies import get_caller, get_services
from turnkeeper.api.problems import ProblemError, problem, problem_of
from turnkeeper.api.services import Services
from turnkeeper.stores.database.database import StoreUnavailableError

MAX_ANSWER_BYTES = 1_100_000
"""An answer up to this size is read for the ids that the gateway chose; the largest is a turn."""

NO_ANSWER = 500
"""The outcome of a request that ended without an answer."""

_STATE = "recording"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


async def record_request(request: Request) -> None:
    """Write what the request asks for into the audit, and check the limits of sessions. Raises `ProblemError`."""
    route = request.scope.get("route")
    if request.method in _SAFE_METHODS or not isinstance(route, APIRoute):
        return
    operation = route.operation_id or ""
    if operation in UNCHANGING:
        return
    services, caller = await get_services(request), await get_caller(request)
    changes = OPERATIONS[operation](await _parts_of(request, reads_body=operation not in UNREAD))
    if changes:
        request.scope["state"][_STATE] = await begin_changes(services, caller, changes, operation=operation)
        let_change_finish(request.scope)


def recording_of(request: Request) -> Recording:
    """Return the entries of a request that changes something."""
    recording: Recording = request.scope["state"][_STATE]
    return recording


async def begin_changes(services: Services, caller: Caller, changes: list[Change], *, operation: str) -> Recording:
    """Check the limits of sessions and write the entries. Raises `ProblemError`; then nothing may be done."""
    try:
        await services.limits.check(caller, changes)
    except ProblemError:
        services.audit.note_refusal(caller, operation=operation, status=429, session_id=changes[0].session_id)
        raise
    try:
        return await services.audit.begin(caller, changes, operation=operation)
    except StoreUnavailableError as error:
        detail = f"{error} The audit can't record the change, so nothing was done. Try again."
        raise problem("archive-unavailable", detail) from error


@asynccontextmanager
async def recorded(
    services: Services, caller: Caller, changes: list[Change], *, operation: str, scope: MutableMapping[str, Any]
) -> AsyncIterator[Recording]:
    """Write the entries, and the outcome of the block. Raises as `begin_changes` does. `scope`: the request's."""
    recording = await begin_changes(services, caller, changes, operation=operation)
    let_change_finish(scope)
    try:
        yield recording
    except asyncio.CancelledError:
        recording.finish(NO_ANSWER)
        raise
    except Exception as error:
        recording.finish(problem_of(error, is_of_task=True).problem.status)
        raise
    recording.finish(200)


async def _parts_of(request: Request, *, reads_body: bool) -> RequestParts:
    # FastAPI has read the body before its dependencies; one that is no JSON object is rejected after them.
    try:
        body = await request.json() if reads_body and await request.body() else {}
    except ValueError:
        body = {}
    return RequestParts(
        path=request.path_params,
        query=request.query_params,
        headers=request.headers,
        body=body if isinstance(body, Mapping) else {},
    )


class RecordingMiddleware:
    """Writes the outcome of every request that has an entry."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _SAFE_METHODS:
            await self._app(scope, receive, send)
            return
        answer = _Answer(scope.setdefault("state", {}), send)
        try:
            await self._app(scope, receive, answer.send)
        except (Exception, asyncio.CancelledError):
            answer.finish(NO_ANSWER)
            raise


class _Answer:
    """An answer on its way to the client."""

    def __init__(self, state: dict[str, Any], send: Send) -> None:
        self._state = state
        self._send = send
        self._status = 0
        self._is_json = False
        self._body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            media_type = dict(message["headers"]).get(b"content-type", b"")
            self._is_json = self._status < 300 and media_type.startswith(b"application/json")
            if not self._is_json:
                self.finish(self._status)
        elif self._is_json and message["type"] == "http.response.body":
            if len(self._body) <= MAX_ANSWER_BYTES:
                self._body += message.get("body", b"")
            if not message.get("more_body"):
                self.finish(self._status)
        await self._send(message)

    def finish(self, status: int) -> None:
        recording: Recording | None = self._state.get(_STATE)
        if recording is None:
            return
        answer = from_json(self._body) if 0 < len(self._body) <= MAX_ANSWER_BYTES else None
        fields = answer if isinstance(answer, dict) else {}
        # A turn has its own id, and no session's.
        message_id = fields.get("message_id") or (None if "workflow_id" in fields else fields.get("id"))
        recording.finish(status, session_id=fields.get("workflow_id"), message_id=message_id)
