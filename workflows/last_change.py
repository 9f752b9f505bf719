"""Which workflow task has changed the session last (SES-12).

Theory of operation. Workflow code learns of its task only when the task began: that is what `workflow.time_ns` is
until the next one. The length of the history that a worker has is no name for a task: where a session is replayed for
a query, it counts the events after the task as well. And the task of a refused update leaves no event at all, so
the task that counts is the last one that changed something, not the last one there was.
"""

from datetime import UTC, datetime, timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from models.as_of import AsOf
    from models.session_state import Session

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LastChange:
    """The workflow task of a run that changed its session last."""

    def __init__(self, session: Session) -> None:
        """Begin with the task that is under way."""
        self._session = session
        self.note()

    def note(self) -> None:
        """Name the task that is under way: it has changed the session."""
        self._revision, self._task = self._session.revision, _task_started_at()

    @property
    def as_of(self) -> AsOf:
        """The task whose completion commits what the session shows now; also for queries, which write nothing."""
        # A change that was not noted is of the last task there was, at the latest.
        task = self._task if self._revision == self._session.revision else _task_started_at()
        return AsOf(run_id=workflow.info().run_id, task_started_at=task)


def _task_started_at() -> datetime:
    return _EPOCH + timedelta(microseconds=workflow.time_ns() // 1000)
