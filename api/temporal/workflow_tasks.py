"""The outcomes of a session's workflow tasks, from its history (SES-12).

A query result identifies its task by the moment when the task began (`models/as_of.py`). Tasks run one after another,
so any moment between a task's start and completion belongs to that task alone; with local activities the workflow's
clock advances within a task. Only the first attempt of a failed or timed out task is in the history. A moment in
another attempt lies between two tasks, and counts as undone once a later task has ended.
"""

from bisect import bisect_right
from collections.abc import Iterable
from contextlib import aclosing
from datetime import UTC, datetime

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from turnkeeper.models.ids import WorkflowId
from turnkeeper.workflows.hosting.history_pages import newest_pages

MAX_TASKS = 10_000
"""Completed tasks remembered per session: more than any run has."""

CLOSING_EVENTS = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
}
FAILURE_EVENTS = {EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED, EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT}
"""Of consecutive failures Temporal records only the first."""

_SETTLING_EVENTS = CLOSING_EVENTS | FAILURE_EVENTS | {EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED}


class WorkflowTasks:
    """The workflow tasks in a part of a session's history."""

    def __init__(self) -> None:
        self._starts: list[datetime] = []
        self._ends: list[datetime] = []
        self._completed_ids: list[int] = []
        self._completed_id_by_start: dict[datetime, int] = {}
        """Completion ids by start, for exact lookups: if a clock is set back, `_starts` is not sorted."""
        self._open_task: tuple[int, datetime] | None = None
        self._known_from: datetime | None = None
        self._settled_until: datetime | None = None
        self.failures = 0
        """Tasks that failed or timed out since the last completed one."""

    def learn(self, events: Iterable[HistoryEvent]) -> None:
        for event in events:
            happened_at = time_of(event)
            self._known_from = self._known_from or happened_at
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
                self._open_task = (event.event_id, happened_at)
            elif event.event_type in _SETTLING_EVENTS:
                self._settle(event, happened_at)

    def _settle(self, event: HistoryEvent, happened_at: datetime) -> None:
        is_completed = event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
        if is_completed and self._open_task:
            started_id, started_at = self._open_task
            if started_id == event.workflow_task_completed_event_attributes.started_event_id:
                self._starts.append(started_at)
                self._ends.append(happened_at)
                self._completed_ids.append(event.event_id)
                self._completed_id_by_start[started_at] = event.event_id
                self._forget_oldest()
        self._open_task = None
        self._settled_until = happened_at
        self.failures = self.failures + 1 if event.event_type in FAILURE_EVENTS else 0

    def _forget_oldest(self) -> None:
        if len(self._starts) > MAX_TASKS:
            for parallel in (self._starts, self._ends, self._completed_ids):
                del parallel[: MAX_TASKS // 2]
            self._completed_id_by_start = dict(zip(self._starts, self._completed_ids, strict=True))
            self._known_from = self._starts[0]

    @property
    def are_failing(self) -> bool:
        """The last known task has failed or timed out."""
        return self.failures > 0

    def is_committed(self, moment: datetime, *, history_length: int = 0) -> bool | None:
        """Return whether the task that began at `moment` was completed; `None` while these events don't show it.

        A state with more events than the history had at the task's completion is not that task's: the worker continued
        with later events, which belong to another task.
        """
        if moment in self._completed_id_by_start:
            return history_length <= self._completed_id_by_start[moment]
        if self._settled_until is None or self._known_from is None:
            return None
        task = bisect_right(self._starts, moment) - 1
        if task >= 0 and moment <= self._ends[task]:
            return history_length <= self._completed_ids[task]
        return False if self._known_from <= moment <= self._settled_until else None


def time_of(event: HistoryEvent) -> datetime:
    """Return the time of the event, in microseconds."""
    return event.event_time.ToDatetime(tzinfo=UTC)


async def newest_tasks(
    client: Client, workflow_id: WorkflowId, *, run_id: str = "", since: datetime | None = None
) -> WorkflowTasks:
    """Return the tasks in the newest page of a run, and in all pages back to `since`. Raises `RPCError`."""
    events: list[HistoryEvent] = []
    async with aclosing(newest_pages(client, workflow_id, run_id=run_id)) as pages:
        async for page in pages:
            events += page
            if since is None or (events and time_of(events[-1]) < since):
                break
    tasks = WorkflowTasks()
    tasks.learn(reversed(events))
    return tasks
