"""Which workflow task has changed the session last (SES-12).

Theory of operation. Workflow code learns of its task only when the task began: that is what `workflow.time_ns` is
until the next one. The task of a refused update leaves no event at all, so the task that counts is the last one that
changed something, not the last one there was. It is noted with the change itself: in a query, the length of the history
counts the events after the task as well.

A worker that replays a session for a query also takes in the events after the last completed task: those of a task
that is open at another worker, which may die, and those for which no task has begun. For the latter the time is that
of the task before, while the history is longer; so the length is noted too. What came of such events stays in the
worker's memory, and its next tasks build on it. So the first task that was no replay is noted beside the last one: a
worker that has a session in memory is seldom sent its history again. Where it shows that it was, that is noted instead.
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
        self._last: tuple[int, int] | None = None
        self.note()

    def note(self) -> None:
        """Name the task that is under way: it has changed the session."""
        before, self._last = self._last, (workflow.time_ns(), workflow.info().get_current_history_length())
        # A task that began when the one before began, with more events, is none: no task has taken these events.
        is_no_task = before is not None and before[0] == self._last[0] and before[1] < self._last[1]
        if (self._first is None or is_no_task) and not workflow.unsafe.is_replaying():
            self._first = self._last

    @property
    def as_of(self) -> AsOf:
        """The tasks whose completion commits what the session shows now."""
        last, first = (task and _named(*task) for task in (self._last, self._first))
        assert last is not None  # noqa: S101  # noted at the beginning
        return AsOf(run_id=workflow.info().run_id, task=last, first_task=first)


def _named(started_ns: int, history_length: int) -> TaskStart:
    return TaskStart(started_at=_EPOCH + timedelta(microseconds=started_ns // 1000), history_length=history_length)
