"""A turn, and the two views of a conversation that clients get: state and update (SES-1 to SES-3).

A turn is one `ConversationMessage`, the request with its whole response. It is recorded when its processing starts,
replaced while it runs, and never changed after it has ended. Only the newest turn can still be running.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, computed_field

from turnkeeper.models.as_of import Stamp
from turnkeeper.models.errors import ErrorType
from turnkeeper.models.transcript.attachments import Attachment
from turnkeeper.models.transcript.task_view import SubTask, TaskView
from turnkeeper.models.transcript.trajectory import BlobRef, ReasoningTrajectory, Step, Usage, UserStep
from turnkeeper.models.wire import Frozen, Items, Person, Reason, UtcDatetime

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
