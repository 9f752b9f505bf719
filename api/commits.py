"""Whether an answer of a session is one that Temporal has committed (SES-12).

Theory of operation. An answer names the workflow tasks that it rests on. A task's completion is in the history before
the worker that completed it answers anything else, so in nearly every case it is there already: the session's watch has
seen it, or one page of the newest events shows it. Otherwise the task is still open, or was undone: its worker died, or
took too long. Then the answer is dropped, since the task is done again, with other times. The worker that gave it would
go on from there, so it is made to forget the session (`workflows/evicting_runner.py`).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from temporalio.client import Client

from api.watch import Watches
from api.workflow_tasks import WorkflowTasks, newest_tasks
from models.as_of import AsOf, TaskStart

PAUSE_SECONDS = 0.05
MAX_PAUSE_SECONDS = 0.4
"""Between two looks at the history while a task is open; the first and the longest."""

MAX_SESSIONS = 10_000


class Commits:
    """The committed tasks of all sessions, as far as anybody has asked."""

    def __init__(self, client: Client, watches: Watches) -> None:
        """Read histories through `client`, where none of `watches` has."""
        self._client = client
        self._watches = watches
        self._committed: OrderedDict[str, AsOf] = OrderedDict()
        """The newest task of each session that was found completed: an idle session is read once."""

    async def has(self, workflow_id: str, as_of: AsOf) -> bool:
        """Return whether the task was completed, as soon as it was, or was undone. The caller bounds the wait.

        Raises:
            RPCError: The history can't be read.
        """
        known = self._committed.get(workflow_id)
        if known == as_of:
            return True
        is_same_run = known is not None and known.run_id == as_of.run_id
        open_tasks = [task for task in as_of.tasks if not (known and is_same_run and task in known.tasks)]
        pause = PAUSE_SECONDS
        while (is_committed := await self._look(workflow_id, as_of.run_id, open_tasks, pause)) is None:
            pause = min(2 * pause, MAX_PAUSE_SECONDS)
        if is_committed:
            self._committed[workflow_id] = as_of
            self._committed.move_to_end(workflow_id)
            while len(self._committed) > MAX_SESSIONS:
                self._committed.popitem(last=False)
        return is_committed

    async def _look(self, workflow_id: str, run_id: str, tasks: Sequence[TaskStart], patience: float) -> bool | None:
        """Look at what the watch has seen, or will have within `patience` seconds, then into the history itself."""
        watch = self._watches.get(workflow_id)
        if watch is None or not watch.is_live:
            is_committed = await self._read(workflow_id, run_id, tasks)
            if is_committed is None:
                await asyncio.sleep(patience)
            return is_committed
        until = asyncio.get_running_loop().time() + patience
        if await watch.stirred(lambda: _are_committed(watch.tasks, tasks) is not None, until=until):
            return _are_committed(watch.tasks, tasks)
        return await self._read(workflow_id, run_id, tasks)

    async def _read(self, workflow_id: str, run_id: str, tasks: Sequence[TaskStart]) -> bool | None:
        since = min((task.started_at for task in tasks), default=None)
        return _are_committed(await newest_tasks(self._client, workflow_id, run_id=run_id, since=since), tasks)


def _are_committed(history: WorkflowTasks, tasks: Sequence[TaskStart]) -> bool | None:
    """Return whether all of `tasks` were completed; `None` while the part of the history doesn't tell."""
    verdicts = [history.is_committed(task.started_at, history_length=task.history_length) for task in tasks]
    return False if False in verdicts else None if None in verdicts else True
