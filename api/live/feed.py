"""What is new in a session, for clients that poll and for clients that watch (API-1, API-3, SES-12).

All clients at the same cursor share one read: the first one after a change causes a query, and the others use its
result and its JSON. So a change costs one query and one encoding for any number of clients, and an idle
session costs nothing.

A watcher reads what is new since its cursor, sends it, and waits until the session changes (`watch.py`). A slow one
just comes back later and reads from its own cursor: it gets what it missed as one update, and nobody else waits for it.
While the store of large texts is down, a watcher gets excerpts of answers. It resumes before the first of them when it
reconnects, and meanwhile they are read again, with growing pauses, until it has the whole answers. A feed never fails
once it has begun: while Temporal or the workers are away it says so and tries again. It ends when the session has ended
or was deleted, or when the gateway stops; its cursor says where to resume.

A poll is the first event of a feed; with `wait`, the first one that the client has not seen. A client that sends only
`last_seen_message_id` (decision 34) doesn't say in which form it has seen that turn: running or ended. So it gets the
turn again while it runs and for `Timeouts.repeat` after its end, and a `wait` for it lasts `UNCLEAR_SECONDS`. That
follows from the turn alone, so no gateway remembers its clients.
"""

import asyncio
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Hashable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import Any, TypeVar

from fastapi.sse import format_sse_event
from pydantic_core import to_json

from turnkeeper.api.coalescer import Coalescer
from turnkeeper.api.history.transcript_reader import TextRestorer
from turnkeeper.api.http.streams import Closing
from turnkeeper.api.live.live_output import LiveOutput, PartialEvent, ProgressEvent, SeenSteps, Snapshot
from turnkeeper.api.problems import Problem, ProblemError, invalid, problem
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.api.temporal.watch import Watch
from turnkeeper.api.timeouts import seconds_from_now
from turnkeeper.models.ids import PublicId, WorkflowId
from turnkeeper.models.session.messages import UpdatesRequest
from turnkeeper.models.session.prompts import QueuedPrompt
from turnkeeper.models.transcript.conversation import FINAL_STATUSES, ConversationMessage, ConversationUpdate
from turnkeeper.models.wire import Frozen
from turnkeeper.stores.partials.carrier import PartialCarrier

RETRY_SECONDS = 1.0
"""Between two attempts while a session can't be read, or has no watch."""

FIRST_EXCERPT_SECONDS = 1.0
MAX_EXCERPT_SECONDS = 30.0
"""Between two attempts to read whole answers in place of excerpts."""

SILENCES = 2
"""How often no worker answers, one time after the other, until watchers are told that there is none."""

UNCLEAR_SECONDS = 1.0
"""How long to hold a client that may or may not have seen the answer."""


class WaitingPrompts(Frozen):
    """The prompts in a session's queue, in order."""

    waiting: list[QueuedPrompt]


@dataclass(frozen=True)
class UpdateEvent:
    """What is new in a session since a cursor, with whole answers."""

    update: ConversationUpdate
    first_run_id: str = ""
    """The first run of the session; empty if Temporal no longer has it."""
    resume_revision: int | None = None
    """Where a client resumes, if that is before the update: since then it has an excerpt of an answer."""

    @property
    def id(self) -> str:
        """The resume cursor, which clients send as `Last-Event-ID`; held back while they have an excerpt."""
        resume_revision = self.update.revision if self.resume_revision is None else self.resume_revision
        return f"{min(self.update.revision, resume_revision)}.{self.update.last_seen_message_id or ''}"

    @property
    def revision(self) -> int:
        return self.update.revision

    @property
    def turns(self) -> list[ConversationMessage]:
        return [*self.update.updated_messages, *self.update.new_messages]

    @property
    def is_whole(self) -> bool:
        """Whether this is all: a worker answered, and all answers could be restored. If not, the store is down."""
        return not (self.is_archived or any(turn.agent_message_blob for turn in self.turns))

    @property
    def is_archived(self) -> bool:
        """Whether the archive answered, since no worker did."""
        return self.update.archive_time is not None

    @cached_property
    def json(self) -> str:
        return self.update.model_dump_json()

    def as_answer(self, session_id: PublicId) -> str:
        """Return the JSON of a `ConversationResponse`."""
        return f'{{"workflow_id":{to_json(session_id).decode()},"conversation_update":{self.json}}}'

    @cached_property
    def sse(self) -> bytes:
        return format_sse_event(event="update", id=self.id, data_str=self.json)


