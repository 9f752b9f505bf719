"""What the gateway takes and gives beyond the session's own models. Unknown fields are errors that name them."""

from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticKnownError

from turnkeeper.api.markdown import MOST_CHARS, MOST_TEXTS
from turnkeeper.models.bounds import count_unencodable
from turnkeeper.models.context.window import HistoryChange
from turnkeeper.models.ids import ID_PATTERN
from turnkeeper.models.limits import MIN_STATE_BYTES, LimitsChange
from turnkeeper.models.session.queue.prompts import PromptMode
from turnkeeper.models.session.session import Configure, EndSession, ModelName, SystemPrompt, Title, UserName
from turnkeeper.models.session.task import HandOffReport
from turnkeeper.models.session.tool_policy import ToolPolicy
from turnkeeper.models.tasks.hand_off import TaskValidationWarning
from turnkeeper.models.tasks.stored_history import ConversationHistory
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


class _AsTyped(BaseModel):
    """Takes no text or boolean for a number, and only booleans for a boolean, as its schema says."""

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_other_types(cls, value: object, info: ValidationInfo) -> object:
        is_boolean = cls.model_fields[info.field_name or ""].annotation is bool
        if value is not None and (isinstance(value, str) or isinstance(value, bool) != is_boolean):
            raise PydanticKnownError("bool_type" if is_boolean else "float_type")
        return value


class LimitsBody(_AsTyped, LimitsChange):
    """Limits to change; the others stay as they are."""

    max_state_bytes: int = Field(1_000_000, ge=MIN_STATE_BYTES, le=1_000_000)


class HistoryBody(_AsTyped, HistoryChange):
    """Settings of the window to change; the others stay as they are."""


class ConfigureBody(Configure):
    """Change a session from its next turn on; `limits` and `history` change only the fields given."""

    limits: LimitsBody | None = None
    history: HistoryBody | None = None


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
    limits: LimitsBody | None = None
    history: HistoryBody | None = None
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


class Readiness(BaseModel):
    """Temporal is reachable and a worker is polling. `archive`: whether it can be read; sessions go on without it."""

    status: Literal["ready"] = "ready"
    temporal: str
    workers: int
    archive: Literal["ok", "unavailable"]
