"""The part of a session's input that makes it a task (TSK-1, TSK-5)."""

from pydantic import Field

from turnkeeper.models.ids import ID_PATTERN
from turnkeeper.models.tasks.task_context import TaskContext
from turnkeeper.models.wire import Compact

NO_PARENT = "none"
"""The parent of a task that no session has started, where sessions that are no task have none either."""


class TaskInput(Compact):
    """Set if the session is a task. Its first prompt is made from `context`, unless the input has a first prompt.

    Any workflow can run a task as a child. With the defaults, a task ends with its answer and returns it.
    """

    context: TaskContext | None = None
    parent: str | None = Field(None, pattern=ID_PATTERN)
    """The session that the task works for."""
    reports: bool = False
    """Whether the parent, which called `run_task`, gets progress signals."""
    background: bool = False
    """Whether the parent gets the answer by signal, instead of waiting for the workflow's result."""
    open_seconds: float | None = Field(0, ge=0, le=365 * 86_400)
    """How long the session accepts further prompts after an answer; `None`: until somebody ends it."""

    @property
    def without_context(self) -> "TaskInput":
        """The input without its context, which is not needed once the first prompt is made."""
        return self.model_copy(update={"context": None})
