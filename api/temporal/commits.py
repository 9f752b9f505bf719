"""Whether Temporal has committed the state that a query result shows (SES-12).

A query result names the workflow tasks that it depends on, each by the time of the event that started it (`AsOf` in
`models/wire.py`): every attempt of a task has another one. The completion of a task is in the history before the worker
that completed it answers anything else, so it is nearly always there already: the session's watch has seen it, or one
page of the newest events shows it. Otherwise the task is still open, or was undone because its worker died or took too
long. Then the result is dropped, since the task runs again with other times. The worker that gave it would continue
from the wrong state, so it is made to evict the session (`workflows/hosting.py`).
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from cachetools import LRUCache
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError
from temporalio.service import RPCError

from turnkeeper.api.coalescer import Coalescer
from turnkeeper.models.errors import growing_pauses
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.wire import FORGET_QUERY, AsOf, WorkflowTaskStart
from turnkeeper.stores.temporal.connection import newest_pages
from turnkeeper.stores.waiting import VersionCounter

CHECK_SECONDS = 60.0
"""How long to wait for an open task: longer than any task timeout, even if no caller waits any more."""

FIRST_PAUSE_SECONDS = 0.05
MAX_PAUSE_SECONDS = 0.4
"""Between two reads of the history while a task is open, or two queries."""

MAX_SESSIONS = 10_000
"""Of which the gateway remembers what it has read."""

COMPLETED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
FAILURE_EVENTS = {EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED, EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT}
"""Of consecutive failures Temporal records only the first."""

CLOSING_EVENTS = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
}


class WorkflowTasks(VersionCounter):
    """The outcomes of the workflow tasks in a part of a run's history. Those who wait for one are notified."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        """Tasks that failed or timed out since the last completed one."""
        self._completed: dict[datetime, int] = {}
        """The id of its completion event, for the start of each completed task."""
        self._open_task: tuple[int, datetime] | None = None
        self._since: datetime | None = None
        """The first event that is known."""
        self._settled_until: datetime | None = None
        """The last outcome."""

    def learn(self, events: Iterable[HistoryEvent]) -> None:
        """Add the next events. The first event of a run ends what is known of the run before."""
        for event in events:
            happened_at = event.event_time.ToDatetime(tzinfo=UTC)
            if self._since is None or event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                self._since, self._settled_until = happened_at, None
                self._completed.clear()
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
                self._open_task = (event.event_id, happened_at)
            elif event.event_type == COMPLETED or event.event_type in FAILURE_EVENTS | CLOSING_EVENTS:
                self._settle(event, happened_at)
        self.notify()

    def verdict(self, tasks: Sequence[WorkflowTaskStart]) -> bool | None:
        """Return whether all of `tasks` were completed; `None` while these events don't show it."""
        verdicts = [self._verdict(task) for task in tasks]
        return False if False in verdicts else None if None in verdicts else True

    def _settle(self, event: HistoryEvent, happened_at: datetime) -> None:
        if event.event_type == COMPLETED and self._open_task:
            started_id, started_at = self._open_task
            if started_id == event.workflow_task_completed_event_attributes.started_event_id:
                self._completed[started_at] = event.event_id
        self._open_task, self._settled_until = None, happened_at
        self.failures = self.failures + 1 if event.event_type in FAILURE_EVENTS else 0

    def _verdict(self, task: WorkflowTaskStart) -> bool | None:
        completed_id = self._completed.get(task.started_at)
        if completed_id is not None:
            # A state with more events is not that of the task: the worker went on with events of a later one.
            return task.history_length <= completed_id
        if self._since is None or self._settled_until is None:
            return None
        # Later attempts of a task are not in the history, but a task that ended after them is.
        return False if self._since < task.started_at <= self._settled_until else None


async def newest_tasks(
    client: Client, workflow_id: WorkflowId, *, run_id: str = "", since: datetime | None = None
) -> WorkflowTasks:
    """Return the tasks in the newest page of a run, and in all pages back to `since`. Raises `RPCError`."""
    events: list[HistoryEvent] = []
    async with aclosing(newest_pages(client, workflow_id, run_id=run_id)) as pages:
        async for page in pages:
            events += page
            if since is None or (events and events[-1].event_time.ToDatetime(tzinfo=UTC) < since):
                break
    tasks = WorkflowTasks()
    tasks.learn(reversed(events))
    return tasks


_State = tuple[str, tuple[WorkflowTaskStart, ...]]
"""A run, and the workflow tasks that its state depends on."""


class CommitChecker:
    """Checks query results.

    `client` sends queries once. `live_tasks` returns what the watch of a session has seen; `None` if nobody watches it,
    or the watch may be late.
    """

    def __init__(self, client: Client, live_tasks: Callable[[WorkflowId], WorkflowTasks | None]) -> None:
        self._client = client
        self._live_tasks = live_tasks
        self._checks = Coalescer[tuple[WorkflowId, _State], bool]()
        self._committed = LRUCache[WorkflowId, _State](maxsize=MAX_SESSIONS)
        """The newest committed state of each session, so that an idle session is checked once."""

    async def is_committed(self, workflow_id: WorkflowId, as_of: AsOf) -> bool:
        """Wait until all tasks are completed (true) or one was undone (false). The caller bounds the wait.

        A worker whose task was undone is made to evict the session, even if no caller waits any more.

        Raises:
            RPCError: The history can't be read.
            TimeoutError: A task has been open for longer than the task timeout allows.
        """
        state = (as_of.run_id, as_of.tasks)
        if self._committed.get(workflow_id) == state:
            return True
        return await self._checks.run((workflow_id, state), partial(self._check, workflow_id, state))

    async def close(self) -> None:
        await self._checks.close()

    async def _check(self, workflow_id: WorkflowId, state: _State) -> bool:
        run_id, tasks = state
        committed_run_id, committed_tasks = self._committed.get(workflow_id, ("", ()))
        if run_id == committed_run_id:
            tasks = tuple(task for task in tasks if task not in committed_tasks)
        pauses = growing_pauses(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        async with asyncio.timeout(CHECK_SECONDS):
            while (verdict := await self._verdict(workflow_id, run_id, tasks, next(pauses))) is None:
                pass
        if verdict:
            self._committed[workflow_id] = state
        else:
            handle: WorkflowHandle[Any, Any] = self._client.get_workflow_handle(workflow_id)
            with suppress(WorkflowQueryFailedError, RPCError):  # expected: this query always fails
                await handle.query(FORGET_QUERY, rpc_timeout=timedelta(seconds=2))
        return verdict

    async def _verdict(
        self, workflow_id: WorkflowId, run_id: str, tasks: Sequence[WorkflowTaskStart], patience: float
    ) -> bool | None:
        """Return what the watch sees within `patience` seconds, or else what the history shows."""
        live = self._live_tasks(workflow_id)
        until = asyncio.get_running_loop().time() + patience
        if live and await live.wait_for(lambda: live.verdict(tasks) is not None, until=until):
            return live.verdict(tasks)
        since = min((task.started_at for task in tasks), default=None)
        history = await newest_tasks(self._client, workflow_id, run_id=run_id, since=since)
        if not live and history.verdict(tasks) is None:
            await asyncio.sleep(patience)
        return history.verdict(tasks)
