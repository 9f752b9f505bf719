"""What many watchers of a session read, read and encoded once for all of them (API-3).

Theory of operation. Whoever is at the same place in the same session asks the same question, and until the session
changes the answer stays the same. So the first of them to ask after a change has it read, and everyone else takes that
answer, together with its JSON. An answer is good for as long as four things hold: the session's watch has counted no
sign since it was asked for, this gateway has written nothing to the session since, and Temporal has been answering,
so that a change would have been noticed; and nobody has been shown anything newer. A caller who has just written thus
never gets an answer from before.

Only the newest few answers of a session are kept: those who are up to date are all at one place.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from fastapi.sse import ServerSentEvent
from pydantic_core import to_json

from turnkeeper.api.history.transcript import Transcripts
from turnkeeper.api.live.polling import GivenForms, Poll
from turnkeeper.api.session_ids import workflow_id
from turnkeeper.api.temporal.cache_warmer import CacheWarmer
from turnkeeper.api.temporal.sessions import FINAL_STATUSES, Sessions
from turnkeeper.api.temporal.watch import Watch
from turnkeeper.models.session.queue.prompts import QueuedPrompt
from turnkeeper.models.session.session import UpdatesRequest
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationUpdate, SessionStatus
from turnkeeper.models.wire import Frozen

RESTING: tuple[SessionStatus, ...] = ("idle", "awaiting_approval")
"""A session in which there may be no workflow task for months."""

MOST_KEPT = 4
"""Answers kept of a watched session; each has about 1 MB at most."""

OFTEN_SECONDS = 10.0
"""A session polled twice within this time is watched: to begin a watch costs as much as a few polls."""

REWATCH_SECONDS = 0.5
"""Before a session is watched again whose watch has ended."""

MOST_POLLED = 10_000

Answer = TypeVar("Answer")


class WaitingPrompts(Frozen):
    """What waits in a session's queue, in order."""

    waiting: list[QueuedPrompt]


@dataclass(frozen=True)
class UpdateEvent:
    """What is new in a session since a cursor, with whole answers."""

    update: ConversationUpdate
    owed_since: int | None = None
    """Whoever comes back is told again what has changed after this revision: an answer was told as an excerpt."""

    @property
    def id(self) -> str:
        """What a client sends as `Last-Event-ID`: the cursor after it, or that before an answer that is owed to it."""
        owed_since = self.update.revision if self.owed_since is None else self.owed_since
        return f"{min(self.update.revision, owed_since)}.{self.update.last_seen_message_id or ''}"

    @property
    def next_cursor(self) -> UpdatesRequest:
        """The cursor after it."""
        return UpdatesRequest(
            last_seen_message_id=self.update.last_seen_message_id, since_revision=self.update.revision
        )

    @property
    def revision(self) -> int:
        """The session's revision that it shows."""
        return self.update.revision

    @property
    def is_whole(self) -> bool:
        """All answers could be put back; else the store of large texts is down, and this is not the last word."""
        return not any(turn.agent_message_blob for turn in [*self.update.new_messages, *self.update.updated_messages])

    @cached_property
    def json(self) -> str:
        """The update as JSON."""
        return self.update.model_dump_json()

    def as_answer(self, session_id: str) -> str:
        """Return it as the JSON of a `ConversationAnswer`."""
        return f'{{"workflow_id":{to_json(session_id).decode()},"conversation_update":{self.json}}}'

    @cached_property
    def sent(self) -> ServerSentEvent:
        """The event as it is sent."""
        return ServerSentEvent(event="update", id=self.id, raw_data=self.json)


@dataclass(frozen=True)
class QueueEvent:
    """What waits now."""

    waiting: list[QueuedPrompt]
    revision: int
    is_whole = True

    @cached_property
    def sent(self) -> ServerSentEvent:
        """The event as it is sent."""
        return ServerSentEvent(event="queue", raw_data=WaitingPrompts(waiting=self.waiting).model_dump_json())


@dataclass(frozen=True)
class _Kept:
    """An answer that is there or on its way, and what was known of the session when it was asked for."""

    version: tuple[int, int]
    answer: "asyncio.Task[Any]"

    def is_good_for(self, watch: Watch) -> bool:
        """Tell whether a caller who asks now may be given it."""
        if self.version != _version(watch):
            return False
        if not self.answer.done():
            return True
        event: UpdateEvent | QueueEvent = self.answer.result()
        return watch.is_live and event.is_whole and event.revision >= watch.revision


