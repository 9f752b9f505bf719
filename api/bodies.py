"""What the gateway takes and gives beyond the session's own models. Unknown fields are errors that name them."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, WithJsonSchema

from turnkeeper.api.markdown import MOST_CHARS, MOST_TEXTS
from turnkeeper.models.bounds import count_unencodable
from turnkeeper.models.context.window import HistoryChange
from turnkeeper.models.ids import ID_PATTERN
from turnkeeper.models.limits import LimitsChange
from turnkeeper.models.session.queue.prompts import FateName, PromptMode
from turnkeeper.models.session.session import EndSession, ModelName, SystemPrompt, Title, UserName
from turnkeeper.models.session.task import HandOffReport
from turnkeeper.models.session.tool_policy import ToolPolicy
from turnkeeper.models.tasks.hand_off import TaskValidationWarning
from turnkeeper.models.tasks.stored_history import ConversationHistory
from turnkeeper.models.transcript.conversation import (
    ArchiveReport,
    ConversationState,
    ConversationUpdate,
    SessionStatus,
)
from turnkeeper.models.transcript.trajectory import ApprovalDecision, Usage
from turnkeeper.models.wire import NOT_BLANK_PATTERN, Items, Reason, Strict

Id = Annotated[str, Field(pattern=ID_PATTERN, examples=["support-42"])]
PromptText = Annotated[
    str,
    Field(min_length=1, max_length=100_000),
    WithJsonSchema(
        {
            "type": "string",
            "minLength": 1,
            "maxLength": 100_000,
            "pattern": NOT_BLANK_PATTERN,
            "examples": ["write hello to greeting.txt"],
        }
    ),
]


def _inside(folder: str) -> str:
    parts = folder.split("/") if folder else []
    if any(not part or part.startswith(".") or "\0" in part for part in parts):
        raise ValueError("must be a folder below the workspace root, without '..', hidden folders or a leading '/'")
    return folder


def _renderable(texts: list[str]) -> list[str]:
    if any(count_unencodable(text) for text in texts):
        raise ValueError("may hold no NUL and no lone surrogate")
    if sum(map(len, texts)) > MOST_CHARS:
        raise ValueError(f"may have {MOST_CHARS:,} characters together")
    return texts


_FOLDER_NAME = r"[^./\u0000][^/\u0000]*"

Folder = Annotated[
    str,
    Field(max_length=512),
    AfterValidator(_inside),
    WithJsonSchema(
        {"type": "string", "maxLength": 512, "pattern": f"^({_FOLDER_NAME}(/{_FOLDER_NAME})*)?$", "default": ""}
    ),
]


class StartSession(Strict):
    """A new session; everything is optional. `limits` and `history` change only the fields given."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"prompt": "list files"},
                {
                    "title": "Support for Miles",
                    "user": "Miles O'Brien",
                    "model": "offline:",
                    "limits": {"max_steps": 20},
                    "tool_policy": {"file_*": "allow", "*": "ask"},
                    "prompt": "what time is it?",
                },
            ]
        }
    )

    id: Id | None = None
    title: Title | None = None
    user: UserName | None = None
    system_prompt: SystemPrompt | None = None
    model: ModelName | None = None
    limits: LimitsChange | None = None
    history: HistoryChange | None = None
    tool_policy: ToolPolicy | None = None
    unattended: StrictBool = False
    workspace: Folder = ""
    prompt: PromptText | None = None


class SendPrompt(Strict):
    """A prompt. The same `id` sent twice is one turn; the `Idempotency-Key` header does the same."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"message": "what time is it?"},
                {"message": "only the Python files", "id": "m-42", "mode": "steer"},
            ]
        }
    )

    message: PromptText
    id: Id | None = None
    mode: PromptMode = "enqueue"


class Chat(Strict):
    """Start or continue in one call. `user_name` is the user of a session that this call starts.

    The same `id` sent twice is one prompt; the `Idempotency-Key` header does the same.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"message": "what time is it?", "user_name": "Miles O'Brien"},
                {"message": "and in Lisbon?", "workflow_id": "support-42"},
            ]
        }
    )

    message: PromptText
    id: Id | None = None
    workflow_id: Id | None = None
    user_name: UserName | None = None


class Cancel(Strict):
    """Stop the turn `message_id`, or the one that is running now."""

    message_id: Id | None = None
    reason: Reason | None = None


