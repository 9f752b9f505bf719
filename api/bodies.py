"""Request and response bodies of the gateway that are not models of a session. Requests reject unknown fields."""

from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticKnownError

from turnkeeper.api.markdown import MAX_CHARS, MAX_TEXTS
from turnkeeper.api.prompts import AttachmentBodies
from turnkeeper.models.context.window import HistoryChange
from turnkeeper.models.http_responses import SessionLinks
from turnkeeper.models.ids import AGENT_PATTERN, DEFAULT_TENANT, ID_PATTERN, WorkflowId, is_id, session_id_of, tenant_of
from turnkeeper.models.limits import MIN_STATE_BYTES, LimitsChange, SystemPrompt
from turnkeeper.models.session.messages import (
    EndSession,
    ModelName,
    SessionChanges,
    Title,
    UserName,
    Variables,
)
from turnkeeper.models.session.prompts import PromptMode
from turnkeeper.models.session.tools import ToolNames, ToolPolicy
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.texts import count_unencodable
from turnkeeper.models.wire import NOT_BLANK_PATTERN, Items, Reason, Strict, UtcDatetime
from turnkeeper.stores.temporal.endpoint import WEB_UI_PATH, web_ui_origin

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


MaybeBlank = Annotated[str, Field(max_length=100_000, examples=["write hello to greeting.txt"])]
"""A prompt's text, which may be blank if there are attachments."""

MAX_CREDENTIAL_CHARS = 3_500
"""Of what is logged in with: browsers keep cookies of up to 4 KB."""


def _check_folder(folder: str) -> str:
    parts = folder.split("/") if folder else []
    if any(not part or part.startswith(".") or "\0" in part for part in parts):
        raise ValueError("must be a folder below the workspace root, without '..', hidden folders or a leading '/'")
    return folder


def _check_renderable(texts: list[str]) -> list[str]:
    if any(count_unencodable(text) for text in texts):
        raise ValueError("must not contain NUL or lone surrogates")
    if sum(map(len, texts)) > MAX_CHARS:
        raise ValueError(f"must not exceed {MAX_CHARS:,} characters in total")
    return texts


_FOLDER_NAME = r"[^./\u0000][^/\u0000]*"

Folder = Annotated[
    str,
    Field(max_length=512),
    AfterValidator(_check_folder),
    WithJsonSchema(
        {"type": "string", "maxLength": 512, "pattern": f"^({_FOLDER_NAME}(/{_FOLDER_NAME})*)?$", "default": ""}
    ),
]


class _StrictNumbers(BaseModel):
    """Accepts only numbers for numbers and booleans for booleans, as the schema says; pydantic would convert."""

    @field_validator("*", mode="before")
    @classmethod
    def _reject_other_types(cls, value: object, info: ValidationInfo) -> object:
        is_boolean = cls.model_fields[info.field_name or ""].annotation is bool
        if value is not None and (isinstance(value, str) or isinstance(value, bool) != is_boolean):
            raise PydanticKnownError("bool_type" if is_boolean else "float_type")
        return value


class LimitsBody(_StrictNumbers, LimitsChange):
    """Limits to change. The others keep their values."""

    max_state_bytes: int = Field(1_000_000, ge=MIN_STATE_BYTES, le=1_000_000)


class HistoryBody(_StrictNumbers, HistoryChange):
    """Settings of the window to change. The others keep their values."""


AgentLabel = Annotated[str, Field(pattern=AGENT_PATTERN)]
"""The name of an agent, for its newest version, or name and version."""


class ConfigureBody(SessionChanges):
    """Change a session from its next turn on. `limits` and `history` change only the fields that are present.

    With `agent` the session is that version from then on: all else is as it says, and as the settings say.
    """

    limits: LimitsBody | None = None
    history: HistoryBody | None = None
    agent: AgentLabel | None = None


class StartSession(Strict):
    """A new session. Every field is optional; `limits` and `history` change only the fields that are present.

    Without a `user` it is the caller's: the person of the key or token, if that has one.
    """

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
    agent: AgentLabel | None = None
    """What the session is to be, without a version its newest; `default`: none, but what the settings say."""
    variables: Variables = {}
    """What the agent's instructions name in braces."""
    title: Title | None = None
    user: UserName | None = None
    system_prompt: SystemPrompt | None = None
    model: ModelName | None = None
    limits: LimitsBody | None = None
    history: HistoryBody | None = None
    tools: ToolNames | None = None
    tool_policy: ToolPolicy | None = None
    unattended: StrictBool = False
    workspace: Folder = ""
    prompt: MaybeBlank | None = None
    attachments: AttachmentBodies = []
    """Of the first prompt; with them it may be blank or absent."""


def _check_turn(turn: object) -> object:
    """Check a turn's number or id; validation of the union would name each of its parts as a wrong field."""
    is_number = isinstance(turn, int) and not isinstance(turn, bool) and 1 <= turn <= MAX_TURN
    if not is_number and not is_id(turn):
        raise ValueError(f"must be a turn's number, 1 to {MAX_TURN:,}, or its id")
    return turn


