"""Which workflow task has changed the session last (SES-12).

Theory of operation. Workflow code learns of its task only when the task began: that is what `workflow.time_ns` is
until the next one. The task of a refused update leaves no event at all, so the task that counts is the last one that
changed something, not the last one there was. It is noted with the change itself: in a query, the length of the history
counts the events after the task as well.

A worker that replays a session for a query also takes in the events after the last completed task: those of a task
that is open at another worker, which may die, and those for which no task has begun. For the latter the time is that
of the task before, while the history is longer; so the length is noted too. What came of such events stays in the
worker's memory, and its next tasks build on it. So the first task that was no replay is noted beside the last one: it
is the only one that can be such a task, since the worker has the session in memory from then on.
"""

from datetime import UTC, datetime, timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from models.as_of import AsOf, TaskStart

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LastChange:
    """The workflow tasks of a run that the session's present state rests on."""

    def __init__(self) -> None:
        """Begin with the task that is under way."""
        self._first: tuple[int, int] | None = None
        self.note()

    def note(self) -> None:
        """Name the task that is under way: it has changed the session."""
        self._last = workflow.time_ns(), workflow.info().get_current_history_length()
        if self._first is None and not workflow.unsafe.is_replaying():
            self._first = self._last

    @property
    def as_of(self) -> AsOf:
        """The tasks whose completion commits what the session shows now."""
        first = _named(*self._first) if self._first else None
        return AsOf(run_id=workflow.info().run_id, task=_named(*self._last), first_task=first)


def _named(started_ns: int, history_length: int) -> TaskStart:
    return TaskStart(started_at=_EPOCH + timedelta(microseconds=started_ns // 1000), history_length=history_length)