class End(EndSession):
    """End the session after its queue; with `discard_queue`, without it."""

    discard_queue: StrictBool = False


class Retry(Strict):
    """Send the prompt of the failed turn `message_id` again, or that of the newest one the session holds."""

    message_id: Id | None = None


class ApprovalDecided(BaseModel):
    """The decision that stands for a tool call."""

    workflow_id: str
    call_id: str
    decision: ApprovalDecision


class SessionStarted(BaseModel):
    """A session exists. `message_id` is its first prompt's, where one was given."""

    workflow_id: str
    message_id: str | None = None


class PromptAccepted(BaseModel):
    """A prompt is safe. `position` counts the queue from 1; 0: its turn has started; null: no worker has said."""

    workflow_id: str
    message_id: str
    position: int | None = None


class PromptFate(BaseModel):
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
    at: datetime | None = None
    """When that was decided, where it is known."""


class ChatAccepted(BaseModel):
    """A prompt is safe, in a session that may be new."""

    workflow_id: str
    message_id: str


class ConversationAnswer(BaseModel):
    """What is new in a session."""

    workflow_id: str
    conversation_update: ConversationUpdate


class PageLinks(BaseModel):
    """Where the neighbouring pages are; `older` is null on the oldest."""

    older: str | None = None


class FullConversation(ConversationState):
    """A page of the whole transcript, oldest first, about 1 MB; a turn that alone is longer is sent whole.

    An ended turn has all its steps: with `steps_omitted` they are in the archive, and it can't be read now.
    """

    links: PageLinks


class SessionLinks(BaseModel):
    """Where else a session can be seen: `chat` is the chat page."""

    conversation: str
    chat: str
    temporal: str | None = None


class SessionDescription(BaseModel):
    """What a session is and does."""

    workflow_id: str
    title: str | None
    user: str | None
    model: str | None
    status: SessionStatus
    waiting_until: datetime | None = None
    """With status `waiting_retry`: when the model is asked again."""
    waiting_reason: str | None = None
    """Why it is not asked before."""
    created_at: datetime | None
    turn_count: int | None
    queue_length: int | None = None
    usage: Usage | None = None
    archived_count: int | None = None
    """How many of the oldest turns are in the archive only."""
    archive: ArchiveReport | None = None
    """How the archive has served the session; null while it is `stuck`."""
    links: SessionLinks


class ListedSession(BaseModel):
    """A session in a list, as Temporal's visibility knows it: a moment behind, and coarse."""

    workflow_id: str
    title: str | None
    user: str | None
    model: str | None
    status: Literal["open", "awaiting_approval", "ended", "cancelled", "terminated"]
    turn_count: int
    started_at: datetime
    closed_at: datetime | None


class SessionList(BaseModel):
    """A page of sessions, newest first. `next_cursor` is null on the last page."""

    sessions: list[ListedSession]
    next_cursor: str | None = None


class Cancelling(BaseModel):
    """Whether there was a turn to cancel."""

    workflow_id: str
    cancelling: bool


class DeletionReceipt(BaseModel):
    """What a deletion removes. `runs` counts the workflow executions of the session, `remaining` those not gone yet.

    `archived_turns` counts the turns that the archive had of it. All three are null as long as no worker has counted.
    `deleted`: none of it is left anywhere, nor any of the session's large texts.
    """

    workflow_id: str
    status: Literal["deleting", "deleted"]
    runs: int | None
    remaining: int | None
    archived_turns: int | None


class TaskPreview(BaseModel):
    """A task as it would be started: the messages of its history and what became of them, and its first `prompt`."""

    context: HandOffReport
    warnings: list[TaskValidationWarning]
    conversation_history: ConversationHistory | None
    prompt: str


class RenderMarkdown(Strict):
    """Texts to render, together at most 200,000 characters."""

    texts: Annotated[Items[str], AfterValidator(_renderable)] = Field(
        max_length=MOST_TEXTS, examples=[["Read **this**: [docs](https://example.org)"]]
    )


class RenderedMarkdown(BaseModel):
    """The HTML of each text, in their order: sanitised, and safe to be put into a page."""

    html: list[str] = Field(examples=[["<p>Read <strong>this</strong>.</p>\n"]])


class Health(BaseModel):
    """The process is up."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """Temporal is reachable and a worker is polling. `archive`: whether it can be read; sessions go on without it."""

    status: Literal["ready"] = "ready"
    temporal: str
    workers: int
    archive: Literal["ok", "unavailable"]
