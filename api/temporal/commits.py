"""Whether Temporal has committed the state that a query result shows (SES-12).

A query result names the workflow tasks that it depends on. The completion of a task is in the history before the worker
that completed it answers anything else, so it is nearly always there already: the session's watch has seen it, or one
page of the newest events shows it. Otherwise the task is still open, or was undone because its worker died or took too
long. Then the result is dropped, since the task runs again with other times. The worker that gave it would continue
from the wrong state, so it is made to evict the session (`workflows/hosting/sdk_internals.py`).
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from cachetools import LRUCache
from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError
from temporalio.service import RPCError

from turnkeeper.api.coalescer import Coalescer
from turnkeeper.api.temporal.watch import WatchRegistry
from turnkeeper.api.temporal.workflow_tasks import WorkflowTasks, newest_tasks
from turnkeeper.models.as_of import FORGET_QUERY, AsOf, WorkflowTaskStart
from turnkeeper.models.backoff import growing_pauses
from turnkeeper.models.ids import WorkflowId

CHECK_SECONDS = 60.0
"""How long to wait for an open task: longer than any task timeout, even if no caller waits any more."""

PAUSE_SECONDS = 0.05
MAX_PAUSE_SECONDS = 0.4
"""The first and the longest pause between two reads of the history while a task is open."""

FORGET_SECONDS = 2.0

MAX_SESSIONS = 10_000


class CommitChecker:
    """Checks query results, by the watches or else the histories. `client` must send queries once."""

    def __init__(self, client: Client, watches: WatchRegistry) -> None:
        self._client = client
        self._watches = watches
        self._checks = Coalescer[tuple[str, AsOf], bool]()
        self._newest_committed = LRUCache[str, AsOf](maxsize=MAX_SESSIONS)
        """The newest committed state of each session, so that an idle session is checked once."""

    async def is_committed(self, workflow_id: WorkflowId, as_of: AsOf) -> bool:
        """Wait until all tasks are completed (true) or one was undone (false). The caller bounds the wait.

        A worker whose task was undone is made to evict the session, even if no caller waits any more.

        Raises:
            RPCError: The history can't be read.
            TimeoutError: A task has been open for longer than the task timeout allows.
        """
        if self._newest_committed.get(workflow_id) == as_of:
            return True
        return await self._checks.run((workflow_id, as_of), lambda: self._check(workflow_id, as_of))

    async def close(self) -> None:
        await self._checks.close()

    async def _check(self, workflow_id: WorkflowId, as_of: AsOf) -> bool:
        async with asyncio.timeout(CHECK_SECONDS):
            is_committed = await self._verdict(workflow_id, as_of)
        if not is_committed:
            await self._make_worker_forget(workflow_id)
        return is_committed

    async def _make_worker_forget(self, workflow_id: WorkflowId) -> None:
        """Make the worker that has the session in memory replay it from its history."""
        handle: WorkflowHandle[Any, Any] = self._client.get_workflow_handle(workflow_id)
        with suppress(WorkflowQueryFailedError, RPCError):  # expected: the query always fails
            await handle.query(FORGET_QUERY, rpc_timeout=timedelta(seconds=FORGET_SECONDS))

    async def _verdict(self, workflow_id: WorkflowId, as_of: AsOf) -> bool:
        committed = self._newest_committed.get(workflow_id)
        is_same_run = committed is not None and committed.run_id == as_of.run_id
        open_tasks = [task for task in as_of.tasks if not (committed and is_same_run and task in committed.tasks)]
        pauses = growing_pauses(PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while (is_committed := await self._check_once(workflow_id, as_of.run_id, open_tasks, next(pauses))) is None:
            pass
        if is_committed:
            self._newest_committed[workflow_id] = as_of
        return is_committed

    async def _check_once(
        self, workflow_id: WorkflowId, run_id: str, tasks: Sequence[WorkflowTaskStart], patience: float
    ) -> bool | None:
        """Check what the watch has seen or sees within `patience` seconds, then the history; `None` if undecided."""
        watch = self._watches.get(workflow_id)
        if watch is None or not watch.is_live:
            is_committed = await self._read(workflow_id, run_id, tasks)
            if is_committed is None:
                await asyncio.sleep(patience)
            return is_committed
        until = asyncio.get_running_loop().time() + patience
        if await watch.wait_for(lambda: _are_committed(watch.tasks, tasks) is not None, until=until):
            return _are_committed(watch.tasks, tasks)
        return await self._read(workflow_id, run_id, tasks)

    async def _read(self, workflow_id: WorkflowId, run_id: str, tasks: Sequence[WorkflowTaskStart]) -> bool | None:
        since = min((task.started_at for task in tasks), default=None)
        return _are_committed(await newest_tasks(self._client, workflow_id, run_id=run_id, since=since), tasks)


def _are_committed(history: WorkflowTasks, tasks: Sequence[WorkflowTaskStart]) -> bool | None:
    """Return whether all of `tasks` were completed; `None` while that part of the history doesn't show it."""
    verdicts = [history.is_committed(task.started_at, history_length=task.history_length) for task in tasks]
    return False if False in verdicts else None if None in verdicts else True
