"""The workflow task that last changed the session (SES-12).

Theory of operation. The only thing that workflow code knows of its task is its start time, `workflow.time_ns`. The task
of a rejected update leaves no event, so what counts is the last task that changed something. It is recorded with the
change, since in a query the length of the history also counts events after the task.

A worker that gets a query may also get events that belong to no completed task: those of a task that another worker is
processing and may lose, and those without a task. It applies them before it answers. Events without a task have the
time of the task before but a longer history, so the length is recorded too. The state after such events stays in the
worker's memory, and its next tasks build on it. So the tasks after which a query came are listed beside the last one,
unless they were replayed.
"""

from collections import deque
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.as_of import AsOf, WorkflowTaskStart
    from turnkeeper.models.wire import Frozen

Answer = TypeVar("Answer", bound=Frozen)

MAX_EARLIER_TASKS = 16
"""Maximum of listed tasks; the gateway has checked older ones with earlier answers."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LastChange:
    """The workflow tasks of this run that the session's state depends on."""

    def __init__(self) -> None:
        self._last = (0, 0)
        self._is_replayed = True
        self._has_live_task = False
        self._was_queried = False
        self._earlier: deque[tuple[int, int]] = deque(maxlen=MAX_EARLIER_TASKS)
        self.note()

    def note(self) -> None:
        """Record that the current task has changed the session."""
        task = (workflow.time_ns(), workflow.info().get_current_history_length())
        if task == self._last:
            return
        if self._was_queried and not self._is_replayed:
            self._earlier.append(self._last)
        self._last, self._is_replayed, self._was_queried = task, workflow.unsafe.is_replaying(), False

    def note_live_task(self) -> None:
        """Record that this worker has processed a task that may have changed nothing: it gets the next queries."""
        self._has_live_task = True

    def note_query(self) -> None:
        """Record that a query was answered from the present state."""
        self._was_queried = True

    def stamp(self, answer: Answer) -> Answer:
        """Add the workflow tasks that the answer depends on: the gateway waits until they are committed (SES-12)."""
        earlier = tuple(_task_start(*task) for task in self._earlier)
        info = workflow.info()
        as_of = AsOf(
            run_id=info.run_id,
            first_run_id=info.first_execution_run_id,
            task=_task_start(*self._last),
            earlier_tasks=earlier,
            is_replayed=self._is_replayed and not self._has_live_task,
        )
        return answer.model_copy(update={"as_of": as_of})


def _task_start(started_ns: int, history_length: int) -> WorkflowTaskStart:
    return WorkflowTaskStart(
        started_at=_EPOCH + timedelta(microseconds=started_ns // 1000), history_length=history_length
    )
