"""The outcome of a task, as its workflow's result and as its parent's model reads it (TSK-4, TSK-5)."""

from collections.abc import Sequence

from pydantic import JsonValue
from pydantic_core import to_json

from turnkeeper.models.bounds import bound_text
from turnkeeper.models.errors import ErrorType
from turnkeeper.models.session.tasks.task_state import TaskChange
from turnkeeper.models.transcript.model_call import CompactUsage
from turnkeeper.models.transcript.task_view import SubTask, TaskStatus
from turnkeeper.models.transcript.trajectory import BlobRef, ToolResult, ToolStatus
from turnkeeper.models.wire import Compact

SIGNALLED_ANSWER_CHARS = 8_000
"""Maximum characters of an answer that reaches the parent as a prompt; a mark shows where it was cut."""

SIGNALLED_ANSWER_BYTES = 16_000

SUMMARY_CHARS = 280

_HISTORY_NOTES = "[The history that the task got:"

_RESULT_STATUS: dict[TaskStatus, ToolStatus] = {"completed": "ok", "cancelled": "outcome_unknown"}
"""Others are errors. A task that was cancelled may have acted before."""


class TaskOutcome(Compact):
    """The outcome of a task, in the result of its workflow.

    `usage` is with that of the tasks below it. With an `answer_blob`, `answer` is only an excerpt, because the store of
    large texts could not be read at the end.
    """

    status: TaskStatus
    answer: str | None = None
    answer_blob: BlobRef | None = None
    error: str | None = None
    error_type: ErrorType | None = None
    usage: CompactUsage = None
    findings: dict[str, JsonValue] | None = None


def tool_result_of(
    task: SubTask, outcome: TaskOutcome, *, notes: Sequence[str], max_chars: int, max_bytes: int
) -> ToolResult:
    """Return the tool result for a task in the foreground, with a long answer cut.

    `notes` say how the history was changed that it was handed.
    """
    parts = [outcome.answer or outcome.error or "The task gave no answer."]
    if outcome.findings is not None:
        parts.append(f"Findings: {to_json(outcome.findings).decode()}")
    if notes:
        parts.append(history_notes(notes))
    usage = outcome.usage
    used = f" · {usage.input_tokens:,} tokens in, {usage.output_tokens:,} out" if usage else ""
    return ToolResult(
        outcome=f"Task {task.task_id} {outcome.status}{used}",
        content=bound_text("\n\n".join(parts), max_chars, max_bytes),
        status=_RESULT_STATUS.get(outcome.status, "error"),
    )


def history_notes(notes: Sequence[str]) -> str:
    """Return what a session's model reads of how the history of its task was changed."""
    return "\n".join([_HISTORY_NOTES, *notes]) + "]"


def without_history_notes(content: str) -> str:
    r"""Return what a task said itself, of the content of its tool result.

    >>> without_history_notes("It is README.md.\n\n" + history_notes(["1 long text was cut."]))
    'It is README.md.'
    """
    answer, notes, _ = content.rpartition(f"\n\n{_HISTORY_NOTES}")
    return answer if notes else content


def result_prompt(task: SubTask, change: TaskChange) -> str:
    """Return the prompt that gives the parent's model the answer of a background task."""
    text = change.answer or change.error or "It gave no answer."
    return f"[Task “{task.title}” ({task.task_id}) {change.status}.]\n\n{text}"


def bound_answer(text: str | None) -> str | None:
    """Return an answer, cut to the size that a signal may have."""
    return text and bound_text(text, SIGNALLED_ANSWER_CHARS, SIGNALLED_ANSWER_BYTES)


def summary_of_answer(answer: str) -> str:
    r"""Return the first paragraph of an answer in one line, at most `SUMMARY_CHARS` characters.

    >>> summary_of_answer("It is README.md.\n\nThat has 400 lines.")
    'It is README.md.'
    """
    first = " ".join(answer.strip().partition("\n\n")[0].split())
    return first if len(first) <= SUMMARY_CHARS else f"{first[: SUMMARY_CHARS - 1].rsplit(' ', 1)[0]}…"
