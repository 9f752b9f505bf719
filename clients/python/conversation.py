"""A session's events, resumed after a lost connection, and a client's copy of its conversation (SES-12).

The gateway's event stream has an id for every final event. Resuming after the last id neither skips nor repeats an
event, at any gateway. Partial output has no id: it starts again.

The copy does no I/O. The gateway returns what is new since a cursor; the copy applies it and has the next cursor:

    reset     drop all turns
    updated   replace the turns with those ids
    new       append the turns

The copy is always the end of the transcript, without gaps. Partial output is separate: it is visible only until the
final step replaces it.

    >>> from datetime import UTC, datetime
    >>> from turnkeeper.models.transcript.conversation import ConversationMessage
    >>> turn = ConversationMessage(
    ...     id="p1", user_message="Hi", timestamp=datetime(2026, 1, 1, tzinfo=UTC),
    ...     user_timestamp=datetime(2026, 1, 1, tzinfo=UTC), revision=2)
    >>> def update(**fields):
    ...     state = dict(is_processing=True, current_message_id="p1", last_seen_message_id="p1", queue_length=0)
    ...     rest = dict(new_messages=[], updated_messages=[], reset=False, has_more=False, status="processing")
    ...     return ConversationUpdate(**{**state, **rest, **fields})
    >>> copy = Conversation()
    >>> copy.apply(update(new_messages=[turn], revision=2))
    >>> copy.cursor, copy.running_turn.id
    (Cursor(last_seen_message_id='p1', since_revision=2), 'p1')

    >>> from turnkeeper.models.transcript.partial_output import GrownPart
    >>> tag = dict(message_id="p1", turn=1, step=1, request=1, attempt=1)
    >>> copy.apply_partial(PartialGrowth(**tag, fresh=True, parts=[GrownPart(index=0, kind="respond", text="Hel")]))
    >>> copy.apply_partial(PartialGrowth(**tag, fresh=False, parts=[GrownPart(index=0, kind="respond", text="lo")]))
    >>> [part.text for part in copy.partial_parts]
    ['Hello']

    >>> answered = turn.model_copy(update={"agent_message": "Hello!", "status": "completed", "revision": 3})
    >>> copy.apply(update(updated_messages=[answered], revision=3, current_message_id=None, is_processing=False))
    >>> copy.turns[0].agent_message, copy.running_turn, copy.partial_parts
    ('Hello!', None, [])
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Literal

import httpx2
from pydantic import ValidationError

from turnkeeper.clients.python.request_sender import (
    GatewayError,
    GatewayProblemError,
    GatewayUnreachableError,
    GatewayUnreadableError,
    Problem,
    RequestSender,
)
from turnkeeper.models.errors import growing_pauses
from turnkeeper.models.session.prompts import QueuedPrompt
from turnkeeper.models.transcript.conversation import (
    FINAL_STATUSES,
    ConversationMessage,
    ConversationState,
    ConversationUpdate,
    ModelStep,
    SessionStatus,
    SubTask,
    ToolCall,
)
from turnkeeper.models.transcript.partial_output import (
    CallProgress,
    PartialGrowth,
    PartialOutput,
    PartialPart,
    with_growth,
    with_progress,
)
from turnkeeper.models.wire import Frozen, UtcDatetime


class Cursor(Frozen):
    """A client's position in a session, which it sends to get what is new. Both are null before the first update."""

    last_seen_message_id: str | None = None
    since_revision: int | None = None


