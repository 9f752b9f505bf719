"""What many watchers of a session read, read and encoded once for all of them (API-3).

Theory of operation. All who are at the same place in the same session ask the same question, and until the session
changes the result stays the same. So the first of them to ask after a change has it read, and the others use that
result, together with its JSON. A result is current for as long as four things hold: the session's watch has noticed no
workflow task since it was asked for, this gateway has written nothing to the session since, Temporal has been
answering, so that a change would have been noticed, and no client has been shown anything newer. A caller who has just
written thus never gets a result from before.

Only the newest few results of a session are cached: those who are up to date are all at one place.
"""

from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from fastapi.sse import ServerSentEvent
from pydantic_core import to_json

from turnkeeper.api.coalescer import SharedCall
from turnkeeper.api.history.text_restorer import TextRestorer
from turnkeeper.api.session_ids import workflow_id
from turnkeeper.api.store_calls import RESTORE_SECONDS, seconds_from_now
from turnkeeper.api.temporal.cache_warmer import CacheWarmer
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.api.temporal.watch import Watch
from turnkeeper.models.session.queue.prompts import QueuedPrompt
from turnkeeper.models.session.session import UpdatesRequest
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationUpdate, SessionStatus
from turnkeeper.models.wire import Frozen
from turnkeeper.stores.bounded_dict import BoundedDict

IDLE_STATUSES: tuple[SessionStatus, ...] = ("idle", "awaiting_approval")
"""A session in which there may be no workflow task for months."""

MAX_CACHED = 4
"""Results cached of a watched session; each has about 1 MB at most."""

Event = TypeVar("Event", "UpdateEvent", "QueueEvent")


class WaitingPrompts(Frozen):
    """What waits in a session's queue, in order."""

    waiting: list[QueuedPrompt]


@dataclass(frozen=True)
class UpdateEvent:
    """What is new in a session since a cursor, with whole answers."""

    update: ConversationUpdate
    resume_revision: int | None = None
    """Where a client that comes back is to resume, if that is earlier: it has an excerpt of an answer since then."""

    @property
    def id(self) -> str:
        """What a client sends as `Last-Event-ID`: its resume cursor, held back while it has an excerpt."""
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
        """Whether all answers could be restored; else the store is down, and this is not the last word."""
        return not any(turn.agent_message_blob for turn in [*self.update.new_messages, *self.update.updated_messages])

    @cached_property
    def json(self) -> str:
        return self.update.model_dump_json()

    def as_answer(self, session_id: str) -> str:
        """Return it as the JSON of a `ConversationAnswer`."""
        return f'{{"workflow_id":{to_json(session_id).decode()},"conversation_update":{self.json}}}'

    @cached_property
    def sse(self) -> ServerSentEvent:
        return ServerSentEvent(event="update", id=self.id, raw_data=self.json)


@dataclass(frozen=True)
class QueueEvent:
    """What waits now."""

    waiting: list[QueuedPrompt]
    revision: int
    is_whole = True

    @cached_property
    def sse(self) -> ServerSentEvent:
        return ServerSentEvent(event="queue", raw_data=WaitingPrompts(waiting=self.waiting).model_dump_json())


@dataclass(frozen=True)
class _CachedRead:
    """A result that is there or on its way, and what was known of the session when it was asked for."""

    version: tuple[int, int]
    call: "SharedCall[Any]"

    def is_current(self, watch: Watch) -> bool:
        """Return whether a caller who asks now may be given it."""
        if self.version != _version(watch):
            return False
        event: UpdateEvent | QueueEvent | None = self.call.peek()
        if event is None:
            return not self.call.is_done
        return watch.is_live and event.is_whole and event.revision >= watch.revision


class SharedReader:
    """Reads all watched sessions. Methods raise `ProblemError`."""

    def __init__(self, reader: SessionReader, texts: TextRestorer, cache_warmer: CacheWarmer) -> None:
        self._reader = reader
        self._texts = texts
        self._cache_warmer = cache_warmer
        self._cached: WeakKeyDictionary[Watch, BoundedDict[Hashable, _CachedRead]] = WeakKeyDictionary()

    async def update(self, session_id: str, cursor: UpdatesRequest, watch: Watch) -> UpdateEvent:
        """Return what is new since `cursor`, no older than the last change that `watch` has counted."""

        async def read() -> UpdateEvent:
            event = await self.unshared_update(session_id, cursor)
            if event.update.status in IDLE_STATUSES:
                self._cache_warmer.warm(workflow_id(session_id), watch)
            return event

        return await self._shared(cursor, watch, read)

    async def queue(self, session_id: str, watch: Watch) -> QueueEvent:
        """Return what waits, no older than the last change that `watch` has counted."""

        async def read() -> QueueEvent:
            queue = await self._reader.queue(session_id)
            return QueueEvent(queue.waiting, queue.revision)

        return await self._shared("queue", watch, read)

    async def unshared_update(self, session_id: str, cursor: UpdatesRequest) -> UpdateEvent:
        """Return what is new since `cursor` now, for a caller for whom nobody watches the session."""
        update, until = await self._reader.updates(session_id, cursor), seconds_from_now(RESTORE_SECONDS)
        return UpdateEvent(await self._texts.restore_update(workflow_id(session_id), update, until=until))

    async def with_whole_answer(self, session_id: str, turn: ConversationMessage) -> ConversationMessage:
        """Return a turn that was read as an excerpt, with its whole answer if that can be read now."""
        until = seconds_from_now(RESTORE_SECONDS)
        (turn,) = await self._texts.restore_answers(workflow_id(session_id), [turn], until=until)
        return turn

    async def _shared(self, question: Hashable, watch: Watch, read: Callable[[], Coroutine[Any, Any, Event]]) -> Event:
        cached = self._cached.setdefault(watch, BoundedDict(max_entries=MAX_CACHED))
        current = cached.get(question)
        if current is None or not current.is_current(watch):
            current = _CachedRead(_version(watch), SharedCall(read()))
            current.call.when_done(lambda: _drop_if_failed(cached, question))
        cached[question] = current
        event: Event = await current.call.result()
        return event


def _version(watch: Watch) -> tuple[int, int]:
    return watch.task_count, watch.writes


def _drop_if_failed(cached: BoundedDict[Hashable, _CachedRead], question: Hashable) -> None:
    read = cached.get(question)
    if read is not None and read.call.is_done and read.call.peek() is None:
        del cached[question]
