"""A turn with its steps, and the two views of a conversation that clients get: state and update (SES-1 to SES-3). Data.

A turn is one `ConversationMessage`, the request with its whole response. It is recorded when its processing starts,
replaced while it runs, and never changed after it has ended. Only the newest turn can still be running.

Tasks stand here as a session shows them: the task that it is, and those that it has started (TSK-4, TSK-5).
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, computed_field

from turnkeeper.models.errors import ErrorType
from turnkeeper.models.ids import PublicId
from turnkeeper.models.transcript.attachments import Attachment
from turnkeeper.models.wire import REASON_CHARS, Compact, Frozen, Items, Person, Reason, Stamp, UtcDatetime

# ---- the steps of a turn

ToolStatus = Literal["ok", "error", "denied", "cancelled", "outcome_unknown"]
"""How a tool call ended.

`outcome_unknown`: it started, may have had its effect, and is not repeated (AGT-7). `cancelled`: it had none, because
it never started or only reads.
"""

ApprovalDecision = Literal["approve", "allow_for_session", "reject"]
"""A person's decision on a call; `allow_for_session` also allows all further calls of the tool (AGT-8)."""

StopReason = Literal["end_turn", "tool_calls", "max_tokens"]
"""Why the model stopped. `max_tokens`: the vendor's limit cut its text off, and its calls were ignored."""


COST_DIGITS = 9
"""Decimal places of a cost in US dollars: enough for the price of one token, and sums have no rounding noise."""


class BlobRef(Compact):
    """Reference to a large text in the store: the SHA-256 of its UTF-8 in hex, and its size (SES-15)."""

    hash: str
    chars: int
    bytes: int


class ToolResult(Frozen):
    """The result of a tool call. `outcome` is one line for people; the model reads it with the `content` below it.

    With a `blob`, `content` is an excerpt, but the model gets the whole text. `cut`: the store was down, so the rest of
    `content` is lost. `tool_changed`: the tool was not called, since it is not the one that the session knows.
    """

    outcome: str
    content: str = ""
    status: ToolStatus = "ok"
    duration_ms: int | None = None
    blob: BlobRef | None = None
    cut: bool = False
    tool_changed: bool = False
    attachments: Items[Attachment] = Field([], exclude_if=lambda attachments: not attachments)
    """Images and files that the tool returned. Left out of the JSON if there are none."""


class FileChange(Compact):
    """The difference that a call would make to a file, as a worker saw it when approval was requested (AGT-8).

    `note` says what becomes of the file, or why there is no difference. `diff` is unified; `omitted_lines` more of it
    are left out. `sha256` is that of the file, in hex; empty: there was none; `None`: unknown, so that the call runs
    whatever the file is then.
    """

    note: str
    diff: str = ""
    omitted_lines: int = 0
    sha256: str | None = None


class Approval(Frozen):
    """A person's decision on a tool call, possible until `expires_at` (AGT-8).

    `args_digest` is that of the arguments it is about. `decision` is null until somebody decides, and stays null if the
    turn ends first; `expired`: nobody decided in time, which counts as a rejection. `decided_by` is the person of the
    key or token that decided. Without one it is left out of the JSON.
    `change` is what the call would change in a file; the call runs only while that file is the same.
    """

    args_digest: str
    asked_at: UtcDatetime
    expires_at: UtcDatetime
    change: FileChange | None = Field(None, exclude_if=lambda change: change is None)
    decision: ApprovalDecision | Literal["expired"] | None = None
    reason: str | None = None
    decided_at: UtcDatetime | None = None
    decided_by: str | None = Field(None, exclude_if=lambda person: person is None)

    @property
    def is_given(self) -> bool:
        """Whether the call may run."""
        return self.decision in ("approve", "allow_for_session")


class ToolCall(Frozen):
    """A tool call of the model.

    `id` is our own, `turn.step.index`, unique in the session; `provider_call_id` is the vendor's, which can repeat
    (SES-6). `args` is the model's JSON object, or its text verbatim if that was not a JSON object; with an `args_blob`
    it is empty, and the store has it as JSON. `legible_args` is what people read: only in what the gateway sends, and
    not with an `args_blob`.
    """

    id: str
    name: str
    args: dict[str, JsonValue] | str
    args_blob: BlobRef | None = None
    legible_args: str | None = Field(None, exclude_if=lambda text: text is None)
    provider_call_id: str | None = None
    approval: Approval | None = None
    result: ToolResult | None = None

    @property
    def awaits_approval(self) -> bool:
        """Whether a person still has to decide."""
        return self.approval is not None and self.approval.decision is None and self.result is None


