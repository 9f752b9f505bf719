"""The part of a session's input that makes it a task (TSK-1, TSK-5)."""

from pydantic import Field

from turnkeeper.features.tasks.rules.enrichment import first_prompt
from turnkeeper.features.tasks.rules.task_context import TaskContext
from turnkeeper.features.tasks.session.allowance import TaskAllowance
from turnkeeper.models.ids import ID_PATTERN
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.queue.prompts import PromptSignal
from turnkeeper.models.settings.history_policy import HandOffPresets
from turnkeeper.models.transcript.attachments import Attachment, json_bytes
from turnkeeper.models.transcript.task_view import HandOffReport, TaskValidationWarning
from turnkeeper.models.transcript.trajectory import BlobRef
from turnkeeper.models.wire import Compact, Items


class TextsToCondense(Compact):
    """The texts of a task's history that the model is to condense: `LongTexts`, in the store under the task's id."""

    blob: BlobRef
    count: int = 0


class TaskInput(Compact):
    """Set if the session is a task. Its first prompt is made from `context`, unless the input has a first prompt.

    Any workflow can run a task as a child. With the defaults, a task ends with its answer and returns it.
    """

    context: TaskContext | None = None
    report: HandOffReport | None = None
    """What of the conversation that led to it is in its first prompt; `None`: that is unknown (TSK-2)."""
    parent: str | None = Field(None, pattern=ID_PATTERN)
    """The session that the task works for."""
    reports: bool = False
    """Whether the parent, which called `run_task`, gets progress signals."""
    background: bool = False
    """Whether the parent gets the answer by signal, instead of waiting for the workflow's result."""
    allowance: TaskAllowance | None = None
    """Of a task that a session has started: what it may use. `None`: the task is the root of a tree of its own."""
    open_seconds: float | None = Field(0, ge=0, le=365 * 86_400)
    """How long the session accepts further prompts after an answer; `None`: until somebody ends it."""

    attachments: Items[Attachment] = []
    """Of the first prompt that is made from `context`, by reference to the store (CTX-16)."""
    to_condense: TextsToCondense | None = None
    """What is to be condensed of the first prompt that is made from `context` (CTX-15)."""


class TasksInput(Compact):
    """What the input of a session has for tasks."""

    task: TaskInput | None = None
    """The task that the session is to be; its first prompt is made from the task's context."""
    presets: HandOffPresets | None = None
    """The operator's presets for the histories of its tasks; `None`: ours (CTX-9)."""


def task_prompt(task: TaskInput, context: TaskContext, *, new_id: str, limits: Limits) -> PromptSignal:
    """Return the first prompt, which is made from the task's context.

    Attachments that the session would reject are left out: then the history only names them.
    """
    fits = json_bytes(task.attachments) <= limits.attachments_bytes
    return PromptSignal(id=new_id, text=first_prompt(context), attachments=task.attachments if fits else [])


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
