"""Which workflow task has changed the session last (SES-12).

Theory of operation. Workflow code learns of its task only when the task began: that is what `workflow.time_ns` is
until the next one. The task of a refused update leaves no event at all, so the task that counts is the last one that
changed something, not the last one there was. It is noted with the change itself: in a query, the length of the history
counts the events after the task as well.

A worker that replays a session for a query also takes in the events after the last completed task, such as an
activity's result, and no task has begun for them: the time is that of the task before, the history is longer. So the
length is noted too.
"""

from datetime import UTC, datetime, timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from models.as_of import AsOf

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LastChange:
    """The workflow task of a run that changed its session last."""

    def __init__(self) -> None:
        """Begin with the task that is under way."""
        self.note()

    def note(self) -> None:
        """Name the task that is under way: it has changed the session."""
        self._started_ns, self._history_length = workflow.time_ns(), workflow.info().get_current_history_length()

    @property
    def as_of(self) -> AsOf:
        """The task whose completion commits what the session shows now."""
        return AsOf(
            run_id=workflow.info().run_id,
            task_started_at=_EPOCH + timedelta(microseconds=self._started_ns // 1000),
            history_length=self._history_length,
        )