class Usage(Frozen):
    """Tokens as reported by the vendor, in one form for all vendors (AGT-10).

    `input_tokens` include those read from the vendor's cache (`cached_tokens`) and written to it
    (`cache_write_tokens`); `output_tokens` include reasoning. `cost` is in US dollars, for the calls whose price is
    known; null if there are none. `estimated_tokens` are those of attempts without a complete answer, which no vendor
    has counted (AGT-9).
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0
    estimated_tokens: int = 0
    cost: float | None = None

    @property
    def tokens(self) -> int:
        """Input and output together, cached or not."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        """Add field by field; costs are rounded to `COST_DIGITS`.

        >>> (Usage(input_tokens=1, cost=0.5) + Usage(input_tokens=2, output_tokens=3)).model_dump(exclude_defaults=True)
        {'input_tokens': 3, 'output_tokens': 3, 'cost': 0.5}
        >>> (Usage(cost=0.1) + Usage(cost=0.2)).cost, (Usage() + Usage()).cost
        (0.3, None)
        """
        costs = [usage.cost for usage in (self, other) if usage.cost is not None]
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            estimated_tokens=self.estimated_tokens + other.estimated_tokens,
            cost=round(sum(costs), COST_DIGITS) if costs else None,
        )

    def __sub__(self, earlier: "Usage") -> "Usage":
        """Subtract an earlier sum field by field.

        >>> (Usage(input_tokens=3, cost=0.5) - Usage(input_tokens=1, cost=0.1)).model_dump(exclude_defaults=True)
        {'input_tokens': 2, 'cost': 0.4}
        """
        names = Usage.model_fields.keys() - {"cost"}
        cost = None if self.cost is None else round(self.cost - (earlier.cost or 0.0), COST_DIGITS)
        return Usage(cost=cost, **{name: getattr(self, name) - getattr(earlier, name) for name in names})


def dollars(cost: float) -> str:
    """Format a cost, unrounded.

    >>> dollars(0.05), dollars(0.000123), dollars(12.5), dollars(0.0)
    ('$0.05', '$0.000123', '$12.50', '$0.00')
    """
    whole, _, fraction = f"{cost:,.{COST_DIGITS}f}".partition(".")
    return f"${whole}.{fraction.rstrip('0'):0<2}"


INTERRUPTED_NOTE = "[This answer was interrupted before it was complete.]\n\n"
"""Precedes an interrupted text in what a model reads. It comes first, since an excerpt may lack the end."""


class ModelStep(Frozen):
    """A model response and the results of its tool calls. With a blob, its text is an excerpt.

    `interrupted`: the answer was stopped or broke off, and this is what the model had written. Its thinking and calls
    are only shown to people; none of the calls ran (SES-9).
    """

    kind: Literal["model"]
    number: int
    thinking: str | None = None
    thinking_blob: BlobRef | None = None
    text: str | None = None
    text_blob: BlobRef | None = None
    tool_calls: Items[ToolCall] = []
    stop: StopReason = "end_turn"
    interrupted: bool = False
    usage: Usage | None = None
    model: str | None = None
    request_id: str | None = None
    left_out: str = Field("", exclude_if=lambda text: not text)
    """One line: which parts the model's vendor refused, so that they were left out of the request, and why (AGT-9)."""
    timestamp: UtcDatetime

    @property
    def is_answer(self) -> bool:
        """Whether it ends the turn: it has no tool calls."""
        return not self.tool_calls


class UserStep(Frozen):
    """A prompt that was steered into the running turn (SES-7)."""

    kind: Literal["user"]
    message_id: str
    content: str
    attachments: Items[Attachment] = Field([], exclude_if=lambda attachments: not attachments)
    timestamp: UtcDatetime


Step = Annotated[ModelStep | UserStep, Field(discriminator="kind")]


class ReasoningTrajectory(Frozen):
    """The steps of a turn, oldest first."""

    steps: Items[Step] = []

    @property
    def model_steps(self) -> list[ModelStep]:
        """The model's steps, without steering prompts."""
        return [step for step in self.steps if isinstance(step, ModelStep)]