@dataclass(frozen=True)
class QueueEvent:
    """The current queue."""

    waiting: list[QueuedPrompt]
    revision: int
    is_whole = True

    @cached_property
    def sse(self) -> bytes:
        return format_sse_event(event="queue", data_str=WaitingPrompts(waiting=self.waiting).model_dump_json())


@dataclass(frozen=True)
class ProblemEvent:
    """Why the session can't be read now. The next update or queue means that it can be read again."""

    problem: Problem

    @property
    def sse(self) -> bytes:
        return format_sse_event(event="problem", data_str=self.problem.model_dump_json(exclude_none=True))


Event = UpdateEvent | QueueEvent | PartialEvent | ProgressEvent | ProblemEvent
Result = TypeVar("Result", UpdateEvent, QueueEvent)

EVENT_ID_PATTERN = r"^[0-9]{1,15}\.[^\n]{0,200}$"
"""`<revision>.<last_seen_message_id>`"""


def cursor_of(event_id: str) -> UpdatesRequest:
    """Return the cursor of an event's id. Raises `ProblemError` 422 if it is not one of ours.

    >>> cursor_of("17.p-2").since_revision, cursor_of("17.p-2").last_seen_message_id
    (17, 'p-2')
    """
    if not re.fullmatch(EVENT_ID_PATTERN, event_id):
        raise invalid("Last-Event-ID", "is not an event id: <revision>.<last_seen_message_id>")
    revision, _, message_id = event_id.partition(".")
    return UpdatesRequest(since_revision=int(revision), last_seen_message_id=message_id or None)