MAX_TURN = 2**31

Turn = Annotated[Annotated[StrictInt, Field(ge=1, le=MAX_TURN)] | Id, BeforeValidator(_check_turn)]


class Fork(Strict):
    """A new session with the turns up to `turn`: a turn's id, or its number from 1; by default the last completed one.

    Without an `id` the new session gets one, and without a `title` that of the original, marked as a fork.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [{"turn": 12, "id": "support-42b"}]})

    turn: Turn | None = None
    id: Id | None = None
    title: Title | None = None


class SendPrompt(Strict):
    """A prompt. Sending the same `id` twice makes one turn; the `Idempotency-Key` header does the same.

    With attachments its text may be blank.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"message": "what time is it?"},
                {"message": "only the Python files", "id": "m-42", "mode": "steer"},
                {
                    "message": "what does it print?",
                    "attachments": [
                        {"type": "code", "name": "add.py", "language": "python", "content": "print(1 + 1)"}
                    ],
                },
            ]
        }
    )

    message: MaybeBlank
    attachments: AttachmentBodies = []
    id: Id | None = None
    mode: PromptMode = "enqueue"


class Chat(Strict):
    """Start or continue a session in one call. `user_name` is used only if the call starts a session.

    Without it, a new session is the caller's: the person of the key or token, if that has one. With attachments the
    text may be blank.

    Sending the same `id` twice makes one prompt; the `Idempotency-Key` header does the same.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"message": "what time is it?", "user_name": "Miles O'Brien"},
                {"message": "and in Lisbon?", "workflow_id": "support-42"},
            ]
        }
    )

    message: MaybeBlank
    attachments: AttachmentBodies = []
    id: Id | None = None
    workflow_id: Id | None = None
    user_name: UserName | None = None
    agent: AgentLabel | None = None
    """Used only if the call starts a session."""


class Cancel(Strict):
    """Stop the turn `message_id`, or by default the running one."""

    message_id: Id | None = None
    reason: Reason | None = None


class End(EndSession):
    """End the session when its queue is done, or at once with `discard_queue`."""

    discard_queue: StrictBool = False


class Retry(Strict):
    """Send the prompt of the failed turn `message_id` again, or by default that of the newest failed turn."""

    message_id: Id | None = None


class Login(Strict):
    """A key or token, for the page's cookie."""

    key: str = Field(min_length=1, max_length=MAX_CREDENTIAL_CHARS, examples=["tk_0123456789abcdef_…"])


class RenderMarkdown(Strict):
    """Texts to render, together at most 200,000 characters."""

    texts: Annotated[Items[str], AfterValidator(_check_renderable)] = Field(
        max_length=MAX_TEXTS, examples=[["Read **this**: [docs](https://example.org)"]]
    )


class RenderedMarkdown(BaseModel):
    """The sanitised HTML of each text, in the same order. It is safe to insert into a page."""

    html: list[str] = Field(examples=[["<p>Read <strong>this</strong>.</p>\n"]])


class Readiness(BaseModel):
    """The gateway can take prompts. They are processed while `workers` are running, now or later.

    Without keys or tokens it takes them also while the `archive` is unavailable.
    """

    status: Literal["ready"] = "ready"
    temporal: str
    workers: int
    archive: Literal["ok", "unavailable"]


class PollingWorker(BaseModel):
    """A worker. After its end Temporal lists it for about a minute."""

    identity: str
    build: str | None
    """The build id, which follows from its code."""
    polled_at: UtcDatetime


class ServiceStatus(BaseModel):
    """The gateway's version, and the workers that poll its task queue."""

    version: str
    temporal: str
    task_queue: str
    workers: list[PollingWorker]


def session_path(workflow_id: WorkflowId) -> str:
    """Return the path of a session's routes.

    >>> session_path(WorkflowId("acme:support-42"))
    '/workflow/support-42'
    """
    return f"/workflow/{session_id_of(workflow_id)}"


def chat_page(workflow_id: WorkflowId) -> str:
    """Return the path of the chat page that shows a session.

    >>> chat_page(WorkflowId("acme:support-42"))
    '/?session=support-42'
    """
    return f"/?session={session_id_of(workflow_id)}"


def chat_url(settings: Settings, workflow_id: WorkflowId) -> str:
    """Return the address of the chat page that shows a session."""
    return f"{settings.gateway_url}{chat_page(workflow_id)}"


def session_links(settings: Settings, workflow_id: WorkflowId, *, namespace: str) -> SessionLinks:
    """Return where a session can be seen. The gateway's own Web UI is for the default tenant alone (OPS-2)."""
    ui_url = settings.temporal_ui_url
    if ui_url is None and tenant_of(workflow_id) == DEFAULT_TENANT and web_ui_origin(settings) is not None:
        ui_url = f"{settings.gateway_url}{WEB_UI_PATH}"
    path = f"/namespaces/{namespace}/workflows/{workflow_id}"
    return SessionLinks(
        conversation=f"{session_path(workflow_id)}/conversation",
        chat=chat_page(workflow_id),
        temporal=f"{ui_url}{path}" if ui_url else None,
    )
