"""Which workflow task an answer to a query comes from (SES-12).

A worker can answer a query from a workflow task that Temporal never learns of: the worker dies before it has completed
the task, another one does the task again, and times that were shown are others afterwards. Whoever must not show such
a state looks for the named task's completion in the history.
"""

from typing import Annotated

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from models.wire import Frozen, UtcDatetime


class AsOf(Frozen):
    """The last workflow task that changed the session: its run, and the time of the event that started it.

    The time is exact to the microsecond. Unlike the event's id it tells the attempts of a task apart.
    `history_length` counts the run's events that were there: more than the task began with, where a worker replayed
    the session for a query and went on with events that no task has taken yet. 0: not known.
    """

    run_id: str
    task_started_at: UtcDatetime
    history_length: int = 0


Stamp = Annotated[SkipJsonSchema[AsOf | None], Field(exclude_if=lambda as_of: as_of is None)]
"""The field `as_of` of an answer. The gateway has checked it and leaves it out; in no JSON it is null."""
