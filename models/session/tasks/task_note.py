"""What the memo of a task's workflow says of it: for readers that can't ask the session (TSK-2, TSK-4)."""

from turnkeeper.models.tasks.hand_off import TaskValidationWarning
from turnkeeper.models.transcript.task_view import HandOffReport
from turnkeeper.models.wire import Compact

MEMO_KEY = "task"

DESCRIPTION_BYTES = 1_000
"""How much of a description is in the memo."""


class TaskNote(Compact):
    """The part of a task's memo that describes how it was created.

    `digest` is that of the request over HTTP or MCP; `None`: a session has started the task. `context` is what was
    handed over.
    """

    digest: str | None = None
    description: str
    context: HandOffReport | None = None
    warnings: list[TaskValidationWarning] = []
