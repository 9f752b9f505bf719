"""What a session tells those who watch it, as it happens; a connection that is lost is taken up again where it was.

The gateway's event stream has an id for everything that is final: how far the client is. Asked again from there, it
neither leaves out nor repeats anything, whichever gateway answers. Partial output has no id: it starts afresh.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal

import httpx2
from pydantic import ValidationError

from turnkeeper.clients.python.calls import Calls
from turnkeeper.clients.python.conversation import OVER, Cursor
from turnkeeper.clients.python.errors import (
    GatewayError,
    GatewayProblem,
    GatewayUnreachable,
    GatewayUnreadable,
    Problem,
)
from turnkeeper.models.backoff import growing_pauses
from turnkeeper.models.session.queue.prompts import QueuedPrompt
from turnkeeper.models.transcript.conversation import ConversationUpdate
from turnkeeper.models.transcript.partial_output import PartialGrowth
from turnkeeper.models.wire import Frozen

SILENCE_SECONDS = 45.0
"""Without a sign of life for this long the connection is given up: the gateway sends one every 15 s."""

MAX_EVENT_BYTES = 64 * 1024 * 1024
"""An update is about 1 MB, and a turn that is larger alone is sent whole."""

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0


class UpdateEvent(Frozen):
    """What is new of what is final: turns, and what the session does."""

    event: Literal["update"] = "update"
    update: ConversationUpdate


class QueueEvent(Frozen):
    """What waits, whenever that has changed."""

    event: Literal["queue"] = "queue"
    waiting: list[QueuedPrompt] = []


class PartialEvent(Frozen):
    """What the model has written since the last one."""

    event: Literal["partial"] = "partial"
    partial: PartialGrowth


class ConnectionLost(Frozen):
    """Nothing is heard of the session for now; the next event says that it is again. It is asked every few seconds."""

    event: Literal["lost"] = "lost"
    reason: str


Event = UpdateEvent | QueueEvent | PartialEvent | ConnectionLost


async def follow(
    calls: Calls, path: str, cursor: Cursor, *, patience: float | None = None
) -> AsyncGenerator[Event, None]:
    """Yield what is new since `cursor`, and then whatever is new, until the session is closed.

    `patience`: seconds without a connection after which it is given up; null: never. A connection counts from its
    first event on.

    Raises:
        GatewayProblem: The session is not known (any more), or something else that asking again does not mend; or
            `patience` was over.
        GatewayUnreachable: `patience` was over.
        GatewayUnreadable: What answers sends no events that this client understands.
    """
    clock = asyncio.get_running_loop().time
    stream, pauses = _Stream(calls, path, cursor), growing_pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
    lost_at: float | None = clock()
    while not stream.is_over:
        error: GatewayError = GatewayUnreachable(calls.url, "it ended the connection")
        try:
            async with aclosing(stream.read()) as events:
                async for event in events:
                    lost_at, pauses = None, growing_pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
                    yield event
            if stream.is_over:
                return
        except GatewayProblem as problem:
            if not problem.may_pass:
                raise
            error = problem
        except GatewayUnreachable as unreachable:
            error = unreachable
        # A session may have been silent for long before its connection is lost: that is no time without one.
        lost_at = clock() if lost_at is None else lost_at
        if patience is not None and clock() - lost_at > patience:
            raise error
        yield ConnectionLost(reason=str(error))
        await asyncio.sleep(next(pauses))


class _Stream:
    """The events of a session over however many connections."""

    def __init__(self, calls: Calls, path: str, cursor: Cursor) -> None:
        self._calls = calls
        self._path = path
        self._cursor = cursor
        self._last_event_id = ""
        self._was_open = False
        self.is_over = False

    async def read(self) -> AsyncGenerator[Event, None]:
        """Yield the events of one connection. Raises what ends it otherwise than in good order."""
        headers = {"Last-Event-ID": self._last_event_id} if self._last_event_id else {}
        params = {} if headers else self._cursor.model_dump()
        async with self._calls.stream(self._path, params=params, headers=headers, silence=SILENCE_SECONDS) as response:
            if response.status_code == httpx2.codes.NO_CONTENT:
                # A gateway that is about to stop has nothing to tell either, and that is not the session's end.
                self.is_over = not self._was_open
                return
            async for received in httpx2.EventSource(response, max_event_size=MAX_EVENT_BYTES):
                event = self._read_event(received)
                if event:
                    self._last_event_id = received.id
                    yield event
                if isinstance(event, UpdateEvent):
                    # Only once it has been taken: whoever stops in between gets it again.
                    self.is_over = event.update.status in OVER and not event.update.has_more
                    self._was_open = event.update.status not in OVER

    def _read_event(self, received: httpx2.ServerSentEvent) -> Event | None:
        """Return an event as its own type; kinds that a newer gateway sends are left aside."""
        try:
            match received.event:
                case "update":
                    return UpdateEvent(update=ConversationUpdate.model_validate_json(received.data))
                case "queue":
                    return QueueEvent.model_validate_json(received.data)
                case "partial":
                    return PartialEvent(partial=PartialGrowth.model_validate_json(received.data))
                case "problem":
                    return ConnectionLost(reason=Problem.model_validate_json(received.data).detail)
                case _:
                    return None
        except ValidationError as error:
            raise GatewayUnreadable(self._calls.url) from error