@dataclass
class _Watcher:
    """One watcher: its cursor, and what it was sent last."""

    workflow_id: WorkflowId
    cursor: UpdatesRequest
    task_count: int = -1
    """How many workflow tasks of the session had been counted when it was last read."""
    last: ConversationUpdate | None = None
    waiting: list[QueuedPrompt] = field(default_factory=list)
    queue_is_stale: bool = False
    """The queue may have changed with the last update."""
    steps: SeenSteps = field(default_factory=SeenSteps)
    snapshot: Snapshot | None = None
    progress: dict[str, ProgressEvent] = field(default_factory=dict)
    """Of each call, by its id."""
    excerpts: dict[str, int] = field(default_factory=dict)
    """Turns whose answers it has as excerpts, by id, each with the revision before it."""
    retry_at: float | None = None
    """When to read them again, on the loop's clock."""
    retry_seconds: float = 0.0
    """How long the pause before is."""
    problem_types: set[str] = field(default_factory=set)
    """The problems that it was sent since the session could last be read."""
    is_deleted: bool = False
    silences: int = 0
    """How often in a row no worker has answered, and none has shown since that it is there."""

    @property
    def has_more(self) -> bool:
        return self.last is not None and self.last.has_more

    @property
    def is_at_end(self) -> bool:
        """Return whether the session has ended and the watcher has everything."""
        is_closed = self.last is not None and self.last.status in FINAL_STATUSES
        return self.is_deleted or (is_closed and not (self.has_more or self.queue_is_stale or self.excerpts))

    def is_retry_due(self) -> bool:
        return self.retry_at is not None and asyncio.get_running_loop().time() >= self.retry_at

    def has_changed(self, watch: Watch) -> bool:
        return self.has_more or watch.task_count > self.task_count

    def is_due(self, watch: Watch, output: LiveOutput) -> bool:
        is_behind = self.queue_is_stale or self.has_changed(watch) or self.is_retry_due()
        return is_behind or watch.is_unreachable or self.has_output(output)

    def next_cursor(self, watch: Watch) -> UpdatesRequest:
        """Return where to read: from before the first excerpt, if only excerpts are to be read again."""
        since = self.cursor.since_revision if self.has_changed(watch) else min(self.excerpts.values())
        return self.cursor.model_copy(update={"since_revision": since})

    def next_update(self, event: UpdateEvent, *, is_retry: bool) -> UpdateEvent | None:
        """Move to the cursor after `event`; return the event to send, if it has anything new."""
        cursor, last, update = self.cursor, self.last, event.update
        was_archived = self.last_is_archived
        had_problem, is_restored = self._clear_problems(), self._note_excerpts(event, is_retry=is_retry)
        self.last = update
        self.cursor = UpdatesRequest(last_seen_message_id=update.last_seen_message_id, since_revision=update.revision)
        self.steps.learn(update)
        self.queue_is_stale = not update.has_more and bool(self.waiting or update.queue_length)
        has_updated = is_restored if is_retry else bool(update.updated_messages)
        if not (update.reset or update.new_messages or has_updated or had_problem or was_archived):
            if last is None and self.is_at_end and self.cursor == cursor:
                return None
            if last is not None and (update.revision, update.status) == (last.revision, last.status):
                return None
        # With an id from which the client gets again what it has as excerpts.
        return replace(event, resume_revision=min(self.excerpts.values())) if self.excerpts else event

    def _note_excerpts(self, event: UpdateEvent, *, is_retry: bool) -> bool:
        """Note which answers are excerpts now, and when to read them again; return whether one is whole at last."""
        before = {} if event.update.reset else self.excerpts
        turns = {turn.id: turn for turn in event.turns}
        self.excerpts = {turn_id: revision for turn_id, revision in before.items() if turn_id not in turns}
        self.excerpts |= {turn.id: turn.revision - 1 for turn in turns.values() if turn.agent_message_blob}
        is_restored = not self.excerpts.keys() >= before.keys()
        if is_retry or not before:
            has_failed = is_retry and not is_restored
            self.retry_seconds = (
                min(2 * self.retry_seconds, MAX_EXCERPT_SECONDS) if has_failed else FIRST_EXCERPT_SECONDS
            )
            self.retry_at = asyncio.get_running_loop().time() + self.retry_seconds
        self.retry_at = self.retry_at if self.excerpts else None
        return is_restored

    def next_queue(self, queue: QueueEvent) -> QueueEvent | None:
        waiting, self.waiting, self.queue_is_stale = self.waiting, queue.waiting, False
        return queue if self._clear_problems() or queue.waiting != waiting else None

    def next_problem(self, problem: Problem, *, has_sign_of_life: bool) -> ProblemEvent | None:
        """Return the event of a problem, unless the watcher was already sent it.

        That no worker answers is said after the second time: workers of a busy machine are late. `has_sign_of_life`: in
        the meantime one has done something.
        """
        self.is_deleted = problem.status == 404
        if problem.type.endswith(":no-worker"):
            self.silences = 0 if has_sign_of_life else self.silences + 1
            if self.silences < SILENCES and not self.last_is_archived:
                return None
        if self.is_deleted or problem.type in self.problem_types:
            return None
        self.problem_types.add(problem.type)
        return ProblemEvent(problem)

    def has_output(self, output: LiveOutput) -> bool:
        return self._output_in(output) is not None

    def next_output(self, output: LiveOutput) -> PartialEvent | ProgressEvent | None:
        """Return what the model has written since the last snapshot that the watcher was sent, or a call's progress."""
        event = self._output_in(output)
        if isinstance(event, PartialEvent):
            self.snapshot = output.latest
        elif event:
            current = {call_id: one for call_id, one in self.progress.items() if call_id in output.progress}
            self.progress = {**current, event.progress.call_id: event}
        return event

    @property
    def last_is_archived(self) -> bool:
        return self.last is not None and self.last.archive_time is not None

    def _clear_problems(self) -> bool:
        """Note that the session could be read; return whether the watcher was sent a problem before."""
        self.silences = 0
        had_problem = bool(self.problem_types)
        self.problem_types.clear()
        return had_problem

    def _output_in(self, output: LiveOutput) -> PartialEvent | ProgressEvent | None:
        latest = output.latest
        comes_next = latest is not None and self.steps.are_just_before(latest.output)
        if comes_next and (growth := output.growth_since(self.snapshot)):
            return growth
        news = (event for call_id, event in output.progress.items() if event != self.progress.get(call_id))
        return next((event for event in news if self.steps.may_run(event.progress.call_id)), None)


