"""A session's events; a lost connection is resumed.

The gateway's event stream has an id for every final event. Resuming after the last id neither skips nor repeats an
event, at any gateway. Partial output has no id: it starts again.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal

import httpx2
from pydantic import ValidationError

from turnkeeper.clients.python.conversation import Cursor
from turnkeeper.clients.python.errors import (
    GatewayError,
    GatewayProblemError,
    GatewayUnreachableError,
    GatewayUnreadableError,
    Problem,
)
from turnkeeper.clients.python.request_sender import RequestSender
from turnkeeper.models.errors import growing_pauses
from turnkeeper.models.session.prompts import QueuedPrompt
from turnkeeper.models.transcript.conversation import FINAL_STATUSES, ConversationUpdate
from turnkeeper.models.transcript.partial_output import CallProgress, PartialGrowth
from turnkeeper.models.wire import Frozen

SILENCE_SECONDS = 45.0
"""A connection without data for this long counts as lost: the gateway sends something every 15 s."""

MAX_EVENT_BYTES = 64 * 1024 * 1024
"""An update has about 1 MB, or a single larger turn."""

MIN_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 5.0


class UpdateEvent(Frozen):
    """New and changed turns, and the session's state."""

    event: Literal["update"] = "update"
    update: ConversationUpdate


class QueueEvent(Frozen):
    """The queue, after each change."""

    event: Literal["queue"] = "queue"
    waiting: list[QueuedPrompt] = []


class PartialEvent(Frozen):
    """Partial output since the last such event."""

    event: Literal["partial"] = "partial"
    partial: PartialGrowth


class ProgressEvent(Frozen):
    """How far a running tool call is."""

    event: Literal["progress"] = "progress"
    progress: CallProgress


class ConnectionLostEvent(Frozen):
    """The connection is lost. It is retried every few seconds; the next event means that it is back.

    `problem` is the name of the gateway's problem, such as `no-worker`; None if there was no response.
    """

    event: Literal["lost"] = "lost"
    reason: str
    problem: str | None = None


Event = UpdateEvent | QueueEvent | PartialEvent | ProgressEvent | ConnectionLostEvent


async def follow(
    sender: RequestSender, path: str, cursor: Cursor, *, patience: float | None = None
) -> AsyncGenerator[Event, None]:
    """Yield events since `cursor`, until the session is closed.

    `patience`: give up after this many seconds without a connection; None: never. A connection counts from its first
    event on.

    Raises:
        GatewayProblemError: The session does not exist (any more), or another problem is not temporary, or `patience`
            has run out.
        GatewayUnreachableError: `patience` has run out.
        GatewayUnreadableError: The server's events are not those of a gateway.
    """
    clock = asyncio.get_running_loop().time
    stream, pauses = _Stream(sender, path, cursor), growing_pauses(MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
    lost_at: float | None = clock()
    while not stream.is_over:
        error: GatewayError = GatewayUnreachableError(sender.url, "it closed the connection")
        try:
            async with aclosing(stream.read()) as events:
                async for event in events:
                    lost_at, pauses = None, growing_pauses(MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
                    yield event
            if stream.is_over:
                return
        except GatewayProblemError as problem:
            if not problem.is_temporary:
                raise
            error = problem
        except GatewayUnreachableError as unreachable:
            error = unreachable
        # Counted from the loss, not from the last event: a connected session may be silent for long.
        lost_at = clock() if lost_at is None else lost_at
        if patience is not None and clock() - lost_at > patience:
            raise error
        name = error.problem.name if isinstance(error, GatewayProblemError) else None
        yield ConnectionLostEvent(reason=str(error), problem=name)
        retry_after = error.retry_after if isinstance(error, GatewayProblemError) else None
        await asyncio.sleep(max(next(pauses), retry_after or 0.0))


class _Stream:
    """The events of a session, over any number of connections."""

    def __init__(self, sender: RequestSender, path: str, cursor: Cursor) -> None:
        self._sender = sender
        self._path = path
        self._cursor = cursor
        self._last_event_id = ""
        self._was_open = False
        self.is_over = False

    async def read(self) -> AsyncGenerator[Event, None]:
        """Yield the events of one connection. Raises its error."""
        headers = {"Last-Event-ID": self._last_event_id} if self._last_event_id else {}
        params = {} if headers else self._cursor.model_dump()
        async with self._sender.stream(self._path, params=params, headers=headers, silence=SILENCE_SECONDS) as response:
            if response.status_code == httpx2.codes.NO_CONTENT:
                # A gateway that is shutting down answers so too, which is not the session's end.
                self.is_over = not self._was_open
                return
            async for sse in httpx2.EventSource(response, max_event_size=MAX_EVENT_BYTES):
                event = self._parse_event(sse)
                if event:
                    self._last_event_id = sse.id
                    yield event
                if isinstance(event, UpdateEvent):
                    # After the yield: a consumer that stops here gets the event again.
                    self.is_over = event.update.status in FINAL_STATUSES and not event.update.has_more
                    self._was_open = event.update.status not in FINAL_STATUSES

    def _parse_event(self, sse: httpx2.ServerSentEvent) -> Event | None:
        """Return the typed event; None for a kind that only a newer client knows."""
        try:
            match sse.event:
                case "update":
                    return UpdateEvent(update=ConversationUpdate.model_validate_json(sse.data))
                case "queue":
                    return QueueEvent.model_validate_json(sse.data)
                case "partial":
                    return PartialEvent(partial=PartialGrowth.model_validate_json(sse.data))
                case "progress":
                    return ProgressEvent(progress=CallProgress.model_validate_json(sse.data))
                case "problem":
                    problem = Problem.model_validate_json(sse.data)
                    return ConnectionLostEvent(reason=problem.detail, problem=problem.name)
                case _:
                    return None
        except ValidationError as error:
            raise GatewayUnreadableError(self._sender.url) from error
