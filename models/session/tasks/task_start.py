"""How a session is started as a task (TSK-1, TSK-5)."""

from pydantic import Field

from turnkeeper.models.ids import ID_PATTERN
from turnkeeper.models.tasks.task_context import TaskContext
from turnkeeper.models.wire import Compact


class TaskStart(Compact):
    """A session with it is a task. Its first prompt is made of `context`, unless one is given.

    Anyone's workflow can run a task as a child: with the defaults it ends with its answer, which is in its result.
    """

    context: TaskContext | None = None
    parent: str | None = Field(None, pattern=ID_PATTERN)
    """The session that it was started for."""
    reports: bool = False
    """The parent is signalled how the task goes on: it has started it with `run_task`."""
    background: bool = False
    """The parent does not wait for the result of the workflow: it is signalled the answer."""
    open_seconds: float | None = Field(0, ge=0, le=365 * 86_400)
    """How long the session stays open for further prompts after an answer; `None`: until it is ended."""

    @property
    def without_context(self) -> "TaskStart":
        """What is carried on once the first prompt is made."""
        return self.model_copy(update={"context": None})
