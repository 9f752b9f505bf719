"""Continue-as-new: when a session does it, and how (SES-14).

The workflow task that last changed the session (SES-12).

The only thing that workflow code knows of its task is its start time, `workflow.time_ns`. The task of a rejected update
leaves no event, so what counts is the last task that changed something. It is recorded with the change, since in a
query the length of the history also counts events after the task.

A worker that gets a query may also get events that belong to no completed task: those of a task that another worker is
processing and may lose, and those without a task. It applies them before it answers. Events without a task have the
time of the task before but a longer history, so the length is recorded too. The state after such events stays in the
worker's memory, and its next tasks build on it. So the tasks after which a query came are listed beside the last one,
unless they were replayed.
"""

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NoReturn, TypeVar

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.limits import LAST_HISTORY_BYTES, LAST_HISTORY_EVENTS
    from turnkeeper.models.session.session import Session
    from turnkeeper.models.wire import AsOf, Frozen, WorkflowTaskStart
    from turnkeeper.workflows.archiving import Archiving, Parking


class HistoryGrowth:
    """Growth of a run's history since the run began.

    The carried state in its first event does not count, since it would never shrink.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._events_at_start = workflow.info().get_current_history_length()
        self._bytes_at_start = workflow.info().get_current_history_size()

    def is_due(self) -> bool:
        limits, (events, size) = self._session.config.limits, self._since_start()
        over_budget = events >= limits.max_history_events or size >= limits.max_history_bytes
        return over_budget or workflow.info().is_continue_as_new_suggested()

    def is_overdue(self) -> bool:
        """Return whether the run can no longer wait for the archive."""
        limits, (events, size) = self._session.config.limits, self._since_start()
        return events >= limits.last_history_events or size >= limits.last_history_bytes

    def is_at_end(self) -> bool:
        """Return whether Temporal would soon terminate the run."""
        info = workflow.info()
        events, size = info.get_current_history_length(), info.get_current_history_size()
        return events >= LAST_HISTORY_EVENTS or size >= LAST_HISTORY_BYTES

    def _since_start(self) -> tuple[int, int]:
        info = workflow.info()
        events = info.get_current_history_length() - self._events_at_start
        return events, info.get_current_history_size() - self._bytes_at_start


class NewRun:
    """The session's next run."""

    def __init__(
        self,
        session: Session,
        growth: HistoryGrowth,
        archiving: Archiving,
        parking: Parking,
        *,
        is_sending: Callable[[], bool],
    ) -> None:
        """`is_sending`: a signal to another session or the status in lists is pending, which Temporal would drop."""
        self._session = session
        self._growth = growth
        self._archiving = archiving
        self._parking = parking
        self._is_sending = is_sending

    def is_due(self) -> bool:
        """Return whether to continue as new now: no activity or signal is pending, and everything can be carried.

        What the archive does not take lets the run continue instead: every turn makes the queue shorter.
        """
        is_busy = self._archiving.is_storing or self._parking.is_fetching or self._is_sending()
        if not self._growth.is_due() or is_busy:
            return False
        room = self._session.room
        if self._growth.is_at_end():
            return room.is_carriable_at_last
        return room.is_carriable or (self._growth.is_overdue() and room.is_carriable_by_temporal)

    def is_impossible(self) -> bool:
        """Return whether Temporal leaves no room for another turn, neither in this run nor in the next one."""
        return self._growth.is_at_end() and not self._session.room.is_carriable_at_last

    def continue_as_new(self) -> NoReturn:
        """End this run and continue in a new one with the whole state; never returns."""
        self._session.reject_uncarriable(now=workflow.now())
        workflow.continue_as_new(self._session.carry())


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
