"""Messages to and from a session, and its input (SES-4, SES-8).

These models are public API of running sessions: new fields have defaults (SES-19).
"""

import re
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError, WithJsonSchema

from turnkeeper.features.tasks.rules.enrichment import first_prompt
from turnkeeper.features.tasks.rules.history_policy import HandOffPresets
from turnkeeper.features.tasks.session.task_input import TaskInput
from turnkeeper.features.tasks.session.task_state import TaskOutcome
from turnkeeper.models.context.context_view import TURNS_A_PAGE
from turnkeeper.models.context.window import ConversationHistoryConfig, HistoryChange
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.ids import ID_PATTERN, MODEL_PATTERN, WorkflowId, split_model
from turnkeeper.models.limits import MIN_STATE_BYTES, Limits, LimitsChange
from turnkeeper.models.session.carried_state import CarriedState
from turnkeeper.models.session.defaults import DEFAULT_MODEL, DEFAULT_SYSTEM_PROMPT
from turnkeeper.models.session.queue.prompts import PromptSignal, check_text, rejection_for
from turnkeeper.models.session.tools.tool_policy import ToolNames, ToolPolicy
from turnkeeper.models.texts.one_line import one_line
from turnkeeper.models.wire import Change, Compact, Frozen, Person, Reason, Strict, UndecodablePayload, UtcDatetime

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
ModelName = Annotated[
    str,
    WithJsonSchema(
        {"type": "string", "maxLength": 141, "pattern": MODEL_PATTERN, "examples": ["offline:", "openai:gpt-5"]}
    ),
]
"""`provider:name`; `split_model` validates it."""
MessageId = Annotated[str, Field(pattern=ID_PATTERN)]


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
    """The agent that it was started with and its version, as in `weather@2`; `None`: it has none (AGN-4)."""
    unattended: bool = False
    """Whether nobody is there to approve tool calls: tools that the policy does not mention are denied,
    unless they are read-only."""
    workspace: str = ""
    """The session's folder below the worker's `workspace_root`; empty: the root itself."""
    chat_url: str | None = None
    """URL of this session's chat page, for a link in the Temporal Web UI (SES-17)."""
    first_prompt: PromptSignal | str | None = None
    """Handled like a signal at the start."""
    task: TaskInput | None = None
    """Set if the session is a task; its first prompt is made from the task's context."""
    hand_off: HandOffPresets | None = Field(None, exclude_if=lambda presets: presets is None)
    """The operator's presets for the histories of its tasks; `None`: ours (CTX-9)."""
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


class Configure(Strict):
    """Configure a session from its next turn on; only fields that are set change, also in `limits` and `history`."""

    title: Title | None = None
    model: ModelName | None = None
    limits: LimitsChange | None = None
    history: HistoryChange | None = None
    tools: ToolNames | None = None
    tool_policy: ToolPolicy | None = None


class StateRequest(Strict):
    """Argument of `get_conversation_state`: the newest `limit` turns, or those before the turn `before` (SES-11)."""

    before: MessageId | None = None
    limit: int | None = Field(None, ge=0, le=10_000)


class UpdatesRequest(Strict):
    """Argument of `get_conversation_updates` (SES-12)."""

    last_seen_message_id: str | None = None
    since_revision: int | None = Field(None, ge=0)
    limit: int | None = Field(None, ge=1, le=10_000)


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


class CancelReceipt(Compact):
    """Answer of `cancel_turn`: whether there was a turn to stop."""

    cancelling: bool


class SessionEnd(Compact):
    """The workflow's result. `task`: what came of the task that the session was."""

    status: str
    turn_count: int
    reason: str | None = None
    task: TaskOutcome | None = None


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


def initial_configuration(start: SessionInput) -> SessionInput:
    """Return the configuration of a session."""
    task = start.task and start.task.without_context
    return start.model_copy(update={"carried": None, "first_prompt": None, "task": task})


def configured(current: SessionInput, change: Configure) -> SessionInput:
    """Return the configuration with `change` applied. Raises `RejectedError` naming the field (SES-8)."""
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


MAX_START_BYTES = 1_500_000
"""Maximum of a start, as JSON: at 2 MB Temporal fails the workflow task."""


def read_start(raw: object, *, extra_arguments: int) -> SessionInput:
    """Parse the workflow's argument. Raises `RejectedError` naming the field (SES-4)."""
    if extra_arguments:
        raise RejectedError("invalid", "A session is started with one JSON object, or nothing.")
    return parse(SessionInput, raw)


def check_outside_start(start: SessionInput) -> None:
    """Check a start that continues no run: it brings no state. Raises `RejectedError` naming the field (SES-10)."""
    if start.carried is not None:
        raise RejectedError(
            "invalid", "carried: only the run before brings it. To copy a session, import or fork it.", field="carried"
        )
    check_start(start)
    if start.task and start.first_prompt is None:
        if start.task.context is None:
            raise RejectedError("invalid", "task.context: give it, or a first_prompt.", field="task.context")
        check_text(first_prompt(start.task.context), limits=start.limits, field="task.context")
    size = len(start.model_dump_json().encode())
    if size > MAX_START_BYTES:
        raise RejectedError("invalid", f"The input has {size:,} bytes of JSON; {MAX_START_BYTES:,} are allowed.")


def check_start(start: SessionInput, *, user_pattern: str = USER_PATTERN) -> None:
    """Check model, limits, user and title. Raises `RejectedError` naming the field."""
    split_model(start.model)
    check_limits(start.limits)
    if start.user is not None and re.fullmatch(user_pattern, start.user) is None:
        raise RejectedError(
            "invalid", "user: letters, digits, space and ' . _ @ + ~ - are allowed, 64 at most.", field="user"
        )
    if start.title is not None and not 1 <= len(start.title) <= 120:
        raise RejectedError("invalid", "title: 1 to 120 characters are allowed.", field="title")


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