# ---- tasks

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


# ---- turns, states and updates

TurnStatus = Literal["processing", "awaiting_approval", "completed", "failed", "cancelled"]
SessionStatus = Literal[
    "idle", "processing", "awaiting_approval", "waiting_retry", "ending", "ended", "cancelled", "terminated", "stuck"
]
"""Only the gateway reports `terminated` and `stuck`: such a workflow can't answer queries (SES-3)."""

FINAL_STATUSES: frozenset[SessionStatus] = frozenset({"ended", "cancelled", "terminated"})
"""Statuses after which a session never changes."""


class MessageRole(StrEnum):
    """Who speaks, wherever a single message is shown; a turn has both sides (SES-1)."""

    USER = "user"
    AGENT = "agent"
    SYSTEM = "system"


class TurnStop(Frozen):
    """Who or what stopped a turn: a person, a prompt of mode `interrupt`, or the session that was cancelled."""

    cause: Literal["person", "prompt", "session"] = "person"
    by: Person | None = None
    """The person of the key or token; null: unknown."""
    reason: Reason | None = None

    @property
    def sentence(self) -> str:
        """Why the turn ended, for people."""
        if self.cause == "person":
            return self.reason or f"Stopped by {self.by or 'the user'}."
        return "Interrupted by a new prompt." if self.cause == "prompt" else "The session was cancelled."


class TurnMetrics(Frozen):
    """The model's context at the turn's last call: messages, and tokens estimated within about 20 % (CTX-6)."""

    message_count: int
    estimated_tokens: int


class ContextSize(TurnMetrics):
    """The model's context now, and its limit: as `TurnMetrics`, with the window's cap (CTX-6)."""

    max_messages: int
    """0: no cap."""
    is_near_limit: bool
    """Whether the messages are over 80 % of the cap."""


class ConversationMessage(Frozen):
    """One turn: a user's request and the whole response to it (SES-1). Times are UTC.

    `steps_omitted` counts the oldest steps that `reasoning_trajectory` leaves out: they are in the archive, or the turn
    is running and only its newest steps are shown (SES-15). With an `agent_message_blob`, `agent_message` is an
    excerpt; the gateway replaces both with the whole answer if the store has it.
    """

    id: str
    timestamp: UtcDatetime
    user_message: str
    user_timestamp: UtcDatetime
    attachments: Items[Attachment] = Field([], exclude_if=lambda attachments: not attachments)
    """Attachments of the request (CTX-16). Left out of the JSON if there are none."""
    agent_message: str | None = None
    agent_message_blob: BlobRef | None = None
    agent_timestamp: UtcDatetime | None = None
    reasoning_trajectory: ReasoningTrajectory | None = None
    steps_omitted: int = 0
    tools_used: Items[str] | None = None
    processing_time_ms: int | None = None
    error: str | None = None
    error_type: ErrorType | None = None
    stop: TurnStop | None = Field(None, exclude_if=lambda stop: stop is None)
    """Who or what stopped the turn; left out of the JSON if nothing did."""
    retries: str | None = Field(None, exclude_if=lambda turn_id: turn_id is None)
    """The id of the turn that this one retries; left out of the JSON if it is none."""
    agent: str | None = Field(None, exclude_if=lambda agent: agent is None)
    """The agent and its version, as in `weather@2`; left out of the JSON if the session has none (AGN-4)."""
    usage: Usage | None = None
    """Usage of all model calls of the turn, with `tasks_usage`."""
    tasks_usage: Usage | None = None
    """The share of tasks (TSK-5) that ended in this turn, or since the turn before."""
    conversation_metrics: TurnMetrics | None = None
    revision: int
    status: TurnStatus = "processing"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def is_complete(self) -> bool:
        """The turn has ended, with or without an answer (SES-2)."""
        return self.agent_message is not None or self.error is not None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def is_error(self) -> bool:
        """The turn ended without an answer."""
        return self.error is not None

    def without_defaults(self) -> dict[str, Any]:
        """Return the turn as it is carried to the next run: without defaults and computed fields."""
        return self.model_dump(mode="json", exclude_defaults=True, exclude_computed_fields=True)

    @property
    def steps(self) -> list[Step]:
        return self.reasoning_trajectory.steps if self.reasoning_trajectory else []

    @property
    def has_attachments(self) -> bool:
        """Whether the request or a steering prompt has attachments."""
        return bool(self.attachments) or any(isinstance(step, UserStep) and step.attachments for step in self.steps)

    def with_newest_steps(self, count: int) -> "ConversationMessage":
        """Return the turn with its newest `count` steps, as it is shown while it runs; the others count as omitted."""
        left_out = max(0, len(self.steps) - count)
        return self.without_oldest_steps(left_out) if left_out else self

    def without_oldest_steps(self, count: int) -> "ConversationMessage":
        """Return the turn without its oldest `count` steps, which count as omitted."""
        steps = ReasoningTrajectory(steps=self.steps[count:])
        return self.model_copy(update={"reasoning_trajectory": steps, "steps_omitted": self.steps_omitted + count})

    @property
    def changed_since_recorded(self) -> bool:
        """Whether anything in the turn has changed since it was recorded (SES-12)."""
        later_fields = (self.reasoning_trajectory, self.conversation_metrics, self.usage, self.tools_used)
        return self.is_complete or self.status != "processing" or any(part is not None for part in later_fields)


