"""Reads of a session that all its watchers share, read and encoded once (API-3).

All watchers at the same cursor need the same result, and until the session changes it stays the same. So the first one
after a change causes a read, and the others use its result and JSON. A result is current as long as four things hold:
the session's watch has seen no workflow task since the query, this gateway has written nothing to the session since,
Temporal has been answering, so that a change would have been seen, and no client was shown anything newer. So a caller
that has just written never gets an older result.

Only the newest few results of a session are cached, since all up-to-date watchers are at the same cursor.
"""

from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from cachetools import LRUCache
from fastapi.sse import format_sse_event
from pydantic_core import to_json

from turnkeeper.api.coalescer import SharedCall
from turnkeeper.api.history.text_restorer import TextRestorer
from turnkeeper.api.problems import ProblemError
from turnkeeper.api.store_calls import seconds_from_now
from turnkeeper.api.temporal.cache_warmer import CacheWarmer
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.api.temporal.watch import Watch
from turnkeeper.models.ids import PublicId, WorkflowId
from turnkeeper.models.session.messages import UpdatesRequest
from turnkeeper.models.session.queue.prompts import QueuedPrompt
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationUpdate, SessionStatus
from turnkeeper.models.wire import Frozen

IDLE_STATUSES: tuple[SessionStatus, ...] = ("idle", "awaiting_approval")
"""Statuses in which there may be no workflow task for months."""

MAX_CACHED = 4
"""Cached results per watched session, each at most about 1 MB."""

Event = TypeVar("Event", "UpdateEvent", "QueueEvent")


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
    def next_cursor(self) -> UpdatesRequest:
        return UpdatesRequest(
            last_seen_message_id=self.update.last_seen_message_id, since_revision=self.update.revision
        )

    @property
    def revision(self) -> int:
        return self.update.revision

    @property
    def is_whole(self) -> bool:
        """Whether all answers could be restored. If not, the store is down."""
        return not any(turn.agent_message_blob for turn in [*self.update.new_messages, *self.update.updated_messages])

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
class _CachedRead:
    """A result, or the read that will return it, and the session's version when it was requested."""

    version: tuple[int, int]
    call: "SharedCall[Any]"

    def is_current(self, watch: Watch) -> bool:
        """Return whether a caller may get this result now."""
        if self.version != _version(watch):
            return False
        event: UpdateEvent | QueueEvent | None = self.call.peek()
        if event is None:
            return not self.call.is_done
        return watch.is_live and event.is_whole and event.revision >= watch.revision


class SharedReader:
    """Reads watched sessions. Methods raise `ProblemError`."""

    def __init__(self, reader: SessionReader, texts: TextRestorer, cache_warmer: CacheWarmer) -> None:
        self._reader = reader
        self._texts = texts
        self._cache_warmer = cache_warmer
        self._cached: WeakKeyDictionary[Watch, LRUCache[Hashable, _CachedRead]] = WeakKeyDictionary()

    async def update(self, workflow_id: WorkflowId, cursor: UpdatesRequest, watch: Watch) -> UpdateEvent:
        """Return what is new since `cursor`, at least as new as the last change that `watch` has counted."""

        async def read() -> UpdateEvent:
            try:
                event = await self.unshared_update(workflow_id, cursor)
            except ProblemError:
                watch.note_failure()  # without a worker nothing else would make the other watchers read
                raise
            if event.update.status in IDLE_STATUSES:
                self._cache_warmer.warm(workflow_id, watch)
            return event

        return await self._shared(cursor, watch, read)

    async def queue(self, workflow_id: WorkflowId, watch: Watch) -> QueueEvent:
        """Return the queue, at least as new as the last change that `watch` has counted."""

        async def read() -> QueueEvent:
            queue = await self._reader.queue(workflow_id)
            return QueueEvent(queue.waiting, queue.revision)

        return await self._shared("queue", watch, read)

    async def unshared_update(self, workflow_id: WorkflowId, cursor: UpdatesRequest) -> UpdateEvent:
        """Return what is new since `cursor` with a query of its own, for a session that is not watched."""
        update, until = await self._reader.updates(workflow_id, cursor), seconds_from_now(self._reader.timeouts.restore)
        first_run_id = await self._reader.first_run_id_in_temporal(workflow_id)  # of the answer: the query has noted it
        return UpdateEvent(await self._texts.restore_update(workflow_id, update, until=until), first_run_id)

    async def with_whole_answer(self, workflow_id: WorkflowId, turn: ConversationMessage) -> ConversationMessage:
        """Return a turn with its whole answer, if that can be read now."""
        until = seconds_from_now(self._reader.timeouts.restore)
        (turn,) = await self._texts.restore_answers(workflow_id, [turn], until=until)
        return turn

    async def _shared(self, question: Hashable, watch: Watch, read: Callable[[], Coroutine[Any, Any, Event]]) -> Event:
        cached = self._cached.setdefault(watch, LRUCache(maxsize=MAX_CACHED))
        current = cached.get(question)
        if current is None or not current.is_current(watch):
            current = _CachedRead(_version(watch), SharedCall(read()))
            current.call.when_done(lambda: _drop_if_failed(cached, question))
        cached[question] = current
        event: Event | None = current.call.peek()
        return event or await current.call.result()


def _version(watch: Watch) -> tuple[int, int]:
    return watch.task_count, watch.writes


def _drop_if_failed(cached: LRUCache[Hashable, _CachedRead], question: Hashable) -> None:
    read = cached.get(question)
    if read is not None and read.call.is_done and read.call.peek() is None:
        del cached[question]
