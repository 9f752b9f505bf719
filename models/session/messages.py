"""A session's input, what it carries from one run to the next, and messages to and from it (SES-4, SES-8, SES-14).

These models are public API of running sessions: new fields have defaults (SES-19). `docs/extending.md` lists the places
of a new field.
"""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, GetJsonSchemaHandler, JsonValue, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from turnkeeper.models.context.model_context import ContextState
from turnkeeper.models.context.window import ConversationHistoryConfig, HistoryChange
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.ids import ID_PATTERN, WorkflowId, model_pattern, split_model
from turnkeeper.models.legible import one_line
from turnkeeper.models.limits import DEFAULT_MODEL, DEFAULT_SYSTEM_PROMPT, MIN_STATE_BYTES, Limits, LimitsChange
from turnkeeper.models.replay_text.turns import MovedEvents
from turnkeeper.models.session.agents import AgentChange, AgentConfiguration
from turnkeeper.models.session.archive import ArchiveState
from turnkeeper.models.session.prompt_queue import QueueState
from turnkeeper.models.session.prompts import PromptSignal, rejection_for
from turnkeeper.models.session.running_turn import CarriedTurn
from turnkeeper.models.session.tools import RefusalState, ToolNames, ToolPolicy, ToolsState
from turnkeeper.models.transcript.conversation import Usage
from turnkeeper.models.transcript.model_call import CompactUsage
from turnkeeper.models.transcript.transcript import TranscriptState
from turnkeeper.models.wire import (
    Change,
    Compact,
    FeatureData,
    Frozen,
    Person,
    Reason,
    Strict,
    UndecodablePayload,
    UtcDatetime,
    few_keys,
)


class SessionFacts(Compact):
    """The carried fields that belong to no part of the session."""

    created_at: UtcDatetime
    revision: int
    request_count: int = 0
    usage: Usage = Usage()
    tasks_usage: Usage = Usage()
    """The share that tasks have used."""
    usage_between_turns: CompactUsage = None
    """Usage of tasks that ended when no turn was running: the next turn shows it."""
    ending: str | None = None
    """Why the session is ending; `None`: it is not ending."""
    moved_events: MovedEvents = MovedEvents()
    today: str = ""
    """The date that an agent's instructions name; it changes only where their segment does."""
    today_segment: int = 0


class CarriedState(SessionFacts):
    """The whole state of a session, carried from one run to the next (SES-14). Under 1 MB.

    Each part is the state of one class and is defined beside it.
    """

    transcript: TranscriptState = TranscriptState()
    queue: QueueState = QueueState()
    context: ContextState = ContextState()
    tools: ToolsState = ToolsState()
    refusals: RefusalState = RefusalState()
    """The parts that its model has refused: `Session.refusals`."""
    archive: ArchiveState = ArchiveState()
    features: FeatureData = {}
    """Of each `SessionPart` that has anything to carry."""
    running: CarriedTurn | None = None

    @property
    def facts(self) -> SessionFacts:
        return SessionFacts(**{name: getattr(self, name) for name in SessionFacts.model_fields})


SUFFIX = "/delete"

FIRST_RUN = "first_run_id"
"""The memo field that identifies the session, since an id can be used again after a deletion."""


def deletion_id(workflow_id: WorkflowId) -> str:
    """Return the id of the workflow that deletes a session. No session can have it: session ids have no slash.

    >>> deletion_id(WorkflowId("chat-1"))
    'chat-1/delete'
    """
    return f"{workflow_id}{SUFFIX}"


def deleted_session(workflow_id: str) -> WorkflowId:
    """Return the session that a deletion deletes; a session's own id is returned unchanged.

    >>> deleted_session("chat-1/delete"), deleted_session("chat-1")
    ('chat-1', 'chat-1')
    """
    return WorkflowId(workflow_id.removesuffix(SUFFIX))


class DeletionOrder(Compact):
    """Which session to delete, since several can have had the id one after the other."""

    first_run_id: str = ""
    """Run id of the session's first run. Empty: Temporal no longer has the session, only the stores do."""


class StoppedSession(Compact):
    """A session after it was stopped."""

    runs: list[str] = []
    """Run ids that Temporal still has, oldest first."""
    archived_turns: int = 0
    busy_at: UtcDatetime | None = None
    """When it ended, if an activity was running then, which may still write for a while; else `None`."""


class SessionRuns(Compact):
    """Run ids of a session, oldest first."""

    runs: list[str] = []


class DeletionProgress(Compact):
    """Progress of a deletion. `None`: not known yet."""

    runs: int | None = None
    remaining: int | None = None
    """Runs that Temporal still has."""
    archived_turns: int | None = None


TITLE_CHARS = 60
"""Maximum length of a title made from a prompt."""

USER_PATTERN = r"^[\w .@+~'\u2019-]{1,64}$"
"""User names: letters of any script, digits, space, apostrophes and . _ @ + ~ -."""

