"""Which workflow task has changed the session last (SES-12).

Theory of operation. Workflow code learns of its task only when the task began: that is what `workflow.time_ns` is
until the next one. The task of a refused update leaves no event at all, so the task that counts is the last one that
changed something, not the last one there was. It is noted with the change itself: in a query, the length of the history
counts the events after the task as well.

A worker that is asked may be sent events that no completed task has taken: those of a task that is open at another
worker, which may die, and those for which no task has begun. It takes them in before it answers. For events without a
task the time is that of the task before, while the history is longer; so the length is noted too. What came of such
events stays in the worker's memory, and its next tasks build on it. So the tasks after which a query came are listed
beside the last one, unless they were replayed.
"""

from collections import deque
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.as_of import AsOf, TaskStart
    from turnkeeper.models.wire import Frozen

Answer = TypeVar("Answer", bound=Frozen)

MAX_EARLIER_TASKS = 16
"""The gateway checks them with every answer; those of older ones were checked with answers before."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LastChange:
    """The workflow tasks of a run that the session's present state rests on."""

    def __init__(self) -> None:
        self._last = (0, 0)
        self._is_replayed = True
        self._was_queried = False
        self._earlier: deque[tuple[int, int]] = deque(maxlen=MAX_EARLIER_TASKS)
        self.note()

    def note(self) -> None:
        """Name the task that is under way: it has changed the session."""
        task = (workflow.time_ns(), workflow.info().get_current_history_length())
        if task == self._last:
            return
        if self._was_queried and not self._is_replayed:
            self._earlier.append(self._last)
        self._last, self._is_replayed, self._was_queried = task, workflow.unsafe.is_replaying(), False

    def note_query(self) -> None:
        """Remember that a query was answered from the present state."""
        self._was_queried = True

    def stamp(self, answer: Answer) -> Answer:
        """Name the workflow tasks that the answer rests on: the gateway shows it once they are committed (SES-12)."""
        earlier = tuple(_named(*task) for task in self._earlier)
        as_of = AsOf(run_id=workflow.info().run_id, task=_named(*self._last), earlier_tasks=earlier)
        return answer.model_copy(update={"as_of": as_of})


def _named(started_ns: int, history_length: int) -> TaskStart:
    return TaskStart(started_at=_EPOCH + timedelta(microseconds=started_ns // 1000), history_length=history_length)
