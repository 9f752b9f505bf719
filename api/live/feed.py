"""A session live: updates, the queue, and what the model is writing (API-1, API-3).

Every watcher runs the same loop: read what is new since its cursor, send it, wait until the session changes. All
watchers at the same cursor share one read (`shared_reader.py`), so a change costs one query and one encoding for any
number of watchers, and an idle session costs nothing. A slow watcher just comes back later and reads from its own
cursor: it gets what it missed as one update, and nobody else waits for it.

An answer that could be read only as an excerpt is sent again once the whole can be read (`text_restorer.py`).

A feed never fails once it has begun: while Temporal or the workers are away it says so and tries again. It ends when
the session has ended or was deleted, or when the gateway stops; its cursor says where to resume.
"""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from fastapi.sse import format_sse_event

from turnkeeper.api.history.text_restorer import ExcerptRetries
from turnkeeper.api.http.closing import Closing
from turnkeeper.api.live.live_output import LiveOutput, LiveOutputRegistry, PartialEvent, SeenSteps, Snapshot
from turnkeeper.api.live.shared_reader import QueueEvent, SharedReader, UpdateEvent
from turnkeeper.api.problems import Problem, ProblemError, invalid, problem
from turnkeeper.api.temporal.watch import Watch, WatchRegistry
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.messages import UpdatesRequest
from turnkeeper.models.session.queue.prompts import QueuedPrompt
from turnkeeper.models.transcript.conversation import FINAL_STATUSES, ConversationMessage, ConversationUpdate
from turnkeeper.stores.partials.carrier import PartialCarrier

RETRY_SECONDS = 1.0
"""Between two attempts while a session can't be read."""


@dataclass(frozen=True)
class ProblemEvent:
    """Why the session can't be read now. The next update or queue means that it can be read again."""

    problem: Problem

    @property
    def sse(self) -> bytes:
        return format_sse_event(event="problem", data_str=self.problem.model_dump_json(exclude_none=True))


Event = UpdateEvent | QueueEvent | PartialEvent | ProblemEvent

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
    retries: ExcerptRetries = field(default_factory=ExcerptRetries)
    problem_types: set[str] = field(default_factory=set)
    """The problems that it was sent since the session could last be read."""
    is_deleted: bool = False

    @property
    def has_more(self) -> bool:
        return self.last is not None and self.last.has_more

    @property
    def is_at_end(self) -> bool:
        """Return whether the session has ended and the watcher has everything."""
        is_closed = self.last is not None and self.last.status in FINAL_STATUSES
        return self.is_deleted or (is_closed and not (self.has_more or self.queue_is_stale or self.retries))

    def is_due(self, watch: Watch, output: LiveOutput) -> bool:
        is_behind = self.queue_is_stale or self.has_more or watch.task_count > self.task_count
        return is_behind or watch.is_unreachable or self.retries.is_due or self._growth_in(output) is not None

    def next_update(self, event: UpdateEvent) -> UpdateEvent | None:
        """Move to the cursor after `event`; return the event to send, if it has anything new."""
        cursor, last, update = self.cursor, self.last, event.update
        had_problem = self._clear_problems()
        self.cursor, self.last = event.next_cursor, update
        self.steps.learn(update)
        self.retries.note_update(update)
        self.queue_is_stale = not update.has_more and bool(self.waiting or update.queue_length)
        if not (update.reset or update.new_messages or update.updated_messages or had_problem):
            if last is None and self.is_at_end and self.cursor == cursor:
                return None
            if last is not None and (update.revision, update.status) == (last.revision, last.status):
                return None
        return self._resumable(event)

    def next_restored(self, turn: ConversationMessage) -> UpdateEvent | None:
        """Return the event with a turn that was sent as an excerpt, if it is whole now."""
        if self.last is None or not self.retries.note_retry(turn):
            return None
        only_turn = {"new_messages": [], "updated_messages": [turn], "reset": False}
        return self._resumable(UpdateEvent(self.last.model_copy(update=only_turn)))

    def next_queue(self, queue: QueueEvent) -> QueueEvent | None:
        waiting, self.waiting, self.queue_is_stale = self.waiting, queue.waiting, False
        return queue if self._clear_problems() or queue.waiting != waiting else None

    def next_problem(self, problem: Problem) -> ProblemEvent | None:
        """Return the event of a problem, unless the watcher was already sent it."""
        self.is_deleted = problem.status == 404
        if self.is_deleted or problem.type in self.problem_types:
            return None
        self.problem_types.add(problem.type)
        return ProblemEvent(problem)

    def next_output(self, output: LiveOutput) -> PartialEvent | None:
        """Return what the model has written since the last snapshot that the watcher was sent."""
        growth = self._growth_in(output)
        if growth:
            self.snapshot = output.latest
        return growth

    def _resumable(self, event: UpdateEvent) -> UpdateEvent:
        """Return `event` with an id from which the watcher gets again what it has as excerpts."""
        resume_revision = self.retries.resume_revision
        return event if resume_revision is None else replace(event, resume_revision=resume_revision)

    def _clear_problems(self) -> bool:
        """Note that the session could be read; return whether the watcher was sent a problem before."""
        had_problem = bool(self.problem_types)
        self.problem_types.clear()
        return had_problem

    def _growth_in(self, output: LiveOutput) -> PartialEvent | None:
        latest = output.latest
        comes_next = latest is not None and self.steps.are_just_before(latest.output)
        return output.growth_since(self.snapshot) if comes_next else None