Title = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^[^\x00-\x1f\x7f]+$")]
UserName = Annotated[str, Field(pattern=USER_PATTERN)]


class _ModelNameSchema:
    """Made when it is asked for: other packages may add providers."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {
            "type": "string",
            "maxLength": 161,
            "pattern": model_pattern(),
            "examples": ["offline:", "openai:gpt-5"],
        }


ModelName = Annotated[str, _ModelNameSchema()]
"""`provider:name`; `split_model` validates it."""
MessageId = Annotated[str, Field(pattern=ID_PATTERN)]


Variables = Annotated[
    dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")], Annotated[str, Field(max_length=2_000)]],
    BeforeValidator(few_keys),
    Field(max_length=50),
]


class SessionInput(Frozen):
    """The workflow's argument: the session's whole configuration (SES-4). All fields are optional.

    Its JSON includes defaults, so that a version with other defaults does not change a running session.
    """

    title: str | None = None
    user: str | None = None
    model: str = DEFAULT_MODEL
    system_prompt: str = DEFAULT_SYSTEM_PROMPT
    limits: Limits = Limits()
    history: ConversationHistoryConfig = ConversationHistoryConfig()
    tools: ToolNames | None = None
    """The only tools that it has; `None`: all that the worker has (AGN-2)."""
    tool_policy: ToolPolicy = {}
    agent: str | None = None
    """The agent that it is and its version, as in `weather@2`; `None`: it is none (AGN-4)."""
    handoffs: list[str] = Field([], exclude_if=lambda names: not names)
    """The agents that its tasks may be."""
    agents: dict[str, AgentConfiguration] = Field({}, exclude_if=lambda agents: not agents)
    """By name, those agents, and all that they may hand over to."""
    variables: Variables = Field({}, exclude_if=lambda variables: not variables)
    """What an agent's instructions name in braces, beside `{user}` and `{today}`."""
    unattended: bool = False
    """Whether nobody is there to approve tool calls: tools that the policy does not mention are denied,
    unless they are read-only."""
    workspace: str = ""
    """The session's folder below the worker's `workspace_root`; empty: the root itself."""
    chat_url: str | None = None
    """URL of this session's chat page, for a link in the Temporal Web UI (SES-17)."""
    first_prompt: PromptSignal | str | None = None
    """Handled like a signal at the start."""
    features: FeatureData = Field({}, exclude_if=lambda features: not features)
    """What a feature needs to know, such as the task that the session is."""
    carried: CarriedState | None = None


class WithdrawPrompt(Strict):
    """Withdraw a prompt that has not started."""

    id: MessageId


class CancelTurn(Strict):
    """Stop the turn `message_id`; no effect after that turn has ended (SES-8)."""

    message_id: MessageId
    reason: Reason | None = None
    stopped_by: Person | None = None
    """Who stops it; the gateway sets it from the caller's key or token."""


class EndSession(Strict):
    """End the session, after its queued prompts or without them."""

    reason: Reason | None = None
    discard_queue: bool = False

    @property
    def reason_text(self) -> str:
        return self.reason or "ended by the user"


class SessionChanges(Strict):
    """What of a session changes from its next turn on: fields that are set, also in `limits` and `history`."""

    title: Title | None = None
    model: ModelName | None = None
    limits: LimitsChange | None = None
    history: HistoryChange | None = None
    tools: ToolNames | None = None
    tool_policy: ToolPolicy | None = None


class Configure(SessionChanges):
    """Configure a session from its next turn on."""

    agent: AgentChange | None = None
    """The version of an agent that the session is from then on; the other fields change what it brings."""


class StateRequest(Strict):
    """Argument of `get_conversation_state`: the newest `limit` turns, or those before the turn `before` (SES-11)."""

    before: MessageId | None = None
    limit: int | None = Field(None, ge=0, le=10_000)


class UpdatesRequest(Strict):
    """Argument of `get_conversation_updates` (SES-12)."""

    last_seen_message_id: str | None = None
    since_revision: int | None = Field(None, ge=0)
    limit: int | None = Field(None, ge=1, le=10_000)


TURNS_A_PAGE = 500
"""Turns that a page of the context view has, unless the request says otherwise."""


class ContextRequest(Strict):
    """Argument of `get_context_view`: the newest `limit` turns, or those before turn number `before` (CTX-8)."""

    before: int | None = Field(None, ge=1)
    limit: int = Field(TURNS_A_PAGE, ge=1, le=2_000)


class NoArgument(Strict):
    """Argument of a query that takes none."""


class QueueRequest(Strict):
    """Argument of `get_queue`; with ids, only these prompts are returned."""

    message_id: MessageId | None = None
    message_ids: list[MessageId] | None = Field(None, max_length=1_000)

    @property
    def ids(self) -> list[str] | None:
        """All requested ids; `None`: the whole queue."""
        one = [] if self.message_id is None else [self.message_id]
        return [*one, *(self.message_ids or [])] or None


