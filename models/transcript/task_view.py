"""What a session shows of tasks: of the task that it is itself, and of those that it has started (TSK-4, TSK-5)."""

from typing import Literal

from pydantic import JsonValue

from turnkeeper.models.wire import Frozen

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
"""`input_required`: a person is asked to decide on a tool call, of the task itself or of a task below it."""

FINAL: frozenset[TaskStatus] = frozenset({"completed", "failed", "cancelled"})


class TaskView(Frozen):
    """The task that a session is. `percent`, `message` and `findings` are what its agent has reported last."""

    parent: str | None = None
    """The session that it was started for."""
    background: bool = False
    percent: int | None = None
    message: str | None = None
    findings: dict[str, JsonValue] | None = None


class SubTask(Frozen):
    """A task that a session has started with the call `call_id` of `run_task`. `task_id` is a session of its own."""

    task_id: str
    call_id: str
    title: str
    background: bool = False
    status: TaskStatus = "working"
    percent: int | None = None
    message: str | None = None
    """One line that the task's agent has reported."""
    turn: int = 0
    """Of a background task, the number of the newest turn whose answer was received."""
    is_closed: bool = False
    """Of a background task: it takes no further prompts."""
    share: int = 0
    """How many tasks of the session's `limits.max_tasks` it may start itself."""

    @property
    def is_working(self) -> bool:
        return self.status not in FINAL

    @property
    def blocks_its_parent(self) -> bool:
        """A turn of its parent waits until a person has decided on a call of it."""
        return self.status == "input_required" and not self.background

    @property
    def is_running(self) -> bool:
        """Its session goes on: it works, or waits for further prompts."""
        return self.is_working or (self.background and not self.is_closed)