class UpdateFeed:
    """The live feeds of all sessions."""

    def __init__(
        self, shared_reader: SharedReader, watches: WatchRegistry, partials: PartialCarrier, closing: Closing
    ) -> None:
        self._outputs = LiveOutputRegistry(partials)
        self._reader = shared_reader
        self._watches = watches
        self._closing = closing

    async def events(self, workflow_id: WorkflowId, cursor: UpdatesRequest) -> AsyncGenerator[Event, None]:
        """Yield what is new since `cursor`: first an update, then all events until the session ends.

        Yields nothing if the session is closed and `cursor` is its end.

        Raises:
            ProblemError: The session can't be read now, or the gateway is stopping; only before the first event.
        """
        watcher = _Watcher(workflow_id, cursor)
        while not (watcher.is_at_end or self._closing.has_begun):
            async with self._watches.watching(workflow_id) as watch:
                with self._outputs.watching(workflow_id, watch) as output:
                    async with aclosing(self._events_in(watch, watcher, output)) as events:
                        async for event in events:
                            yield event
        if watcher.last is None:
            raise problem("stopping")  # yielding nothing would mean that the session has ended

    async def _events_in(self, watch: Watch, watcher: _Watcher, output: LiveOutput) -> AsyncGenerator[Event, None]:
        """Yield events until there is nothing more to send, or `watch` is over."""
        watcher.task_count = -1
        while not (watcher.is_at_end or self._closing.has_begun):
            try:
                event = await self._next(watcher, watch, output)
            except ProblemError as error:
                if watcher.last is None:
                    raise
                if problem := watcher.next_problem(error.problem):
                    yield problem
                watcher.task_count = -1  # it reads until it can, and then says so
                await self._pause()
                continue
            if event:
                yield event
            if watch.is_over and not watcher.is_due(watch, output):
                # Either another session has started with the same id, or an excerpt is still to be restored.
                await self._pause(until=watcher.retries.due_at)
                return
            await self._closing.wait_for(
                watch, lambda: watcher.is_due(watch, output) or watch.is_over, until=watcher.retries.due_at
            )

    async def _next(self, watcher: _Watcher, watch: Watch, output: LiveOutput) -> Event | None:
        """Return the next event for the watcher, if there is one. Raises `ProblemError`."""
        if watch.is_unreachable:
            raise problem("temporal-unreachable")
        if watcher.queue_is_stale:
            return watcher.next_queue(await self._reader.queue(watcher.workflow_id, watch))
        if watcher.has_more or watch.task_count > watcher.task_count:
            if watcher.last is not None:
                await output.wait_for_watchers()
            task_count = watch.task_count
            event = await self._reader.update(watcher.workflow_id, watcher.cursor, watch)
            watcher.task_count = task_count
            output.learn(event.update, since=watcher.cursor.since_revision)
            return watcher.next_update(event)
        if watcher.retries.is_due:
            turn = await self._reader.with_whole_answer(watcher.workflow_id, watcher.retries.next)
            return watcher.next_restored(turn)
        return watcher.next_output(output)

    async def _pause(self, *, until: float | None = None) -> None:
        """Wait for `RETRY_SECONDS`, or `until` a time on the loop's clock; ends early when the gateway stops."""
        await self._closing.sleep(until=until or asyncio.get_running_loop().time() + RETRY_SECONDS)
