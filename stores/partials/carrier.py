"""Carriers bring partial output from workers to gateways (AGT-5).

A worker publishes snapshots, each with the whole output so far; a gateway that follows a session has the newest
snapshot and wakes its waiters when it changes. Nothing is queued: a slow or late client gets the newest snapshot and
has missed nothing. So a carrier may lose or repeat snapshots. There are four: sockets on one machine
(`over_sockets.py`), Redis (`over_redis.py`), heartbeats of the activity (which need only Temporal) and memory (both in
`factory.py`, which chooses).

A failing carrier only means that clients see less. It never fails or delays the answer itself.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, Self

from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.transcript.partial_output import CallProgress, LiveNews, PartialOutput, PartialTag, with_progress
from turnkeeper.stores.waiting import VersionCounter, cancel_until_done

RETRY_SECONDS = 1.0
"""The pause after an unexpected failure of a carrier."""

_log = logging.getLogger(__name__)


class LiveSnapshot(VersionCounter):
    """The newest received snapshot of one session; its version counts them. Followers only read it."""

    def __init__(self) -> None:
        super().__init__()
        self.latest: PartialOutput | None = None
        """`None` until the first one arrives. It stays when the answer is complete; the recorded step shows that."""
        self.calls: dict[str, CallProgress] = {}
        """The progress of the newest step's calls, by call id. It stays when a call has its result."""

    def update(self, news: LiveNews) -> None:
        """Replace the snapshot or a call's progress and wake all waiters, unless it is repeated or outdated."""
        if isinstance(news, CallProgress):
            if self.calls.get(news.call_id) == news:
                return
            self.calls = with_progress(self.calls, news)
        elif self.latest is None or news.supersedes(self.latest):
            self.latest = news
        else:
            return
        self.advance()


class FollowedSessions:
    """The followed sessions of this process, each with one `LiveSnapshot` for all its followers.

    A task updates a session's `LiveSnapshot` from its first follower until its last one leaves.
    """

    def __init__(self, keep_updated: Callable[[WorkflowId, LiveSnapshot], Coroutine[Any, Any, None]]) -> None:
        """Run `keep_updated` for each followed session until it is cancelled; if it raises, run it again."""
        self._keep_updated = keep_updated
        self._lives: dict[str, LiveSnapshot] = {}
        self._followers: dict[str, int] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def get(self, workflow_id: WorkflowId) -> LiveSnapshot | None:
        return self._lives.get(workflow_id)

    @asynccontextmanager
    async def following(self, workflow_id: WorkflowId) -> AsyncIterator[LiveSnapshot]:
        live = self._lives.get(workflow_id)
        if live is None:
            live = self._lives[workflow_id] = LiveSnapshot()
            self._followers[workflow_id] = 0
            self._tasks[workflow_id] = asyncio.create_task(self._keep(workflow_id, live))
        self._followers[workflow_id] += 1
        try:
            yield live
        finally:
            self._followers[workflow_id] -= 1
            if not self._followers[workflow_id]:
                self._leave(workflow_id)

    async def close(self) -> None:
        await asyncio.gather(cancel_until_done(self._tasks.values()), *self._leaving)

    async def _keep(self, workflow_id: WorkflowId, live: LiveSnapshot) -> None:
        has_logged = False
        while True:
            try:
                return await self._keep_updated(workflow_id, live)
            except Exception as error:  # noqa: BLE001  # the next snapshot may be readable
                if not has_logged:
                    # The name alone: messages can hold what the model wrote.
                    _log.warning("partial output can't be followed for now (%s)", type(error).__name__)
                has_logged = True
            await asyncio.sleep(RETRY_SECONDS)

    def _leave(self, workflow_id: WorkflowId) -> None:
        del self._lives[workflow_id], self._followers[workflow_id]
        leaving = asyncio.create_task(cancel_until_done([self._tasks.pop(workflow_id)]))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)


class PublishedAnswer(Protocol):
    """One attempt's answer, while it is written."""

    @property
    def tag(self) -> PartialTag: ...

    def show(self) -> None:
        """Publish what there is so far."""
        ...


class PartialCarrier(ABC):
    """A carrier, used by workers to publish and by gateways to follow. Close it after use."""

    min_pause: float
    """Minimum seconds between two published snapshots of an answer."""

    first_pause: float = 0.0
    """Seconds from the first piece of an answer to its first snapshot."""

    def __init__(self) -> None:
        self._followed_sessions = FollowedSessions(self._keep_updated)

    async def listen(self) -> None:  # noqa: B027  # most carriers need none
        """Accept connections from gateways, if the carrier uses any. Never raises."""

    def begin(self, workflow_id: WorkflowId, answer: PublishedAnswer) -> None:  # noqa: B027
        """Note that an attempt begins to write, to show it to those who follow later."""

    def is_followed(self, workflow_id: WorkflowId) -> bool:
        """Return whether the session's answer is to be published; `True` where the carrier doesn't know."""
        return True

    @abstractmethod
    def publish(self, workflow_id: WorkflowId, news: LiveNews, *, behind: Sequence[object] = ()) -> None:
        """Publish a snapshot, or a call's progress, to all followers, in place of earlier ones; returns at once.

        Later followers get the snapshot too. Progress is not stored: it is published again and again.
        `behind` are further heartbeat details after the snapshot, for carriers that use heartbeats.
        """

    @abstractmethod
    def end(self, workflow_id: WorkflowId, tag: PartialTag) -> None:
        """Remove the published output of the attempt `tag`: later followers don't get it."""

    def heartbeat_details(self, workflow_id: WorkflowId) -> Sequence[object]:
        """Return the details for every heartbeat of the session's model call; empty for most carriers."""
        return ()

    def following(self, workflow_id: WorkflowId) -> AbstractAsyncContextManager[LiveSnapshot]:
        """Follow the session during the block; all its followers in this process share one snapshot."""
        return self._followed_sessions.following(workflow_id)

    def obstacle(self) -> str | None:
        """Return why followers get no partial output here, and what to change; `None` if nothing is known."""
        return None

    @abstractmethod
    async def forget(self, workflow_id: WorkflowId) -> None:
        """Remove what a dead worker may have left of a deleted session; what can't be reached expires."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._followed_sessions.close()

    @abstractmethod
    async def _keep_updated(self, workflow_id: WorkflowId, live: LiveSnapshot) -> None:
        """Update `live` to the newest snapshot of the session, until this is cancelled."""
