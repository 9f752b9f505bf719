"""The progress of a task: reported by its agent, signalled to its parent (TSK-4, TSK-5)."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, JsonValue
from pydantic_core import to_json

from turnkeeper.models.bounds import encodable, is_nested_over
from turnkeeper.models.limits import MAX_NESTING
from turnkeeper.models.transcript.conversation import SessionStatus, TurnStatus
from turnkeeper.models.transcript.model_call import CompactUsage
from turnkeeper.models.transcript.task_view import CondensedTexts, TaskStatus
from turnkeeper.models.wire import Compact, Strict

MESSAGE_CHARS = 200
FINDINGS_BYTES = 8_192
"""Maximum JSON bytes of structured findings, which are carried from run to run."""


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _carriable(findings: dict[str, JsonValue]) -> Any:
    if is_nested_over(findings, MAX_NESTING):
        raise ValueError(f"may be nested {MAX_NESTING} levels deep")
    stored = encodable(findings)
    if len(to_json(stored)) > FINDINGS_BYTES:
        raise ValueError(f"may have {FINDINGS_BYTES:,} bytes as JSON: put the rest into your answer")
    return stored


class ProgressReport(Strict):
    """Arguments of `report_progress`. A missing field keeps its last reported value."""

    message: Annotated[str, Field(min_length=1, max_length=MESSAGE_CHARS), AfterValidator(_one_line)] | None = None
    percent: int | None = Field(None, ge=0, le=100)
    findings: Annotated[dict[str, JsonValue], AfterValidator(_carriable)] | None = None


class TaskChange(Compact):
    """Argument of the signal `task_changed`: the state of one of the session's tasks.

    `turn` numbers the task's newest turn. `answer` or `error` is set for a background task that has answered. `usage`
    is that of all its turns and of the tasks below it.
    """

    task_id: str
    status: TaskStatus = "working"
    percent: int | None = None
    message: str | None = None
    turn: int = 0
    answer: str | None = None
    error: str | None = None
    usage: CompactUsage = None
    is_closed: bool = False
    """Whether the task's session has ended."""


class TaskState(Compact):
    """The carried state of a session that is a task."""

    percent: int | None = None
    message: str | None = None
    findings: dict[str, JsonValue] | None = None
    reported: TaskChange | None = None
    """The last change signalled to the parent, without answer, error and usage; `None`: none yet."""
    condensed: CondensedTexts | None = None
    """What became of the long texts of the task's history (CTX-15)."""

    @property
    def carried_bytes(self) -> int:
        """JSON bytes of the carried state; 0 as long as nothing was reported."""
        return 0 if self == TaskState() else len(to_json(self))

    def with_report(self, report: ProgressReport) -> "TaskState":
        return self.model_copy(update=report.model_dump(exclude_none=True))


def task_status(
    newest_turn: TurnStatus | None, *, session: SessionStatus, waits: bool, queue_length: int
) -> TaskStatus:
    """Return a task's status: the status of its newest turn, or `working` while a prompt waits (TSK-4).

    `waits`: a tool call of a task below it waits for a person's decision.

    >>> task_status("completed", session="idle", waits=False, queue_length=0)
    'completed'
    >>> task_status("completed", session="idle", waits=False, queue_length=1)
    'working'
    >>> task_status(None, session="cancelled", waits=False, queue_length=0)
    'cancelled'
    """
    if session in ("ended", "cancelled", "terminated"):
        return newest_turn if newest_turn in ("completed", "failed") else "cancelled"
    if newest_turn == "processing" or newest_turn == "awaiting_approval":  # mypy narrows only this
        return "input_required" if waits or newest_turn == "awaiting_approval" else "working"
    if newest_turn is None or queue_length:
        return "working"
    return newest_turn
