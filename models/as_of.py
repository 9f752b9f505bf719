"""Which workflow task the answer to a query comes from (SES-12).

A worker can answer a query from a workflow task that it never completes: it dies, another worker repeats the task, and
times in the state change. A reader that must not show such a state looks for the task's completion in the history.
"""

from typing import Annotated

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from turnkeeper.models.wire import Frozen, UtcDatetime

FORGET_QUERY = "forget_session"
"""The query that makes a worker evict a session whose state depends on a task that was undone."""


class WorkflowTaskStart(Frozen):
    """A workflow task, by the time of the event that started it, to the microsecond.

    The time differs between attempts of a task; the event's id does not. `history_length` counts the run's events that
    the worker had. It includes events after the task if the worker replayed the session for a query. 0: unknown.
    """

    started_at: UtcDatetime
    history_length: int = 0


class AsOf(Frozen):
    """The workflow tasks that a state depends on, beyond what the worker has replayed from the history."""

    run_id: str
    first_run_id: str = ""
    """The run that the session began with: another session can have the same id later."""
    task: WorkflowTaskStart
    """The last one that changed the session."""
    earlier_tasks: tuple[WorkflowTaskStart, ...] = ()
    """Earlier tasks after which this worker answered a query, and which it did not replay; `task` builds on them."""
    is_replayed: bool = False
    """The worker has only replayed the session: Temporal doesn't know that it has the session in memory."""

    @property
    def tasks(self) -> tuple[WorkflowTaskStart, ...]:
        return (*self.earlier_tasks, self.task)


Stamp = Annotated[SkipJsonSchema[AsOf | None], Field(exclude_if=lambda as_of: as_of is None)]
"""The field `as_of` of an answer. The gateway checks it and drops it; it is absent from JSON rather than null."""