class ArchiveReport(Frozen):
    """The archive's health for one session: its last outage, and when it recovered (SES-15)."""

    failing_since: UtcDatetime | None = None
    """Since when turns can't be moved; null while the archive works."""
    attempts_failed: int = 0
    """In the current or the last outage."""
    last_error: str | None = None
    last_failed_at: UtcDatetime | None = None
    recovered_at: UtcDatetime | None = None
    """When the archive worked again after its last outage."""
    results_cut: int = 0
    """Tool results of this session that were truncated because the store of large texts was down."""


class SessionSummary(Frozen):
    """A session in short. `turn_count` counts all turns ever recorded; `usage` is their sum."""

    id: str
    title: str | None = None
    user: str | None = None
    model: str
    agent: str | None = Field(None, exclude_if=lambda agent: agent is None)
    """The version that its next turn runs with, as in `weather@2`; left out of the JSON if it is none."""
    created_at: UtcDatetime
    turn_count: int = 0
    usage: Usage = Usage()
    tasks_usage: Usage = Usage()
    """The share that ended tasks have used (TSK-5)."""
    archive: ArchiveReport = ArchiveReport()
    conversation_metrics: ContextSize | None = None
    """Null if the session itself can't be asked: then its turns are read from the archive."""
    task: TaskView | None = None
    """The task that the session is."""
    tasks: Items[SubTask] = []
    """The tasks that it has started: all that are open and the newest others, oldest first."""


ArchiveTime = Annotated[
    UtcDatetime | None,
    Field(
        description="Only if no worker answered: these are the turns in the archive, whose newest one ended then. "
        "There may be later ones; status and queue are unknown.",
        exclude_if=lambda time: time is None,
    ),
]


class ConversationState(Frozen):
    """The newest turns of a session, in about 1 MB. `has_more`: there are older turns (SES-3, SES-11).

    `first_number` is the number of `messages[0]` in the whole transcript, from 1; null without messages.
    """

    messages: list[ConversationMessage]
    first_number: int | None = None
    is_processing: bool
    current_message_id: str | None
    revision: int
    status: SessionStatus
    waiting_until: UtcDatetime | None = None
    """With status `waiting_retry`: when the model is asked again (AGT-9)."""
    waiting_reason: str | None = None
    """Why it is not asked earlier, or is asked again now: a sentence for people that names the vendor."""
    queue_length: int
    archived_count: int
    has_more: bool
    session: SessionSummary
    archive_time: ArchiveTime = None
    as_of: Stamp = None


class ConversationUpdate(Frozen):
    """Changes since a cursor. `has_more`: query again at once; `reset`: discard all known turns first (SES-12).

    The client sends `last_seen_message_id` and `revision` back as its next cursor.
    """

    new_messages: list[ConversationMessage]
    updated_messages: list[ConversationMessage]
    is_processing: bool
    current_message_id: str | None
    last_seen_message_id: str | None
    revision: int
    reset: bool
    has_more: bool
    status: SessionStatus
    waiting_until: UtcDatetime | None = None
    waiting_reason: str | None = None
    queue_length: int
    tasks: Items[SubTask] = []
    """The tasks that the session has started, as in `SessionSummary`."""
    archive_time: ArchiveTime = None
    as_of: Stamp = None
