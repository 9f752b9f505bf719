"""What the gateway answers beyond the session's own models; its Python client reads the same.

A client leaves fields that a newer gateway adds aside, and does without those that an earlier one lacks.
"""

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


class ApprovalDecided(Frozen):
    """The decision that stands for a tool call."""

    workflow_id: str
    call_id: str
    decision: ApprovalDecision


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
    """What became of a prompt, or that it waits. `turn_id` is the turn that it started or was taken up by.

    `position` counts the queue from 1; null: it does not wait, or Temporal has it and no worker has taken it yet.
    """

    workflow_id: str
    message_id: str
    fate: Literal["waiting"] | FateName
    position: int | None = None
    turn_id: str | None = None
    reason: str | None = None
    """Why it was rejected or discarded."""
    at: UtcDatetime | None = None
    """When that was decided, where it is known."""


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
    """A page of the whole transcript, oldest first, about 1 MB; a turn that alone is longer is sent whole.

    An ended turn has all its steps: with `steps_omitted` they are in the archive, and it can't be read now.
    """

    links: PageLinks = PageLinks()


class SessionLinks(Frozen):
    """Where else a session can be seen: `chat` is the chat page."""

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
    """With status `waiting_retry`: when the model is asked again."""
    waiting_reason: str | None = None
    """Why it is not asked before."""
    created_at: UtcDatetime | None = None
    turn_count: int | None = None
    queue_length: int | None = None
    usage: Usage | None = None
    archived_count: int | None = None
    """How many of the oldest turns are in the archive only."""
    archive: ArchiveReport | None = None
    """How the archive has served the session; null while it is `stuck`."""
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
    """A page of sessions, newest first. `next_cursor` is null on the last page."""

    sessions: list[ListedSession]
    next_cursor: str | None = None


class Cancelling(Frozen):
    """Whether there was a turn to cancel."""

    workflow_id: str
    cancelling: bool


class DeletionReceipt(Frozen):
    """What a deletion removes. `runs` counts the workflow executions of the session, `remaining` those not gone yet.

    `archived_turns` counts the turns that the archive had of it. All three are null while no worker answers.
    `deleted`: none of it is left anywhere, nor any of the session's large texts.
    """

    workflow_id: str
    status: Literal["deleting", "deleted"]
    runs: int | None = None
    remaining: int | None = None
    archived_turns: int | None = None


class Health(Frozen):
    """The process is up."""

    status: Literal["ok"] = "ok"
