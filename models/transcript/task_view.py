"""Tasks as a session shows them: the task that it is, and those that it has started (TSK-4, TSK-5). Data, no rules."""

from typing import Literal

from pydantic import Field, JsonValue

from turnkeeper.models.ids import PublicId
from turnkeeper.models.transcript.trajectory import Usage
from turnkeeper.models.wire import REASON_CHARS, Frozen

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
"""`input_required`: a tool call of the task, or of a task below it, waits for a person's decision."""

FINAL: frozenset[TaskStatus] = frozenset({"completed", "failed", "cancelled"})


NO_PARENT = "none"
"""The parent of a task that no session has started, where sessions that are no task have none either."""


WarningCode = Literal[
    "too_many_messages",
    "missing_timestamp",
    "invalid_timestamp",
    "empty_content",
    "truncated",
    "condensed",
    "not_condensed",
    "not_attached",
    "left_out",
    "replaced_characters",
    "total_size",
    "all_filtered",
    "prompt_size",
]
Severity = Literal["low", "medium", "high"]


class TaskValidationWarning(Frozen):
    """A correction; the message says what was changed. Warnings never fail a task (TSK-2)."""

    code: WarningCode
    field: str
    message: str
    severity: Severity = "low"
    suggestion: str | None = None


class HandOffReport(Frozen):
    """How many messages were given and kept; tokens are those of their texts, estimated (TSK-2, TSK-7).

    Of an inherited conversation, only the latest `max_messages` of the policy's roles count as given; a warning says
    that there were others.
    """

    given: int
    kept: int
    truncated: int
    dropped: int
    estimated_tokens_before: int
    estimated_tokens_after: int
    left_out: int = Field(0, exclude_if=lambda count: not count)
    """Of the dropped ones, how many matter less to the task than `min_relevance`, or than others (CTX-15)."""
    to_condense: int = Field(0, exclude_if=lambda count: not count)
    """Of the truncated ones, how many the model condenses when the task starts (CTX-15)."""


class CondensedTexts(Frozen):
    """What became of the long texts of a task's history, which the model was to condense (CTX-15)."""

    condensed: int
    cut: int = 0
    """How many were cut instead."""
    reason: str | None = Field(None, max_length=REASON_CHARS)
    """Why, as a sentence; null if none was cut."""


class TaskView(Frozen):
    """The task that a session is. Its agent reported `percent`, `message` and `findings`."""

    parent: str | None = None
    """The session that the task works for."""
    background: bool = False
    percent: int | None = None
    message: str | None = None
    findings: dict[str, JsonValue] | None = None
    context: HandOffReport | None = None
    """What was handed over of the conversation that led to it; null if that is unknown."""
    condensed: CondensedTexts | None = None
    """Null if no text was to be condensed, or as long as that isn't decided."""


class SubTask(Frozen):
    """A task that a session started with the `run_task` call `call_id`. `task_id` is the id of the task's session."""

    task_id: PublicId
    call_id: str
    title: str
    background: bool = False
    status: TaskStatus = "working"
    percent: int | None = None
    message: str | None = None
    """The last line that the task's agent reported."""
    turn: int = 0
    """For a background task, the number of the newest turn whose answer was received."""
    is_closed: bool = False
    """Whether a background task accepts no further prompts."""
    usage: Usage | None = None
    """What it has used, with the tasks below it; null as long as it has not answered."""

    @property
    def is_working(self) -> bool:
        return self.status not in FINAL

    @property
    def blocks_its_parent(self) -> bool:
        """Whether its parent's turn waits until a person decides on its tool call."""
        return self.status == "input_required" and not self.background

    @property
    def is_running(self) -> bool:
        """Whether its session is open: it works, or waits for further prompts."""
        return self.is_working or (self.background and not self.is_closed)
