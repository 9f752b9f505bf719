"""What the gateway answers beyond the session's own models; its Python client reads the same.

A client leaves fields that a newer gateway adds aside, and does without those that an earlier one lacks.
"""

from typing import Literal

from pydantic import Field, JsonValue

from turnkeeper.models.errors import ErrorType
from turnkeeper.models.session.queue.prompts import FateName
from turnkeeper.models.session.task import HandOffReport
from turnkeeper.models.tasks.hand_off import TaskValidationWarning
from turnkeeper.models.transcript.conversation import (
    ArchiveReport,
    ConversationState,
    ConversationUpdate,
    SessionStatus,
)
from turnkeeper.models.transcript.task_view import FINAL, TaskStatus
from turnkeeper.models.transcript.trajectory import ApprovalDecision, Usage
from turnkeeper.models.wire import Frozen, Items, UtcDatetime


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


class TaskReceipt(Frozen):
    """A task exists. `context` and `warnings` say what became of the history that it was given.

    `url` is the page on which people can watch it, `temporal_url` its workflow in Temporal's Web UI.
    """

    task_id: str
    workflow_id: str
    """The session that the task is: it takes every call of `/workflow/{id}`."""
    status: TaskStatus = "working"
    url: str
    temporal_url: str | None = None
    context: HandOffReport
    warnings: Items[TaskValidationWarning] = []


class TaskResult(Frozen):
    """What came of a task. `answer` is whole; in a list of tasks, and where there is none, it is null."""

    summary: str | None = None
    """The first paragraph of the answer, or why there is none, in one line."""
    answer: str | None = None
    findings: dict[str, JsonValue] | None = None
    """What the agent has reported as structured data, if anything."""
    usage: Usage = Usage()
    transcript_url: str


class Task(Frozen):
    """A task, as it is now. It has a `result` while its status is final: a further message makes it work again."""

    task_id: str
    workflow_id: str
    title: str | None = None
    description: str | None = None
    """The beginning of what the task was asked to do; null of a task that a session has started itself."""
    status: TaskStatus
    status_message: str | None = None
    """One line: what the agent has reported last, or what is waited for."""
    percent: int | None = Field(None, ge=0, le=100)
    parent: str | None = None
    """The session that it was started for."""
    created_at: UtcDatetime
    updated_at: UtcDatetime | None = None
    """When its newest turn began or ended."""
    url: str
    temporal_url: str | None = None
    approvals: int = 0
    """How many tool calls wait for a person, those of tasks below it included."""
    result: TaskResult | None = None
    error: str | None = None
    error_type: ErrorType | None = None

    @property
    def is_final(self) -> bool:
        """Whether it has come to an end; a further message makes it work again."""
        return self.status in FINAL


class TaskPage(Frozen):
    """A page of tasks, newest first. `next_cursor` is null on the last page."""

    tasks: list[Task]
    next_cursor: str | None = None