class Conversation:
    """One session, as its client knows it. `turns` are oldest first; do not modify them."""

    def __init__(self) -> None:
        self.turns: list[ConversationMessage] = []
        self.waiting: list[QueuedPrompt] = []
        self.progress: dict[str, CallProgress] = {}
        """How far tool calls are, by id; of no interest once a call has its result."""
        self._latest: ConversationUpdate | None = None
        self._partial: PartialOutput | None = None

    # ---- changes

    def apply(self, update: ConversationUpdate) -> None:
        if update.reset:
            self.turns = []
        changed = {turn.id: turn for turn in update.updated_messages}
        self.turns = [changed.get(turn.id, turn) for turn in self.turns] + update.new_messages
        self._latest = update
        self._clear_empty_queue()
        if self._partial and self._is_superseded(self._partial):
            self._partial = None

    def open_at(self, page: ConversationState) -> None:
        """Start from the newest page of the transcript, without its older turns."""
        self.turns = list(page.messages)
        self._partial = None
        state = {name: getattr(page, name) for name in ConversationUpdate.model_fields if hasattr(page, name)}
        state["tasks"] = page.session.tasks
        no_changes = {"new_messages": [], "updated_messages": [], "reset": False, "has_more": False}
        last = page.messages[-1].id if page.messages else None
        self._latest = ConversationUpdate(**{**state, **no_changes, "last_seen_message_id": last})
        self._clear_empty_queue()

    def apply_queue(self, waiting: Sequence[QueuedPrompt]) -> None:
        self.waiting = list(waiting)

    def apply_partial(self, growth: PartialGrowth) -> None:
        """Append partial output; growth of an unknown answer is ignored."""
        partial = with_growth(self._partial, growth)
        self._partial = None if partial and self._is_superseded(partial) else partial

    def apply_progress(self, progress: CallProgress) -> None:
        self.progress = with_progress(self.progress, progress)

    # ---- state

    @property
    def cursor(self) -> Cursor:
        if self._latest is None:
            return Cursor()
        return Cursor(
            last_seen_message_id=self._latest.last_seen_message_id or None, since_revision=self._latest.revision
        )

    @property
    def has_more(self) -> bool:
        return self._latest is not None and self._latest.has_more

    @property
    def status(self) -> SessionStatus | None:
        """The session's status; None before the first update."""
        return self._latest.status if self._latest else None

    @property
    def is_over(self) -> bool:
        """Whether the session is closed, so that no events follow."""
        return self.status in FINAL_STATUSES

    @property
    def is_processing(self) -> bool:
        return self._latest is not None and self._latest.is_processing

    @property
    def tasks(self) -> list[SubTask]:
        """The tasks that the session has started, oldest first."""
        return self._latest.tasks if self._latest else []

    @property
    def waiting_until(self) -> UtcDatetime | None:
        """With status `waiting_retry`: when the model is called again."""
        return self._latest.waiting_until if self._latest else None

    @property
    def waiting_reason(self) -> str | None:
        """Why the model is called again, after the wait of `waiting_retry` or now, as a sentence."""
        return self._latest.waiting_reason if self._latest else None

    @property
    def queue_length(self) -> int:
        return self._latest.queue_length if self._latest else 0

    @property
    def revision(self) -> int:
        """The session's revision as of the last update; 0 before the first one."""
        return self._latest.revision if self._latest else 0

    def find(self, message_id: str) -> ConversationMessage | None:
        # From the end, since it is nearly always one of the newest.
        return next((turn for turn in reversed(self.turns) if turn.id == message_id), None)

    @property
    def running_turn(self) -> ConversationMessage | None:
        """The running turn; None also if it has not arrived yet."""
        current = self._latest.current_message_id if self._latest else None
        turn = self.find(current) if current else None
        return turn if turn and not turn.is_complete else None

    @property
    def awaiting_calls(self) -> list[ToolCall]:
        """The calls that wait for approval, in their order."""
        turn = self.running_turn
        steps = turn.steps if turn else []
        return [
            call for step in steps if isinstance(step, ModelStep) for call in step.tool_calls if call.awaits_approval
        ]

    @property
    def partial_parts(self) -> list[PartialPart]:
        """The partial output of the running step (AGT-5)."""
        turn, partial = self.running_turn, self._partial
        return partial.parts if turn and partial and partial.message_id == turn.id else []

    def _clear_empty_queue(self) -> None:
        """Clear the queue if its length is 0: after a lost connection, no queue event says so."""
        if self.queue_length == 0:
            self.waiting = []

    def _is_superseded(self, partial: PartialOutput) -> bool:
        """Return whether the step of `partial` has arrived in its final form."""
        turn = self.find(partial.message_id)
        return turn is not None and (turn.is_complete or partial.step <= last_step_number(turn))


def last_step_number(turn: ConversationMessage) -> int:
    """Return the number of the turn's newest model step; 0 if it has none."""
    return max((step.number for step in turn.steps if isinstance(step, ModelStep)), default=0)


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
