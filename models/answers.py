"""Responses of the gateway beyond the session's own models; the Python client reads them too.

A client ignores the fields of a newer gateway and has defaults for those of an older one.
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
    """The recorded decision on a tool call."""

    workflow_id: str
    call_id: str
    decision: ApprovalDecision


class SessionStarted(Frozen):
    """A session exists. `message_id` is the id of its first prompt, if it has one."""

    workflow_id: str
    message_id: str | None = None


class PromptAccepted(Frozen):
    """A prompt is stored. `position` counts from 1; 0: its turn has started; null: no worker has answered yet."""

    workflow_id: str
    message_id: str
    position: int | None = None


class PromptFate(Frozen):
    """The fate of a prompt, or that it is waiting. `turn_id` is the turn that it started or joined.

    `position` counts from 1; null: the prompt is not waiting, or no worker has received it from Temporal yet.
    """

    workflow_id: str
    message_id: str
    fate: Literal["waiting"] | FateName
    position: int | None = None
    turn_id: str | None = None
    reason: str | None = None
    """Why it was rejected or discarded."""
    at: UtcDatetime | None = None
    """When that was decided, if known."""


class ChatAccepted(Frozen):
    """A prompt is stored, in a session that may be new."""

    workflow_id: str
    message_id: str


class ConversationAnswer(Frozen):
    """What is new in a session."""

    workflow_id: str
    conversation_update: ConversationUpdate


class PageLinks(Frozen):
    """Links to the neighbouring pages; `older` is null on the oldest page."""

    older: str | None = None


class FullConversation(ConversationState):
    """A page of the transcript, oldest turn first, of about 1 MB; a longer turn is sent whole, on a page of its own.

    An ended turn has all its steps. With `steps_omitted`, the rest is in the archive, which can't be read now.
    """

    links: PageLinks = PageLinks()


class SessionLinks(Frozen):
    """Links to a session; `chat` is the chat page."""

    conversation: str
    chat: str | None = None
    temporal: str | None = None


class SessionDescription(Frozen):
    """A session and its status. Fewer fields are known while it is `stuck`."""

    workflow_id: str
    title: str | None = None
    user: str | None = None
    model: str | None = None
    status: SessionStatus
    waiting_until: UtcDatetime | None = None
    """With status `waiting_retry`: when the model is asked again."""
    waiting_reason: str | None = None
    """Why it is not asked earlier."""
    created_at: UtcDatetime | None = None
    turn_count: int | None = None
    queue_length: int | None = None
    usage: Usage | None = None
    archived_count: int | None = None
    """How many of the oldest turns are in the archive only."""
    archive: ArchiveReport | None = None
    """The archive's health for this session; null while the session is `stuck`."""
    links: SessionLinks


class ListedSession(Frozen):
    """A session in a list. It comes from Temporal's visibility store: a moment behind, with a coarser status."""

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
    """The progress of a deletion. `runs` counts the session's workflow executions, `remaining` those still there.

    `archived_turns` counts its turns in the archive. All three are null while no worker answers. `deleted`: nothing of
    the session is left in Temporal, the archive or the store of large texts.
    """

    workflow_id: str
    status: Literal["deleting", "deleted"]
    runs: int | None = None
    remaining: int | None = None
    archived_turns: int | None = None


class Health(Frozen):
    """The process is up."""

    status: Literal["ok"] = "ok"
