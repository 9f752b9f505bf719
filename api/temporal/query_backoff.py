"""Backoff of queries to sessions that don't answer (API-3).

A query to a session with an open workflow task waits for that task, takes one of the few places that Temporal has for
queries of the session, and may make a worker replay the whole history. Where tasks time out because the workers are
overloaded, repeated queries keep them overloaded. So after an unanswered query, and while the watch has seen a task
fail and none succeed since, the next query waits: for a completed task, or for a growing pause. Callers meanwhile wait
as long as they would for an answer, no longer.
"""

import asyncio
from dataclasses import dataclass
from random import uniform

from cachetools import LRUCache

from turnkeeper.api.temporal.watch import WatchRegistry
from turnkeeper.models.ids import WorkflowId

FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 5.0
MAX_SILENCE_SECONDS = 1.0
"""The longest pause if no task fails: where workers are just absent, fewer queries don't help."""

MAX_SESSIONS = 10_000


@dataclass(frozen=True)
class _Pause:
    seconds: float
    until: float
    """On the loop's clock."""
    version: int
    """Of the session's watch, when the pause began."""


class QueryBackoff:
    """The pauses of all sessions."""

    def __init__(self, watches: WatchRegistry) -> None:
        self._watches = watches
        self._pauses = LRUCache[str, _Pause](maxsize=MAX_SESSIONS)

    async def wait(self, workflow_id: WorkflowId) -> None:
        """Wait until the session may be queried. The caller bounds the wait."""
        watch = self._watches.get(workflow_id)
        if watch and watch.tasks.are_failing and workflow_id not in self._pauses:
            self.note_silence(workflow_id)
        pause = self._pauses.get(workflow_id)
        if pause is None:
            return
        if watch is None:
            await asyncio.sleep(pause.until - asyncio.get_running_loop().time())
        else:
            await watch.wait_for(lambda: watch.version != pause.version, until=pause.until)

    def note_answer(self, workflow_id: WorkflowId) -> None:
        """End the session's pauses: a worker has answered."""
        self._pauses.pop(workflow_id, None)

    def note_silence(self, workflow_id: WorkflowId) -> None:
        """Begin a pause, twice as long as the last one: no worker has answered."""
        watch, previous = self._watches.get(workflow_id), self._pauses.get(workflow_id)
        max_seconds = MAX_PAUSE_SECONDS if watch and watch.tasks.are_failing else MAX_SILENCE_SECONDS
        seconds = min(2 * previous.seconds, max_seconds) if previous else FIRST_PAUSE_SECONDS
        until = asyncio.get_running_loop().time() + seconds * uniform(0.8, 1.2)  # noqa: S311  # no secret
        self._pauses[workflow_id] = _Pause(seconds, until, watch.version if watch else 0)
