"""Whether an answer of a session is one that Temporal has committed (SES-12).

Theory of operation. An answer names the workflow tasks that it rests on. A task's completion is in the history before
the worker that completed it answers anything else, so in nearly every case it is there already: the session's watch has
seen it, or one page of the newest events shows it. Otherwise the task is still open, or was undone: its worker died, or
took too long. Then the answer is dropped, since the task is done again, with other times. The worker that gave it would
go on from there, so it is made to forget the session (`workflows/hosting/evicting_runner.py`).
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError
from temporalio.service import RPCError

from turnkeeper.api.coalescer import Coalescer
from turnkeeper.api.temporal.watch import WatchRegistry
from turnkeeper.api.temporal.workflow_tasks import WorkflowTasks, newest_tasks
from turnkeeper.models.as_of import AsOf, TaskStart
from turnkeeper.models.backoff import growing_pauses
from turnkeeper.stores.bounded_dict import BoundedDict
from turnkeeper.workflows.hosting.evicting_runner import FORGET_QUERY

CHECK_SECONDS = 60.0
"""An open task is waited for so long: longer than any task timeout, and whether or not anybody still asks."""

PAUSE_SECONDS = 0.05
MAX_PAUSE_SECONDS = 0.4
"""Between two looks at the history while a task is open; the first and the longest."""

FORGET_SECONDS = 2.0

MAX_SESSIONS = 10_000


class CommitChecker:
    """Checks the answers of all sessions."""

    def __init__(self, client: Client, watches: WatchRegistry) -> None:
        """Read histories through `client`, where none of `watches` has. It sends queries once (`query_client.py`)."""
        self._client = client
        self._watches = watches
        self._checks = Coalescer[tuple[str, AsOf], bool]()
        self._newest_committed = BoundedDict[str, AsOf](max_entries=MAX_SESSIONS)
        """The newest task of each session that was found completed: an idle session is read once."""

    async def is_committed(self, workflow_id: str, as_of: AsOf) -> bool:
        """Wait until all tasks are completed, or one was undone, and return which. The caller bounds the wait.

        A worker whose task was undone is made to forget the session, also when no caller waits any more: it would go
        on from its wrong state.

        Raises:
            RPCError: The history can't be read.
            TimeoutError: A task has been open for longer than any task may be.
        """
        if self._newest_committed.get(workflow_id) == as_of:
            return True
        return await self._checks.run((workflow_id, as_of), lambda: self._check(workflow_id, as_of))

    async def close(self) -> None:
        await self._checks.close()

    async def _check(self, workflow_id: str, as_of: AsOf) -> bool:
        async with asyncio.timeout(CHECK_SECONDS):
            is_committed = await self._verdict(workflow_id, as_of)
        if not is_committed:
            await self._make_worker_forget(workflow_id)
        return is_committed

    async def _make_worker_forget(self, workflow_id: str) -> None:
        """Make the worker that has the session in memory read it from its history again."""
        handle: WorkflowHandle[Any, Any] = self._client.get_workflow_handle(workflow_id)
        with suppress(WorkflowQueryFailedError, RPCError):  # it always fails
            await handle.query(FORGET_QUERY, rpc_timeout=timedelta(seconds=FORGET_SECONDS))

    async def _verdict(self, workflow_id: str, as_of: AsOf) -> bool:
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
        self, workflow_id: str, run_id: str, tasks: Sequence[TaskStart], patience: float
    ) -> bool | None:
        """Look at what the watch has seen, or will have within `patience` seconds, then into the history itself."""
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

    async def _read(self, workflow_id: str, run_id: str, tasks: Sequence[TaskStart]) -> bool | None:
        since = min((task.started_at for task in tasks), default=None)
        return _are_committed(await newest_tasks(self._client, workflow_id, run_id=run_id, since=since), tasks)


def _are_committed(history: WorkflowTasks, tasks: Sequence[TaskStart]) -> bool | None:
    """Return whether all of `tasks` were completed; `None` while the part of the history doesn't tell."""
    verdicts = [history.is_committed(task.started_at, history_length=task.history_length) for task in tasks]
    return False if False in verdicts else None if None in verdicts else True
