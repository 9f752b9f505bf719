"""A turn, and the two pictures of a conversation that clients are shown (SES-1 to SES-3).

A turn is one `ConversationMessage`: the request and its whole response together. It is recorded when its processing
starts, replaced as it goes on, and never changed once it has ended. Only the newest turn can still be running.
"""

from enum import StrEnum
from typing import Any, Literal

from pydantic import computed_field

from turnkeeper.models.as_of import Stamp
from turnkeeper.models.errors import ErrorType
from turnkeeper.models.transcript.task_view import SubTask, TaskView
from turnkeeper.models.transcript.trajectory import BlobRef, ReasoningTrajectory, Step, Usage
from turnkeeper.models.wire import Frozen, Items, UtcDatetime

TurnStatus = Literal["processing", "awaiting_approval", "completed", "failed", "cancelled"]
SessionStatus = Literal[
    "idle", "processing", "awaiting_approval", "waiting_retry", "ending", "ended", "cancelled", "terminated", "stuck"
]
"""`terminated` and `stuck` are known to the gateway only: such a workflow can't answer for itself (SES-3)."""


class MessageRole(StrEnum):
    """Who speaks, wherever single messages are shown."""

    USER = "user"
    AGENT = "agent"
    SYSTEM = "system"


class TurnMetrics(Frozen):
    """What the model saw at the turn's last call: messages, and tokens estimated to within about 20 % (CTX-6)."""

    message_count: int
    estimated_tokens: int


class ConversationMessage(Frozen):
    """One turn: one user request and everything that came of it (SES-1). Times are UTC.

    `steps_omitted` counts the earliest steps that `reasoning_trajectory` leaves out: of a long turn they are in the
    archive, and while a turn runs it is shown with its newest steps only (SES-15). With an `agent_message_blob`,
    `agent_message` is an excerpt; the gateway puts the whole answer back, and leaves the reference away, if it can.
    """

    id: str
    timestamp: UtcDatetime
    user_message: str
    user_timestamp: UtcDatetime
    agent_message: str | None = None
    agent_message_blob: BlobRef | None = None
    agent_timestamp: UtcDatetime | None = None
    reasoning_trajectory: ReasoningTrajectory | None = None
    steps_omitted: int = 0
    tools_used: Items[str] | None = None
    processing_time_ms: int | None = None
    error: str | None = None
    error_type: ErrorType | None = None
    usage: Usage | None = None
    conversation_metrics: TurnMetrics | None = None
    revision: int
    status: TurnStatus = "processing"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def is_complete(self) -> bool:
        """The turn has ended, well or not (SES-2)."""
        return self.agent_message is not None or self.error is not None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def is_error(self) -> bool:
        """The turn ended without an answer."""
        return self.error is not None

    def without_defaults(self) -> dict[str, Any]:
        """Return the turn as it is carried from run to run: what follows from the rest takes no bytes."""
        return self.model_dump(mode="json", exclude_defaults=True, exclude_computed_fields=True)

    @property
    def steps(self) -> list[Step]:
        return self.reasoning_trajectory.steps if self.reasoning_trajectory else []

    def with_newest_steps(self, count: int) -> "ConversationMessage":
        """Return the turn as it is shown while it runs: its newest `count` steps, and how many there were before."""
        left_out = max(0, len(self.steps) - count)
        return self.without_oldest_steps(left_out) if left_out else self

    def without_oldest_steps(self, count: int) -> "ConversationMessage":
        """Return the turn without its oldest `count` steps, which are counted as omitted."""
        steps = ReasoningTrajectory(steps=self.steps[count:])
        return self.model_copy(update={"reasoning_trajectory": steps, "steps_omitted": self.steps_omitted + count})

    @property
    def changed_since_recorded(self) -> bool:
        """Something happened after the turn was first shown; all that can happen to a turn is looked at (SES-12)."""
        written = (self.reasoning_trajectory, self.conversation_metrics, self.usage, self.tools_used)
        return self.is_complete or self.status != "processing" or any(part is not None for part in written)


class ArchiveReport(Frozen):
    """How the archive has served a session: what went wrong, since when, and when it was well again (SES-15)."""

    failing_since: UtcDatetime | None = None
    """Since when turns could not be moved; null while all is well."""
    attempts_failed: int = 0
    """Of the trouble there is, or the last one there was."""
    last_error: str | None = None
    last_failed_at: UtcDatetime | None = None
    recovered_at: UtcDatetime | None = None
    """When the archive took turns again after its last trouble."""
    results_cut: int = 0
    """Tool results of this session that were cut because the store of large texts was down."""


class SessionSummary(Frozen):
    """What a session is, in a few lines. `turn_count` counts every turn ever recorded; `usage` is the sum over them."""

    id: str
    title: str | None = None
    user: str | None = None
    model: str
    created_at: UtcDatetime
    turn_count: int = 0
    usage: Usage = Usage()
    archive: ArchiveReport = ArchiveReport()
    task: TaskView | None = None
    """The task that the session is."""
    tasks: Items[SubTask] = []
    """The tasks that it has started: all that are open and the newest others, oldest first."""


class ConversationState(Frozen):
    """The newest complete picture, bounded to about 1 MB. `has_more`: older turns exist (SES-3, SES-11).

    `first_number` is the place of `messages[0]` in the whole transcript, from 1; null without messages.
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
    """Why it is not asked before: a sentence for people that names the vendor."""
    queue_length: int
    archived_count: int
    has_more: bool
    session: SessionSummary
    as_of: Stamp = None


class ConversationUpdate(Frozen):
    """What is new since a cursor. `has_more`: ask again at once; `reset`: drop all that is held first (SES-12).

    `last_seen_message_id` and `revision` are what the client sends next time.
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
    as_of: Stamp = None