class SharedReads:
    """The reads of all sessions. Methods raise `ProblemError`."""

    def __init__(self, sessions: Sessions, transcripts: Transcripts, cache_warmer: CacheWarmer) -> None:
        """Read through `sessions` and `transcripts`; `cache_warmer` keeps sessions at rest cheap to read."""
        self._sessions = sessions
        self._cache_warmer = cache_warmer
        self._transcripts = transcripts
        self._kept: WeakKeyDictionary[Watch, OrderedDict[Hashable, _Kept]] = WeakKeyDictionary()
        self._polled_at: OrderedDict[str, float] = OrderedDict()
        self._given = GivenForms()

    # ---- for those who watch

    async def update(self, session_id: str, cursor: UpdatesRequest, watch: Watch) -> UpdateEvent:
        """Return what is new since `cursor`, no older than the last change that `watch` has counted."""

        async def read() -> UpdateEvent:
            event = await self._read(session_id, cursor)
            if event.update.status in RESTING:
                self._cache_warmer.warm(workflow_id(session_id), watch)
            return event

        return await self._shared(cursor, watch, read)

    async def whole(self, session_id: str, turn: ConversationMessage) -> ConversationMessage:
        """Return a turn that was read as an excerpt, with its whole answer if that can be read now."""
        return await self._transcripts.with_whole_answer(session_id, turn)

    async def queue(self, session_id: str, watch: Watch) -> QueueEvent:
        """Return what waits, no older than the last change that `watch` has counted."""

        async def read() -> QueueEvent:
            queue = await self._sessions.queue(session_id)
            return QueueEvent(queue.waiting, queue.revision)

        return await self._shared("queue", watch, read)

    # ---- for those who poll

    async def awaited(
        self,
        session_id: str,
        cursor: UpdatesRequest,
        *,
        seconds: float,
        holds: Callable[[ConversationUpdate], bool] = lambda update: False,
    ) -> UpdateEvent:
        """Return what is new as soon as there is something that the client has not seen, or after `seconds`.

        `holds`: the client has an answer with the `ETag` of this one.
        """
        clock = asyncio.get_running_loop().time
        until, poll = clock() + seconds, Poll(session_id, cursor, self._given, holds=holds)
        while True:
            async with self._sessions.watches.watching(workflow_id(session_id)) as watch:
                event = await self._next_unseen(session_id, cursor, watch, poll, until=until)
            if event is not None:
                poll.note_answer(event.update, now=clock())
                return event
            await asyncio.sleep(min(REWATCH_SECONDS, max(0.0, until - clock())))

    async def _next_unseen(
        self, session_id: str, cursor: UpdatesRequest, watch: Watch, poll: Poll, *, until: float
    ) -> UpdateEvent | None:
        """Return an answer when it is due; `None` where `watch` notices nothing any more."""
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        while True:
            version = watch.version
            event = await self.update(session_id, cursor, watch)
            is_closed = event.update.status in FINAL_STATUSES
            seconds = poll.hold_seconds(event.update, now=clock())
            due_at = until if seconds is None else min(until, asked_at + seconds)
            if seconds == 0 or clock() >= due_at:
                return event
            if not await watch.wait_for(partial(_may_have_news, watch, version, is_closed), until=due_at):
                return event
            if watch.version == version:
                return None

    async def polled(self, session_id: str, cursor: UpdatesRequest) -> UpdateEvent:
        """Return what is new now. A session that is asked about again and again is watched: who asks costs nothing."""
        if not self._is_worth_a_watch(session_id):
            event = await self._read(session_id, cursor)
            if event.update.status not in FINAL_STATUSES:
                self._note_poll(session_id)
        else:
            async with self._sessions.watches.watching(workflow_id(session_id)) as watch:
                reading = self.update(session_id, cursor, watch) if watch.is_live else self._read(session_id, cursor)
                event = await reading
        now = asyncio.get_running_loop().time()
        Poll(session_id, cursor, self._given).note_answer(event.update, now=now)
        return event

    def _is_worth_a_watch(self, session_id: str) -> bool:
        polled_at = self._polled_at.get(session_id)
        is_often = polled_at is not None and polled_at > asyncio.get_running_loop().time() - OFTEN_SECONDS
        return is_often or workflow_id(session_id) in self._sessions.watches

    def _note_poll(self, session_id: str) -> None:
        self._polled_at[session_id] = asyncio.get_running_loop().time()
        self._polled_at.move_to_end(session_id)
        while len(self._polled_at) > MOST_POLLED:
            self._polled_at.popitem(last=False)

    # ---- both

    async def _read(self, session_id: str, cursor: UpdatesRequest) -> UpdateEvent:
        update = await self._sessions.updates(session_id, cursor)
        return UpdateEvent(await self._transcripts.with_whole_answers(session_id, update))

    async def _shared(self, question: Hashable, watch: Watch, read: Callable[[], Awaitable[Answer]]) -> Answer:
        kept = self._kept.setdefault(watch, OrderedDict())
        known = kept.get(question)
        if known is None or not known.is_good_for(watch):
            known = kept[question] = _Kept(_version(watch), asyncio.create_task(_run(read)))
            known.answer.add_done_callback(lambda answer: _drop_failed(kept, question, answer))
        kept.move_to_end(question)
        while len(kept) > MOST_KEPT:
            kept.popitem(last=False)
        if not known.answer.done():
            # Whoever gives up must not take the others' answer away.
            await asyncio.shield(known.answer)
        answer: Answer = known.answer.result()
        return answer


async def _run(read: Callable[[], Awaitable[Answer]]) -> Answer:
    return await read()


def _may_have_news(watch: Watch, version: int, is_closed: bool) -> bool:
    """Return whether the session changed after `version`, or may do so without `watch` noticing it."""
    return watch.version > version or (watch.is_over and not is_closed)


def _version(watch: Watch) -> tuple[int, int]:
    return watch.task_count, watch.writes


def _drop_failed(kept: OrderedDict[Hashable, _Kept], question: Hashable, answer: "asyncio.Task[Any]") -> None:
    """Keep no failure; it has been told to all who waited for it, and is no news to asyncio's log."""
    if (answer.cancelled() or answer.exception()) and question in kept and kept[question].answer is answer:
        del kept[question]
