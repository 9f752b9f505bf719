"""What makes a session a task, and its progress; it is signalled to its parent (TSK-1, TSK-4, TSK-5)."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field, JsonValue
from pydantic_core import to_json

from turnkeeper.features.tasks.rules.enrichment import first_prompt
from turnkeeper.features.tasks.rules.task_context import TaskContext
from turnkeeper.features.tasks.session.allowance import TaskAllowance
from turnkeeper.models.errors import ErrorType
from turnkeeper.models.ids import ID_PATTERN
from turnkeeper.models.limits import MAX_NESTING, Limits
from turnkeeper.models.session.prompts import PromptSignal
from turnkeeper.models.session.running_turn import TurnSlot
from turnkeeper.models.settings.history_policy import HandOffPresets
from turnkeeper.models.texts import bound_text, encodable, is_nested_over
from turnkeeper.models.transcript.attachments import Attachment, json_bytes
from turnkeeper.models.transcript.conversation import (
    BlobRef,
    CondensedTexts,
    HandOffReport,
    SessionStatus,
    SubTask,
    TaskStatus,
    TaskValidationWarning,
    ToolResult,
    ToolStatus,
    TurnStatus,
)
from turnkeeper.models.transcript.model_call import CompactUsage
from turnkeeper.models.transcript.notes import history_notes
from turnkeeper.models.wire import Compact, Items, Strict


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
    """Arguments of `report_progress`, with their bounds. A missing field keeps its value in `TaskState`."""

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
    """The carried state of a session that is a task; `TaskView` is what people see of it and of its input."""

    percent: int | None = None
    message: str | None = None
    findings: dict[str, JsonValue] | None = None
    reported: TaskChange | None = None
    """The last change signalled to the parent, without answer, error and usage; `None`: none yet."""
    condensed: CondensedTexts | None = None
    """What became of the long texts of the task's history (CTX-15)."""
    condenses: str | None = None
    """The id of the prompt whose texts are to be condensed; `None`: there is none, or no longer."""

    @property
    def carried_bytes(self) -> int:
        """JSON bytes of the carried state; 0 as long as nothing was reported."""
        return 0 if self == TaskState() else len(to_json(self))


class OwnTask:
    """The task that a session is, if it is one."""

    def __init__(
        self, state: TaskState, start: TaskInput | None, turn_slot: TurnSlot, *, on_change: Callable[[], object]
    ) -> None:
        """`report` and `end_condensing` call `on_change`."""
        self.state = state
        """The carried state; replaced with every change."""
        self._start = start
        self._turn_slot = turn_slot
        self._on_change = on_change

    def report(self, report: ProgressReport) -> None:
        """Note what the agent reports of the task."""
        self._update(**report.model_dump(exclude_none=True))
        self._on_change()

    def note_sent(self, change: TaskChange) -> None:
        """Remember what the parent knows."""
        self._update(reported=change.model_copy(update={"answer": None, "error": None, "usage": None}))

    def note_first_prompt(self, prompt_id: str) -> None:
        """Note the id of the prompt that is made from the task's context."""
        if self._start and self._start.to_condense:
            self._update(condenses=prompt_id)

    @property
    def to_condense(self) -> TextsToCondense | None:
        """The texts of the running turn's prompt that the model is to condense first; `None`: there are none."""
        turn = self._turn_slot.turn
        return self._start.to_condense if self._start and turn and turn.message.id == self.state.condenses else None

    def end_condensing(self, prompt: str | None, texts: CondensedTexts) -> None:
        """Replace the running turn's prompt by the condensed one, if there is one, and note what was condensed."""
        self._update(condenses=None, condensed=texts)
        if prompt is not None:
            self._turn_slot.replace_prompt(prompt)
        else:
            self._on_change()

    def _update(self, **fields: object) -> None:
        self.state = self.state.model_copy(update=fields)


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


SIGNALLED_ANSWER_CHARS = 8_000
"""Maximum characters of an answer that reaches the parent as a prompt; a mark shows where it was cut."""

SIGNALLED_ANSWER_BYTES = 16_000

SUMMARY_CHARS = 280

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
