"""When a session goes on in a new run, and how (SES-14)."""

from typing import NoReturn

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.session.session_state import Session
    from turnkeeper.workflows.archiving import Archiving
    from turnkeeper.workflows.parking import Parking
    from turnkeeper.workflows.tasks.task_reporter import TaskReporter


class HistoryGrowth:
    """How much a run's history has grown since the run began.

    What the run was handed over is in its first event: that does not count, since it would never shrink.
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
        """Return whether the run can't wait for the archive any longer."""
        limits, (events, size) = self._session.config.limits, self._since_start()
        return events >= limits.last_history_events or size >= limits.last_history_bytes

    def _since_start(self) -> tuple[int, int]:
        info = workflow.info()
        events = info.get_current_history_length() - self._events_at_start
        return events, info.get_current_history_size() - self._bytes_at_start


class NewRun:
    """The session's next run."""

    def __init__(
        self, session: Session, growth: HistoryGrowth, archiving: Archiving, parking: Parking, reporter: TaskReporter
    ) -> None:
        self._session = session
        self._growth = growth
        self._archiving = archiving
        self._parking = parking
        self._reporter = reporter

    def is_due(self) -> bool:
        """Return whether to hand over now: nothing is on its way to archive or parent, and all can be carried."""
        is_busy = self._archiving.is_storing or self._parking.is_fetching or self._reporter.is_sending
        if not self._growth.is_due() or is_busy:
            return False
        return self._session.room.is_queue_carriable or self._growth.is_overdue()

    def begin(self) -> NoReturn:
        """Hand everything over, and end this run."""
        self._session.give_up_uncarriable(now=workflow.now())
        workflow.continue_as_new(self._session.carry())
