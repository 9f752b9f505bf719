"""A session live: what is new, what waits, and what the model is writing, as it happens (API-1, API-3).

Theory of operation. Every watcher runs the same small loop: read what is new since its own cursor, hand it on, wait
until the session changes. All who are at the same cursor share one read, so a change costs one query and one encoding
however many watch, and an idle session costs nothing at all. A watcher that is slow to take what it is given simply
comes back later, and then reads from its own cursor: what it has missed arrives as one update, and nobody else has
waited for it.

An answer that could be read as an excerpt only is told again once it can be read whole (`excerpts.py`).

A feed never fails once it has begun: while Temporal or the workers are away it says so and tries again. It ends when
the session has, when it was deleted, or when the gateway stops; its cursor tells where to go on.
"""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace

from fastapi.sse import ServerSentEvent

from turnkeeper.api import problems
from turnkeeper.api.live.excerpts import Excerpts
from turnkeeper.api.live.live_output import LiveOutput, LiveOutputs, PartialEvent, SeenSteps, Snapshot
from turnkeeper.api.live.shared_reads import QueueEvent, SharedReads, UpdateEvent
from turnkeeper.api.problems import Problem, ProblemError
from turnkeeper.api.session_ids import workflow_id
from turnkeeper.api.temporal.sessions import FINAL_STATUSES, Sessions
from turnkeeper.api.temporal.watch import Watch
from turnkeeper.models.session.queue.prompts import QueuedPrompt
from turnkeeper.models.session.session import UpdatesRequest
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationUpdate
from turnkeeper.stores.partials.carrier import PartialCarrier

RETRY_SECONDS = 1.0
"""Between two tries while a session can't be read."""


@dataclass(frozen=True)
class ProblemEvent:
    """Why the session can't be read now; the next update or queue says that it can be again."""

    problem: Problem

    @property
    def sent(self) -> ServerSentEvent:
        """The event as it is sent."""
        return ServerSentEvent(event="problem", raw_data=self.problem.model_dump_json(exclude_none=True))


Event = UpdateEvent | QueueEvent | PartialEvent | ProblemEvent

_EVENT_ID = re.compile(r"([0-9]{1,15})\.(.{0,200})")


def cursor_of(event_id: str) -> UpdatesRequest:
    """Return the place of which `event_id` is the name. Raises `ProblemError`, 422, where it is none of ours.

    >>> cursor_of("17.p-2").since_revision, cursor_of("17.p-2").last_seen_message_id
    (17, 'p-2')
    """
    found = _EVENT_ID.fullmatch(event_id)
    if found is None:
        raise problems.invalid("Last-Event-ID", "is no id of these events: <revision>.<last_seen_message_id>")
    return UpdatesRequest(since_revision=int(found[1]), last_seen_message_id=found[2] or None)


@dataclass
class _Watcher:
    """One watcher: where it is, and what it was told last."""

    session_id: str
    cursor: UpdatesRequest
    seen: int = -1
    """Signs of the session that had been counted when it was read last."""
    last: ConversationUpdate | None = None
    waiting: list[QueuedPrompt] = field(default_factory=list)
    steps: SeenSteps = field(default_factory=SeenSteps)
    partial: Snapshot | None = None
    excerpts: Excerpts = field(default_factory=Excerpts)
    owes_queue: bool = False
    """What waits may have changed with the last update."""
    troubles: set[str] = field(default_factory=set)
    """The kinds of problems that it was told since the session could be read."""
    is_deleted: bool = False

    @property
    def has_more(self) -> bool:
        """There are further pages of what is new."""
        return self.last is not None and self.last.has_more

    @property
    def is_at_end(self) -> bool:
        """The watcher knows all that there will ever be."""
        is_closed = self.last is not None and self.last.status in FINAL_STATUSES
        return self.is_deleted or (is_closed and not (self.has_more or self.owes_queue or self.excerpts))

    def is_due(self, watch: Watch, output: LiveOutput) -> bool:
        """Tell whether there may be something that the watcher does not know."""
        is_behind = self.owes_queue or self.has_more or watch.task_count > self.seen
        return is_behind or self.excerpts.are_due or self._partial_grown_in(output) is not None

    def takes(self, event: UpdateEvent) -> UpdateEvent | None:
        """Go on to the cursor after `event`; return it where it says anything that the watcher does not know."""
        before, known, update = self.cursor, self.last, event.update
        was_in_trouble = self._is_well_again()
        self.cursor, self.last = event.next_cursor, update
        self.steps.learn(update)
        self.excerpts.learn(update)
        self.owes_queue = not update.has_more and bool(self.waiting or update.queue_length)
        if not (update.reset or update.new_messages or update.updated_messages or was_in_trouble):
            if known is None and self.is_at_end and self.cursor == before:
                return None
            if known is not None and (update.revision, update.status) == (known.revision, known.status):
                return None
        return self._resumable(event)

    def takes_whole(self, turn: ConversationMessage) -> UpdateEvent | None:
        """Return a turn that was told as an excerpt, if it is whole now."""
        if self.last is None or not self.excerpts.put_back(turn):
            return None
        told = {"new_messages": [], "updated_messages": [turn], "reset": False}
        return self._resumable(UpdateEvent(self.last.model_copy(update=told)))

    def _resumable(self, event: UpdateEvent) -> UpdateEvent:
        """Return `event` with an id from which on the watcher is told all that it is owed."""
        owed_since = self.excerpts.revision
        return event if owed_since is None else replace(event, owed_since=owed_since)

    def takes_queue(self, queue: QueueEvent) -> QueueEvent | None:
        """Return what waits, where that has changed."""
        known, self.waiting, self.owes_queue = self.waiting, queue.waiting, False
        return queue if self._is_well_again() or queue.waiting != known else None

    def takes_problem(self, problem: Problem) -> ProblemEvent | None:
        """Return why the session can't be read, where the watcher was not told so yet."""
        self.is_deleted = problem.status == 404
        if self.is_deleted or problem.type in self.troubles:
            return None
        self.troubles.add(problem.type)
        return ProblemEvent(problem)

    def _is_well_again(self) -> bool:
        """Note that the session could be read; tell whether the watcher was told that it could not."""
        was_in_trouble = bool(self.troubles)
        self.troubles.clear()
        return was_in_trouble

    def takes_partial(self, output: LiveOutput) -> PartialEvent | None:
        """Return what the model has written since the watcher was told last."""
        grown = self._partial_grown_in(output)
        if grown:
            self.partial = output.latest
        return grown

    def _partial_grown_in(self, output: LiveOutput) -> PartialEvent | None:
        latest = output.latest
        comes_next = latest is not None and self.steps.are_just_before(latest.output)
        return output.grown_since(self.partial) if comes_next else None