class UpdateFeed:
    """Polls and live feeds of all sessions."""

    def __init__(self, reader: SessionReader, texts: TextRestorer, partials: PartialCarrier, closing: Closing) -> None:
        self._reader = reader
        self._watches = reader.watches
        self._texts = texts
        self._reads = Coalescer[Hashable, Any]()
        self._partials = partials
        self._outputs: dict[Watch, LiveOutput] = {}
        self._closing = closing

    @property
    def partials_obstacle(self) -> str | None:
        """Why streams have no partial output; `None` if nothing is known."""
        return self._partials.obstacle()

    async def poll(
        self,
        workflow_id: WorkflowId,
        cursor: UpdatesRequest,
        *,
        seconds: float = 0.0,
        is_known: Callable[[UpdateEvent], bool] | None = None,
    ) -> UpdateEvent:
        """Return what is new now, or within `seconds` as soon as there is something that the client has not seen.

        `is_known`: whether the client has this answer, by the `ETag` that it sends.

        Raises:
            ProblemError: The session can't be read, or Temporal can't be reached any more.
        """
        comes_back = cursor.last_seen_message_id or cursor.since_revision is not None or is_known or seconds
        if not comes_back and self._watches.get(workflow_id) is None:
            return await self._read_update(workflow_id, cursor, None)  # starting a watch costs more than one read
        clock = asyncio.get_running_loop().time
        asked_at, first_revision = clock(), -1
        while True:
            async with self._watches.watching(workflow_id) as watch:
                version = watch.version
                event = await self._read_update(workflow_id, cursor, watch)
                event = _without_old_repeats(
                    event, cursor, before=datetime.now(UTC) - timedelta(seconds=self._reader.timeouts.repeat)
                )
                first_revision = event.revision if first_revision < 0 else first_revision
                hold = seconds if is_known and is_known(event) else _hold_seconds(event, cursor, first_revision)
                until = asked_at + min(seconds, hold)
                is_closed = event.update.status in FINAL_STATUSES
                may_have_news = partial(_may_have_news, watch, version, is_closed)
                if self._closing.is_time_up(until) or not await self._closing.wait_for(
                    watch, may_have_news, until=until
                ):
                    return event
                if watch.is_unreachable:
                    raise problem("temporal-unreachable")
                await self._closing.wait_for(watch, lambda: watch.may_read, until=min(until, watch.next_read_at))
            if watch.version == version:  # it is over; another session may start with the same id
                await self._pause(until=min(until, clock() + RETRY_SECONDS))

    async def events(self, workflow_id: WorkflowId, cursor: UpdatesRequest) -> AsyncGenerator[Event, None]:
        """Yield what is new since `cursor`: first an update, then all events until the session ends.

        Yields nothing if the session is closed and `cursor` is its end.

        Raises:
            ProblemError: The session can't be read now, or the gateway is stopping; only before the first event.
        """
        watcher = _Watcher(workflow_id, cursor)
        while not (watcher.is_at_end or self._closing.has_begun):
            async with self._watching(workflow_id) as (watch, output):
                watcher.task_count = -1
                async with aclosing(self._events_in(watch, watcher, output)) as events:
                    async for event in events:
                        yield event
            # Either another session has started with the same id, or an excerpt is still to be restored.
            if not watcher.is_at_end:
                await self._pause(until=watcher.retry_at)
        if watcher.last is None:
            raise problem("stopping")  # yielding nothing would mean that the session has ended

    @asynccontextmanager
    async def _watching(self, workflow_id: WorkflowId) -> AsyncIterator[tuple[Watch, LiveOutput]]:
        """Yield the session's watch, and its live output, which is followed while anyone watches it."""
        async with self._watches.watching(workflow_id) as watch:
            output = self._outputs.setdefault(watch, LiveOutput(self._partials, workflow_id, watch))
            output.watchers += 1
            try:
                yield watch, output
            finally:
                output.watchers -= 1
                if not output.watchers:
                    output.stop_following()
                    del self._outputs[watch]

    async def _events_in(self, watch: Watch, watcher: _Watcher, output: LiveOutput) -> AsyncGenerator[Event, None]:
        """Yield events until there is nothing more to send, or `watch` is over."""
        clock = asyncio.get_running_loop().time
        while not (watcher.is_at_end or self._closing.has_begun):
            asked_at, version = clock(), watch.version
            try:
                event = await self._next(watcher, watch, output)
            except ProblemError as error:
                if watcher.last is None:
                    raise
                is_alive = watch.version > version or self._reader.has_answered_since(asked_at)
                if problem := watcher.next_problem(error.problem, has_sign_of_life=is_alive):
                    yield problem
                watcher.task_count = -1  # it reads until it can, and then says so
                await self._pause()
                continue
            if event:
                yield event
            if watch.is_over and not watcher.is_due(watch, output):
                return
            await self._closing.wait_for(
                watch, lambda: watcher.is_due(watch, output) or watch.is_over, until=watcher.retry_at
            )

    async def _next(self, watcher: _Watcher, watch: Watch, output: LiveOutput) -> Event | None:
        """Return the next event for the watcher, if there is one. Raises `ProblemError`."""
        if watch.is_unreachable:
            raise problem("temporal-unreachable")
        if watcher.queue_is_stale:
            if watcher.last and not watcher.last.queue_length:
                return watcher.next_queue(QueueEvent([], watcher.last.revision))
            return watcher.next_queue(await self._read_queue(watcher.workflow_id, watch))
        if watcher.last and not watcher.has_more and watcher.has_changed(watch) and not watch.may_read:
            if growth := watcher.next_output(output):
                return growth
            has_output = partial(watcher.has_output, output)
            await self._closing.wait_for(watch, lambda: watch.may_read or has_output(), until=watch.next_read_at)
            return None
        if watcher.has_changed(watch) or watcher.is_retry_due():
            if watcher.last is not None:
                await output.wait_for_watchers()
            task_count, is_retry = watch.task_count, not watcher.has_changed(watch)
            event = await self._read_update(watcher.workflow_id, watcher.next_cursor(watch), watch)
            watcher.task_count = -1 if event.is_archived else task_count  # it reads until a worker answers
            output.learn(event.update, since=watcher.cursor.since_revision)
            return watcher.next_update(event, is_retry=is_retry)
        return watcher.next_output(output)

    async def _read_update(self, workflow_id: WorkflowId, cursor: UpdatesRequest, watch: Watch | None) -> UpdateEvent:
        """Return what is new since `cursor`, at least as new as the last change that `watch` has counted."""

        async def read() -> UpdateEvent:
            try:
                update = await self._reader.updates(workflow_id, cursor)
                first_run_id = await self._reader.first_run_id(workflow_id)  # of the answer: the query has noted it
            except ProblemError:
                if watch:
                    watch.note_failure()  # without a worker nothing else would make the other watchers read
                raise
            until = seconds_from_now(self._reader.timeouts.restore)
            return UpdateEvent(await self._texts.restore_update(workflow_id, update, until=until), first_run_id)

        return await self._shared(cursor, watch, read) if watch else await read()

    async def _read_queue(self, workflow_id: WorkflowId, watch: Watch) -> QueueEvent:
        async def read() -> QueueEvent:
            queue = await self._reader.queue(workflow_id)
            return QueueEvent(queue.waiting, queue.revision)

        return await self._shared("queue", watch, read)

    async def _shared(
        self, question: Hashable, watch: Watch, read: Callable[[], Coroutine[Any, Any, Result]]
    ) -> Result:
        """Return a result that all clients of the session share.

        It is current as long as four things hold: the watch has seen no workflow task since it was requested, this
        gateway has written nothing to the session since, Temporal has been answering, so that a change would have been
        seen, and no client was shown anything newer. So a caller that has just written never gets an older result.
        """
        version = (watch.task_count, watch.writes)
        earlier = list(watch.results.items()) if watch.is_live else []
        for earlier_question, (earlier_version, result) in earlier:
            if earlier_version != version or not result.is_whole or result.revision < watch.revision:
                continue
            cached: Result | None = result if earlier_question == question else _without_news(result, question)
            if cached is not None:
                return cached
        fresh: Result = await self._reads.run((watch, version, question), read)
        watch.results[question] = (version, fresh)
        return fresh

    async def _pause(self, *, until: float | None = None) -> None:
        """Wait for `RETRY_SECONDS`, or `until` a time on the loop's clock; ends early when the gateway stops."""
        await self._closing.sleep(until=until or asyncio.get_running_loop().time() + RETRY_SECONDS)


