"""What the gateway answers about tasks (TSK-2, TSK-4). Its Python client reads the same.

What it answers about sessions stands in `answers.py`.
"""

from pydantic import Field, JsonValue

from turnkeeper.models.errors import ErrorType
from turnkeeper.models.session.task import HandOffReport
from turnkeeper.models.tasks.hand_off import TaskValidationWarning
from turnkeeper.models.transcript.task_view import FINAL, TaskStatus
from turnkeeper.models.transcript.trajectory import Usage
from turnkeeper.models.wire import Frozen, Items, UtcDatetime


class TaskReceipt(Frozen):
    """A task exists. `context` and `warnings` say what became of the history that it was given.

    `url` is the page on which people can watch it, `temporal_url` its workflow in Temporal's Web UI.
    """

    task_id: str
    workflow_id: str
    """The session that the task is: it takes every call of `/workflow/{id}`."""
    status: TaskStatus = "working"
    url: str
    temporal_url: str | None = None
    context: HandOffReport
    warnings: Items[TaskValidationWarning] = []


class TaskResult(Frozen):
    """What came of a task. `answer` is whole; in a list of tasks, and where there is none, it is null."""

    summary: str | None = None
    """The first paragraph of the answer, or why there is none, in one line."""
    answer: str | None = None
    findings: dict[str, JsonValue] | None = None
    """What the agent has reported as structured data, if anything."""
    usage: Usage = Usage()
    transcript_url: str


class Task(Frozen):
    """A task, as it is now. It has a `result` while its status is final: a further message makes it work again."""

    task_id: str
    workflow_id: str
    title: str | None = None
    description: str | None = None
    """The beginning of what the task was asked to do; null of a task that a session has started itself."""
    status: TaskStatus
    status_message: str | None = None
    """One line: what the agent has reported last, or what is waited for."""
    percent: int | None = Field(None, ge=0, le=100)
    parent: str | None = None
    """The session that it was started for."""
    created_at: UtcDatetime
    updated_at: UtcDatetime | None = None
    """When its newest turn began or ended."""
    url: str
    temporal_url: str | None = None
    approvals: int = 0
    """How many tool calls wait for a person, those of tasks below it included."""
    result: TaskResult | None = None
    error: str | None = None
    error_type: ErrorType | None = None

    @property
    def is_final(self) -> bool:
        """Whether it has come to an end; a further message makes it work again."""
        return self.status in FINAL


class TaskPage(Frozen):
    """A page of tasks, newest first. `next_cursor` is null on the last page."""

    tasks: list[Task]
    next_cursor: str | None = None