class ReplayRequest(Strict):
    """Argument of `get_replay_context`: the maximum events of HISTORY; 0: all (CTX-12)."""

    max_history: int = Field(20, ge=0, le=10_000)


class FeatureMessage(Compact):
    """Argument of the signal `feature_message`: a message of another session to the same feature of this one."""

    feature: str
    kind: str
    body: dict[str, JsonValue] = {}


class CancelReceipt(Compact):
    """Answer of `cancel_turn`: whether there was a turn to stop."""

    cancelling: bool


class SessionEnd(Compact):
    """The workflow's result, with what features add."""

    status: str
    turn_count: int
    reason: str | None = None
    features: FeatureData = {}


Model = TypeVar("Model", bound=BaseModel)


def parse(model: type[Model], raw: object) -> Model:
    """Parse a caller's JSON as `model`; null counts as an empty object. Raises `RejectedError` naming the field.

    Takes under 0.5 s, with a message of at most 1 KB, for any input (SES-10).

    >>> parse(QueueRequest, None).message_id is None
    True
    """
    if not isinstance(raw, dict | None):
        but = f", not {raw}" if isinstance(raw, UndecodablePayload) else ""
        names = ", ".join(model.model_fields)
        raise RejectedError("invalid", f"Expected a JSON object with {names}{but}.", field="value")
    try:
        return model.model_validate(raw or {})
    except ValidationError as error:
        # Without its cause: Temporal would send it too, and its text has every wrong key.
        raise rejection_for(error) from None


def parse_cursor(raw: object) -> UpdatesRequest:
    """Parse the argument of `get_conversation_updates`: nothing, a message id, or an object (SES-12).

    >>> parse_cursor("m1").last_seen_message_id, parse_cursor("").last_seen_message_id
    ('m1', None)
    """
    request = parse(UpdatesRequest, {"last_seen_message_id": raw} if isinstance(raw, str) else raw)
    return request if request.last_seen_message_id else request.model_copy(update={"last_seen_message_id": None})


def parse_replay_request(raw: object) -> ReplayRequest:
    """Parse the argument of `get_replay_context`: nothing, a number, or an object (CTX-13).

    >>> parse_replay_request(None).max_history, parse_replay_request(0).max_history
    (20, 0)
    """
    is_number = isinstance(raw, int) and not isinstance(raw, bool)
    return parse(ReplayRequest, {"max_history": raw} if is_number else raw)


def read_end(raw: object) -> EndSession:
    """Parse the argument of `end_chat`: nothing, a reason, or an object. Anything else ends the session too.

    >>> read_end("done").reason, read_end({"reason": 7, "discard_queue": True}).discard_queue
    ('done', True)
    """
    try:
        return parse(EndSession, {"reason": raw} if isinstance(raw, str) else raw)
    except RejectedError:
        return EndSession(discard_queue=isinstance(raw, dict) and raw.get("discard_queue") is True)


def configured(current: SessionInput, change: Configure) -> SessionInput:
    """Return the configuration with `change` applied. Raises `RejectedError` naming the field (SES-8)."""
    if change.agent is not None:
        current = with_agent(current, change.agent)
    elif change.tools is not None and current.agent is not None:
        raise RejectedError("invalid", f"tools: the session has those of the agent {current.agent}.", field="tools")
    update: dict[str, Any] = change.model_dump(include={"title", "tools", "tool_policy"}, exclude_none=True)
    if change.model is not None:
        split_model(change.model)
        update["model"] = change.model
    if change.limits is not None:
        update["limits"] = _merged("limits", current.limits, change.limits)
        check_limits(update["limits"])
    if change.history is not None:
        update["history"] = _merged("history", current.history, change.history)
    return current.model_copy(update=update)


def with_agent(current: SessionInput, change: AgentChange) -> SessionInput:
    """Return the configuration of a session that is this agent."""
    agent = change.agent
    return current.model_copy(
        update={
            **{name: getattr(agent, name) for name in AgentConfiguration.model_fields if name != "label"},
            "agent": agent.label,
            "agents": change.others,
        }
    )


def check_limits(limits: Limits) -> None:
    """Raise `RejectedError` for limits that are too low for any session."""
    if limits.max_state_bytes < MIN_STATE_BYTES:
        raise RejectedError(
            "invalid",
            f"limits.max_state_bytes: {MIN_STATE_BYTES:,} to 1,000,000 are allowed.",
            field="limits.max_state_bytes",
        )


def make_title(text: str) -> str:
    r"""Return a title of at most 60 characters, from the first words of a prompt.

    >>> make_title("  read README.md\nand tell me its first heading ")
    'read README.md and tell me its first heading'
    """
    return one_line(text, TITLE_CHARS, whole_words=True) or "Untitled"


def _merged(field: str, current: Model, change: Change) -> Model:
    try:
        return parse(type(current), {**current.model_dump(), **change.model_dump()})
    except RejectedError as rejection:
        raise RejectedError("invalid", f"{field}.{rejection.message}", field=f"{field}.{rejection.field}") from None