def _without_news(event: Any, cursor: Hashable) -> Any:
    """Return an update without turns, if `cursor` is that after `event`; `None` if it is not."""
    if not isinstance(event, UpdateEvent) or not isinstance(cursor, UpdatesRequest):
        return None
    update = event.update
    is_after = (update.last_seen_message_id, update.revision) == (cursor.last_seen_message_id, cursor.since_revision)
    if update.has_more or not is_after:
        return None
    nothing: dict[str, Any] = {"new_messages": [], "updated_messages": [], "reset": False}
    return UpdateEvent(update.model_copy(update=nothing), event.first_run_id)


def _hold_seconds(event: UpdateEvent, cursor: UpdatesRequest, first_revision: int) -> float:
    """Return how long to hold an answer: 0 if the client has not seen all of it.

    `first_revision`: that of the first answer to the same poll.
    """
    update, seen_revision = event.update, cursor.since_revision
    if update.reset or (update.new_messages and (cursor.last_seen_message_id or seen_revision is None)):
        return 0.0
    if update.revision > (first_revision if seen_revision is None else seen_revision):
        return 0.0
    is_unclear = seen_revision is None and (update.updated_messages or update.status in FINAL_STATUSES)
    return UNCLEAR_SECONDS if is_unclear else math.inf


def _without_old_repeats(event: UpdateEvent, cursor: UpdatesRequest, *, before: datetime) -> UpdateEvent:
    """Return the event without the last seen turn, if the client sends no revision and that ended `before`.

    With new messages it is repeated once more, for a client that comes back after a pause.
    """
    update = event.update
    if cursor.since_revision is not None or update.new_messages or not update.updated_messages:
        return event
    if not all(turn.is_complete and (turn.agent_timestamp or before) < before for turn in update.updated_messages):
        return event
    return replace(event, update=update.model_copy(update={"updated_messages": []}))


def _may_have_news(watch: Watch, version: int, is_closed: bool) -> bool:
    """Return whether the session has changed after `version`, or might change without `watch` noticing."""
    return watch.is_beyond(version) or watch.is_unreachable or (watch.is_over and not is_closed)
