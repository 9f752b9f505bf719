"""What many watchers of a session read, read and encoded once for all of them (API-3).

Theory of operation. Whoever is at the same place in the same session asks the same question, and until the session
changes the answer stays the same. So the first of them to ask after a change has it read, and everyone else takes that
answer, together with its JSON. An answer is good for as long as three things hold: the session's watch has counted no
change since it was asked for, this gateway has written nothing to the session since, and Temporal has been answering,
so that a change would have been noticed. A caller who has just written thus never gets an answer from before.

Only the newest few answers of a session are kept: those who are up to date are all at one place.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from fastapi.sse import ServerSentEvent

from api.sessions import Sessions
from api.transcript import Transcripts
from api.watch import Watch
from models.conversation import ConversationUpdate
from models.prompts import QueuedPrompt
from models.session import UpdatesRequest
from models.wire import Frozen

MOST_KEPT = 4
"""Answers kept of a watched session; each has about 1 MB at most."""

Answer = TypeVar("Answer")


class WaitingPrompts(Frozen):
    """What waits in a session's queue, in order."""

    waiting: list[QueuedPrompt]


@dataclass(frozen=True)
class UpdateEvent:
    """What is new in a session since a cursor, with whole answers."""

    update: ConversationUpdate

    @property
    def id(self) -> str:
        """The cursor after it: what a client sends as `Last-Event-ID`."""
        return f"{self.update.revision}.{self.update.last_seen_message_id or ''}"

    @property
    def next_cursor(self) -> UpdatesRequest:
        """The cursor after it."""
        return UpdatesRequest(
            last_seen_message_id=self.update.last_seen_message_id, since_revision=self.update.revision
        )

    @cached_property
    def json(self) -> str:
        """The update as JSON."""
        return self.update.model_dump_json()

    @cached_property
    def sent(self) -> ServerSentEvent:
        """The event as it is sent."""
        return ServerSentEvent(event="update", id=self.id, raw_data=self.json)


@dataclass(frozen=True)
class QueueEvent:
    """What waits now."""

    waiting: list[QueuedPrompt]

    @cached_property
    def sent(self) -> ServerSentEvent:
        """The event as it is sent."""
        return ServerSentEvent(event="queue", raw_data=WaitingPrompts(waiting=self.waiting).model_dump_json())


@dataclass(frozen=True)
class _Kept:
    version: tuple[int, int]
    answer: "asyncio.Task[Any]"


class SharedReads:
    """The reads of all watched sessions. Methods raise `ProblemError`."""

    def __init__(self, sessions: Sessions, transcripts: Transcripts) -> None:
        """Read through `sessions` and `transcripts`."""
        self._sessions = sessions
        self._transcripts = transcripts
        self._kept: WeakKeyDictionary[Watch, OrderedDict[Hashable, _Kept]] = WeakKeyDictionary()

    async def update(self, session_id: str, cursor: UpdatesRequest, watch: Watch) -> UpdateEvent:
        """Return what is new since `cursor`, no older than the last change that `watch` has counted."""

        async def read() -> UpdateEvent:
            update = await self._sessions.updates(session_id, cursor)
            return UpdateEvent(await self._transcripts.with_whole_answers(session_id, update))

        return await self._shared(cursor, watch, read)

    async def queue(self, session_id: str, watch: Watch) -> QueueEvent:
        """Return what waits, no older than the last change that `watch` has counted."""

        async def read() -> QueueEvent:
            return QueueEvent((await self._sessions.queue(session_id)).waiting)

        return await self._shared("queue", watch, read)

    async def _shared(self, question: Hashable, watch: Watch, read: Callable[[], Awaitable[Answer]]) -> Answer:
        kept = self._kept.setdefault(watch, OrderedDict())
        version = (watch.changes, watch.writes)
        known = kept.get(question)
        if known is None or known.version != version or (known.answer.done() and not watch.is_live):
            known = kept[question] = _Kept(version, asyncio.create_task(_run(read)))
            known.answer.add_done_callback(lambda answer: _drop_failed(kept, question, answer))
        kept.move_to_end(question)
        while len(kept) > MOST_KEPT:
            kept.popitem(last=False)
        # Whoever gives up must not take the others' answer away.
        answer: Answer = await asyncio.shield(known.answer)
        return answer


async def _run(read: Callable[[], Awaitable[Answer]]) -> Answer:
    return await read()


def _drop_failed(kept: OrderedDict[Hashable, _Kept], question: Hashable, answer: "asyncio.Task[Any]") -> None:
    """Keep no failure; it has been told to all who waited for it, and is no news to asyncio's log."""
    if (answer.cancelled() or answer.exception()) and question in kept and kept[question].answer is answer:
        del kept[question]
