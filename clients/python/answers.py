"""What the gateway answers beyond the session's own models; fields that a newer gateway adds are left aside."""

from typing import Literal

from turnkeeper.models.session.queue.prompts import FateName
from turnkeeper.models.transcript.conversation import (
    ArchiveReport,
    ConversationState,
    ConversationUpdate,
    SessionStatus,
)
from turnkeeper.models.transcript.trajectory import ApprovalDecision, Usage
from turnkeeper.models.wire import Frozen, UtcDatetime


class SessionStarted(Frozen):
    """A session exists. `message_id` is its first prompt's, where one was given."""

    workflow_id: str
    message_id: str | None = None


class PromptAccepted(Frozen):
    """A prompt is safe. `position` counts the queue from 1; 0: its turn has started; null: no worker has said."""

    workflow_id: str
    message_id: str
    position: int | None = None


class PromptFate(Frozen):
    """What became of a prompt, or that it waits: at `position`, null where no worker has taken it yet."""

    workflow_id: str
    message_id: str
    fate: Literal["waiting"] | FateName
    position: int | None = None
    turn_id: str | None = None
    reason: str | None = None
    at: UtcDatetime | None = None


class ChatAccepted(Frozen):
    """A prompt is safe, in a session that may be new."""

    workflow_id: str
    message_id: str


class ConversationAnswer(Frozen):
    """What is new in a session."""

    workflow_id: str
    conversation_update: ConversationUpdate


class PageLinks(Frozen):
    """Where the neighbouring pages are; `older` is null on the oldest."""

    older: str | None = None


class FullConversation(ConversationState):
    """A page of the whole transcript, archive included, oldest first."""

    links: PageLinks = PageLinks()


class SessionLinks(Frozen):
    """Where else a session can be seen: paths on the gateway, and addresses of other programs."""

    conversation: str
    chat: str | None = None
    temporal: str | None = None


class SessionDescription(Frozen):
    """What a session is and does. Of one that is `stuck`, less is known."""

    workflow_id: str
    title: str | None = None
    user: str | None = None
    model: str | None = None
    status: SessionStatus
    waiting_until: UtcDatetime | None = None
    waiting_reason: str | None = None
    created_at: UtcDatetime | None = None
    turn_count: int | None = None
    queue_length: int | None = None
    usage: Usage | None = None
    archived_count: int | None = None
    archive: ArchiveReport | None = None
    links: SessionLinks


class ListedSession(Frozen):
    """A session in a list, as Temporal's visibility knows it: a moment behind, and coarse."""

    workflow_id: str
    title: str | None = None
    user: str | None = None
    model: str | None = None
    status: Literal["open", "awaiting_approval", "ended", "cancelled", "terminated"]
    turn_count: int
    started_at: UtcDatetime
    closed_at: UtcDatetime | None = None


class SessionList(Frozen):
    """A page of sessions, open ones first, newest first. `next_cursor` is null on the last page."""

    sessions: list[ListedSession]
    next_cursor: str | None = None


class Cancelling(Frozen):
    """Whether there was a turn to cancel."""

    workflow_id: str
    cancelling: bool


class ApprovalDecided(Frozen):
    """The decision that stands for a tool call."""

    workflow_id: str
    call_id: str
    decision: ApprovalDecision


class DeletionReceipt(Frozen):
    """What a deletion removes, and whether it is done: `remaining` counts the runs that are not gone yet.

    The counts are `None` as long as no worker has counted.
    """

    workflow_id: str
    status: Literal["deleting", "deleted"]
    runs: int | None
    remaining: int | None
    archived_turns: int | None


class Health(Frozen):
    """The gateway's process is up."""

    status: Literal["ok"]
