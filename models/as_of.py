"""Which workflow task an answer to a query comes from (SES-12).

A worker can answer a query from a workflow task that Temporal never learns of: the worker dies before it has completed
the task, another one does the task again, and times that were shown are others afterwards. Whoever must not show such
a state looks for the named task's completion in the history.
"""

from typing import Annotated

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from turnkeeper.models.wire import Frozen, UtcDatetime


class TaskStart(Frozen):
    """A workflow task, by the time of the event that started it, to the microsecond.

    Unlike the event's id the time tells the attempts of a task apart. `history_length` counts the run's events that a
    worker had then: more than there were up to the task, where it replayed the session for a query and went on with
    events that no task has taken yet. 0: not known.
    """

    started_at: UtcDatetime
    history_length: int = 0


class AsOf(Frozen):
    """The workflow tasks that a shown state rests on, beside what the worker has replayed from the history."""

    run_id: str
    task: TaskStart
    """The last one that changed the session."""
    earlier_tasks: tuple[TaskStart, ...] = ()
    """Tasks before it that this worker did not replay, and after which it was asked; its later tasks build on them."""

    @property
    def tasks(self) -> tuple[TaskStart, ...]:
        return (*self.earlier_tasks, self.task)


Stamp = Annotated[SkipJsonSchema[AsOf | None], Field(exclude_if=lambda as_of: as_of is None)]
"""The field `as_of` of an answer. The gateway has checked it and leaves it out; in no JSON it is null."""
