"""Carriers bring partial output from workers to gateways (AGT-5).

Theory of operation. A worker publishes snapshots, each with the whole output so far; a gateway that follows a session
has the newest snapshot and wakes its waiters when it changes. Nothing is queued: a slow or late client gets the newest
snapshot and has missed nothing. So a carrier may lose or repeat snapshots. There are three: heartbeats of the activity
(`heartbeats.py`, which needs only Temporal), memory (`in_process.py`) and Redis (`over_redis.py`); `factory.py`
chooses.

A failing carrier only means that clients see less. It never fails or delays the answer itself.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self

from turnkeeper.models.transcript.partial_output import PartialOutput, PartialTag
from turnkeeper.stores.version_counter import VersionCounter

RETRY_SECONDS = 1.0
"""After a failure that a carrier did not foresee."""

_log = logging.getLogger(__name__)


class LiveSnapshot(VersionCounter):
    """The newest snapshot of one session that has arrived here; its version counts them. Followers only read it."""

    def __init__(self) -> None:
        super().__init__()
        self.latest: PartialOutput | None = None
        """`None` until the first one arrives. It stays when its answer is whole: the recorded step says that."""

    def update(self, snapshot: PartialOutput) -> None:
        """Replace the snapshot and wake those who wait, unless it is no newer: it came twice, or too late."""
        if self.latest is None or snapshot.supersedes(self.latest):
            self.latest = snapshot
            self.advance()


class FollowedSessions:
    """The sessions that are followed here, each with one `LiveSnapshot` for all its followers.

    What keeps a session's `LiveSnapshot` new runs from its first follower's coming to its last one's leaving.
    """

    def __init__(self, keep_new: Callable[[str, LiveSnapshot], Coroutine[Any, Any, None]]) -> None:
        """Run `keep_new` for each session, until it is cancelled; where it raises, it is begun anew."""
        self._keep_new = keep_new
        self._lives: dict[str, LiveSnapshot] = {}
        self._followers: dict[str, int] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def get(self, workflow_id: str) -> LiveSnapshot | None:
        return self._lives.get(workflow_id)

    @asynccontextmanager
    async def following(self, workflow_id: str) -> AsyncIterator[LiveSnapshot]:
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
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), *self._leaving, return_exceptions=True)

    async def _keep(self, workflow_id: str, live: LiveSnapshot) -> None:
        has_told = False
        while True:
            try:
                return await self._keep_new(workflow_id, live)
            except Exception as error:  # noqa: BLE001  # whatever it is: the next snapshot may be fit to be read
                if not has_told:
                    # The name alone: messages can hold what the model wrote.
                    _log.warning("what is written can't be followed for now (%s)", type(error).__name__)
                has_told = True
            await asyncio.sleep(RETRY_SECONDS)

    def _leave(self, workflow_id: str) -> None:
        del self._lives[workflow_id], self._followers[workflow_id]
        task = self._tasks.pop(workflow_id)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        task.cancel()


class PartialCarrier(ABC):
    """Both sides of a carrier. A worker uses one, a gateway follows through one; to be closed after use."""

    min_pause: float
    """Seconds that a worker lets pass between two snapshots of an answer, at least."""

    first_pause: float = 0.0
    """Seconds from the first piece of an answer to its first snapshot."""

    def __init__(self) -> None:
        self._followed_sessions = FollowedSessions(self._keep_new)

    @abstractmethod
    def show(self, workflow_id: str, snapshot: PartialOutput, *, behind: Sequence[object] = ()) -> None:
        """Have the snapshot carried to those who follow, in the place of those before it; returns at once.

        `behind` is what heartbeats carry behind it, for carriers that use those.
        """

    @abstractmethod
    def end(self, workflow_id: str, tag: PartialTag) -> None:
        """Let go of what was shown of the attempt `tag`: who comes from now on sees nothing of it."""

    def heartbeat_details(self, workflow_id: str) -> Sequence[object]:
        """Return what every heartbeat of the session's model call is to carry; nothing for most carriers."""
        return ()

    def following(self, workflow_id: str) -> AbstractAsyncContextManager[LiveSnapshot]:
        """Give what arrives of the session for the time of the block; all who follow it here are given the same."""
        return self._followed_sessions.following(workflow_id)

    @abstractmethod
    async def forget(self, workflow_id: str) -> None:
        """Let go of what a dead worker may have left of a session that was deleted; what can't be reached expires."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._followed_sessions.close()

    @abstractmethod
    async def _keep_new(self, workflow_id: str, live: LiveSnapshot) -> None:
        """Keep `live` the newest snapshot of a session that is followed, until this is cancelled."""