class Feeds:
    """The live feeds of all sessions."""

    def __init__(self, sessions: Sessions, reads: SharedReads, partials: PartialCarrier) -> None:
        """Watch `sessions` through `reads`; what is being written comes by `partials`."""
        self._outputs = LiveOutputs(partials)
        self._reads = reads
        self._watches = sessions.watches
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End every feed: none would end by itself, and clients come back with their cursors."""
        self._stopping.set()
        self._watches.notify_all()

    async def events(self, session_id: str, cursor: UpdatesRequest) -> AsyncGenerator[Event, None]:
        """Yield what is new since `cursor`, first of all an update, then whatever happens until the session ends.

        Yields nothing where the session is closed and `cursor` is its end.

        Raises:
            ProblemError: The session can't be read now, or the gateway stops; before the first event only.
        """
        watcher, workflow = _Watcher(session_id, cursor), workflow_id(session_id)
        while not (watcher.is_at_end or self._stopping.is_set()):
            async with self._watches.watching(workflow) as watch:
                with self._outputs.watched(workflow, watch) as output:
                    async with aclosing(self._noticed(watcher, watch, output)) as events:
                        async for event in events:
                            yield event
        if watcher.last is None:
            raise problems.stopping()  # to yield nothing would say that there will never be anything

    async def _noticed(self, watcher: _Watcher, watch: Watch, output: LiveOutput) -> AsyncGenerator[Event, None]:
        """Yield what happens until there is nothing more to tell, or `watch` notices nothing any more."""
        watcher.seen = -1
        while not (watcher.is_at_end or self._stopping.is_set()):
            try:
                event = await self._next(watcher, watch, output)
            except ProblemError as error:
                if watcher.last is None:
                    raise
                if told := watcher.takes_problem(error.problem):
                    yield told
                await self._pause()
                continue
            if event:
                yield event
            if watch.is_over and not watcher.is_due(watch, output):
                # Either a session began under the id of the one that was watched, or an answer is still owed.
                await self._pause(until=watcher.excerpts.due_at)
                return
            await watch.wait_for(
                lambda: watcher.is_due(watch, output) or watch.is_over or self._stopping.is_set(),
                until=watcher.excerpts.due_at,
            )

    async def _next(self, watcher: _Watcher, watch: Watch, output: LiveOutput) -> Event | None:
        """Return the next thing that the watcher does not know, if there is any. Raises `ProblemError`."""
        if watcher.owes_queue:
            return watcher.takes_queue(await self._reads.queue(watcher.session_id, watch))
        if watcher.has_more or watch.task_count > watcher.seen:
            if watcher.last is not None:
                await output.until_all_are_told()
            signs = watch.task_count
            event = await self._reads.update(watcher.session_id, watcher.cursor, watch)
            watcher.seen = signs
            output.learn(event.update, since=watcher.cursor.since_revision)
            return watcher.takes(event)
        if watcher.excerpts.are_due:
            return watcher.takes_whole(await self._reads.whole(watcher.session_id, watcher.excerpts.next))
        return watcher.takes_partial(output)

    async def _pause(self, *, until: float | None = None) -> None:
        """Wait for a moment, or `until` then on the loop's clock."""
        until = until or asyncio.get_running_loop().time() + RETRY_SECONDS
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._stopping.wait()
