"""How a session is started, configured, ended and carried from run to run (SES-4, SES-8, SES-14).

These models are public API of running sessions: new fields have defaults (SES-19).
"""

import re
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    WithJsonSchema,
    WrapSerializer,
)
from pydantic_core import to_json

from turnkeeper.models.context.context_view import TURNS_A_PAGE
from turnkeeper.models.context.model_context import ContextState
from turnkeeper.models.context.window import ConversationHistoryConfig, HistoryChange
from turnkeeper.models.errors import Refused
from turnkeeper.models.ids import ID_PATTERN
from turnkeeper.models.limits import LEAST_STATE_BYTES, Limits, LimitsChange
from turnkeeper.models.model_name import MODEL_PATTERN, split_model
from turnkeeper.models.replay_text.turns import MovedEvents
from turnkeeper.models.session.archive.archive_health import ArchiveState
from turnkeeper.models.session.carried_form import read_carried, write_carried
from turnkeeper.models.session.queue.prompt_queue import QueueState
from turnkeeper.models.session.queue.prompts import PromptSignal, refusal_of
from turnkeeper.models.session.session_tools import ToolsState
from turnkeeper.models.session.tasks.outcome import TaskOutcome
from turnkeeper.models.session.tasks.sub_tasks import SubTasksState
from turnkeeper.models.session.tasks.task_start import TaskStart
from turnkeeper.models.session.tasks.task_state import TaskState
from turnkeeper.models.session.tool_policy import ToolPolicy
from turnkeeper.models.session.turn.running_turn import CarriedTurn
from turnkeeper.models.transcript.trajectory import Usage
from turnkeeper.models.transcript.transcript import TranscriptState
from turnkeeper.models.wire import Change, Compact, Frozen, Reason, Strict, UtcDatetime

TITLE_CHARS = 60
"""Most characters of a title that is made of a prompt."""

DEFAULT_MODEL = "offline:"

DEFAULT_SYSTEM_PROMPT = (
    "You are a careful assistant working in a conversation that can last for months. "
    "Use the tools you are given to look things up rather than guessing, say plainly what you could not do, "
    "and answer briefly."
)

USER_PATTERN = r"^[\w .@+~'\u2019-]{1,64}$"
"""Users' names: letters of any script, digits, space, apostrophes and . _ @ + ~ -."""

_USER_PATTERN_BEFORE_RULES_3 = r"^[\w .@+~-]{1,64}$"

SYSTEM_PROMPT_BYTES = 100_000
"""Most JSON bytes of a system prompt, which is carried from run to run."""


def _carriable(system_prompt: str) -> str:
    # A lone surrogate can't be written as JSON at all; it is refused where the text is used.
    if len(system_prompt) * 6 > SYSTEM_PROMPT_BYTES and len(to_json(system_prompt)) > SYSTEM_PROMPT_BYTES:
        raise ValueError(f"may have {SYSTEM_PROMPT_BYTES:,} bytes as JSON")
    return system_prompt


Title = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^[^\x00-\x1f\x7f]+$")]
UserName = Annotated[str, Field(pattern=USER_PATTERN)]
SystemPrompt = Annotated[str, Field(max_length=50_000), AfterValidator(_carriable)]
ModelName = Annotated[
    str,
    WithJsonSchema(
        {"type": "string", "maxLength": 141, "pattern": MODEL_PATTERN, "examples": ["offline:", "openai:gpt-5"]}
    ),
]
"""`provider:name`, read by `split_model`, which says what is wrong with it."""
MessageId = Annotated[str, Field(pattern=ID_PATTERN)]


class SessionFacts(Compact):
    """What is carried of a session beside its parts."""

    created_at: UtcDatetime
    revision: int
    request_count: int = 0
    usage: Usage = Usage()
    ending: str | None = None
    """Why the session is ending; `None`: it is not."""
    default_rules: int = 1
    """The rules of the session's first run: its defaults are theirs, in whatever run (SES-19)."""
    moved_events: MovedEvents = MovedEvents()


class CarriedState(SessionFacts):
    """Everything a session knows, at a hand-over from one run to the next (SES-14). Under 1 MB.

    Every part stands beside its rules and is the state of one class there: a new field is written there only.
    """

    transcript: TranscriptState = TranscriptState()
    queue: QueueState = QueueState()
    context: ContextState = ContextState()
    tools: ToolsState = ToolsState()
    archive: ArchiveState = ArchiveState()
    task: TaskState = TaskState()
    tasks: SubTasksState = SubTasksState()
    running: CarriedTurn | None = None

    @property
    def facts(self) -> SessionFacts:
        return SessionFacts(**{name: getattr(self, name) for name in SessionFacts.model_fields})


Carried = Annotated[CarriedState, BeforeValidator(read_carried), WrapSerializer(write_carried)]
"""The state as one run hands it to the next: written in one form, read in every form that was ever written."""


_NEWER_LIMITS = {
    "max_tokens_per_turn",
    "max_cost_per_turn",
    "approval_timeout",
    "max_task_depth",
    "max_tasks_at_once",
    "max_tasks",
}


class SessionInput(Frozen):
    """The workflow's one argument: everything configurable, and so in the history (SES-4). All of it is optional.

    It is written with its defaults: a later release with other ones must not change a session that is running.
    """

    title: str | None = None
    user: str | None = None
    model: str = DEFAULT_MODEL
    system_prompt: str = DEFAULT_SYSTEM_PROMPT
    limits: Limits = Limits()
    history: ConversationHistoryConfig = ConversationHistoryConfig()
    tool_policy: ToolPolicy = {}
    unattended: bool = False
    """Nobody is there to approve tool calls: what the policy does not mention is denied rather than asked about."""
    workspace: str = ""
    """The session's folder below the worker's `workspace_root`; empty: the root itself."""
    chat_url: str | None = None
    """Where people can watch this session; linked from the Temporal Web UI (SES-17)."""
    first_prompt: PromptSignal | str | None = None
    """Received as if it had been signalled at the start."""
    task: TaskStart | None = None
    """The session is a task; its first prompt is made of the task's context."""
    carried: Carried | None = None

    @property
    def counted_bytes(self) -> int:
        """JSON bytes that count towards what is carried.

        Fields that earlier releases did not have are in what is allowed for beside it: what a run from before has
        decided by this size must be decided the same again (SES-19).
        """
        newer: Any = {"unattended": True, "limits": _NEWER_LIMITS}
        if self.task is None:
            newer["task"] = True
        return len(self.model_dump_json(exclude=newer).encode())


class WithdrawPrompt(Strict):
    """Take back a prompt that has not started."""

    id: MessageId


class CancelTurn(Strict):
    """Stop the turn `message_id`; without effect once that turn has ended (SES-8)."""

    message_id: MessageId
    reason: Reason | None = None


class EndSession(Strict):
    """End the session after the queue, or at once without it."""

    reason: Reason | None = None
    discard_queue: bool = False


class Configure(Strict):
    """Change a session from its next turn on; `limits` and `history` change only the fields given."""

    title: Title | None = None
    model: ModelName | None = None
    limits: LimitsChange | None = None
    history: HistoryChange | None = None
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
    """Argument of `get_queue`: these prompts only, where ids are given.

    Workers of an earlier release know `message_id` alone, and refuse any other field.
    """

    message_id: MessageId | None = None
    message_ids: list[MessageId] | None = Field(None, max_length=1_000)

    @property
    def ids(self) -> list[str] | None:
        """All ids asked for; `None`: the whole queue."""
        one = [] if self.message_id is None else [self.message_id]
        return [*one, *(self.message_ids or [])] or None


class ReplayRequest(Strict):
    """Argument of `get_replay_context`: most events of HISTORY; 0 stands for all (CTX-12)."""

    max_history: int = Field(20, ge=0, le=10_000)


class CancelReceipt(Compact):
    """Answer of `cancel_turn`: whether there was something to cancel."""

    cancelling: bool


class SessionEnd(Compact):
    """The workflow's result. `task`: what came of the task that the session was."""

    status: str
    turn_count: int
    reason: str | None = None
    task: TaskOutcome | None = None


Model = TypeVar("Model", bound=BaseModel)


def parse(model: type[Model], raw: object) -> Model:
    """Read what a caller sent as `model`; nothing at all counts as an empty object. Raises `Refused` naming the field.

    It takes under 0.5 s and has at most 1 KB to say, whatever was sent (SES-10).

    >>> parse(QueueRequest, None).message_id is None
    True
    """
    if not isinstance(raw, dict | None):
        raise Refused("invalid", f"Expected a JSON object with {', '.join(model.model_fields)}.", field="value")
    try:
        return model.model_validate(raw or {})
    except ValidationError as error:
        # Without its cause: the text of that names every wrong key, and Temporal would send it along.
        raise refusal_of(error) from None


def parse_cursor(raw: object) -> UpdatesRequest:
    """Read the argument of `get_conversation_updates`: nothing, a message id, or an object (SES-12).

    >>> parse_cursor("m1").last_seen_message_id, parse_cursor("").last_seen_message_id
    ('m1', None)
    """
    request = parse(UpdatesRequest, {"last_seen_message_id": raw} if isinstance(raw, str) else raw)
    return request if request.last_seen_message_id else request.model_copy(update={"last_seen_message_id": None})


def parse_replay_request(raw: object) -> ReplayRequest:
    """Read the argument of `get_replay_context`: nothing, a number, or an object (CTX-13).

    >>> parse_replay_request(None).max_history, parse_replay_request(0).max_history
    (20, 0)
    """
    is_number = isinstance(raw, int) and not isinstance(raw, bool)
    return parse(ReplayRequest, {"max_history": raw} if is_number else raw)


def configuration_of(start: SessionInput, *, default_rules: int) -> SessionInput:
    """Return what a session is configured with, which began under `default_rules` and has kept their defaults."""
    task = start.task and start.task.without_context
    config = start.model_copy(update={"carried": None, "first_prompt": None, "task": task})
    if default_rules < 2:
        config = config.model_copy(update={"limits": start.limits.with_earlier_defaults()})
    if default_rules < 3:
        config = config.model_copy(update={"history": start.history.with_earlier_defaults()})
    return config


def configured(current: SessionInput, change: Configure) -> SessionInput:
    """Apply a change to a session's configuration. Raises `Refused` naming the field (SES-8)."""
    update: dict[str, Any] = change.model_dump(include={"title", "tool_policy"}, exclude_none=True)
    if change.model is not None:
        split_model(change.model)
        update["model"] = change.model
    if change.limits is not None:
        update["limits"] = _merged("limits", current.limits, change.limits)
        check_limits(update["limits"])
    if change.history is not None:
        update["history"] = _merged("history", current.history, change.history)
    return current.model_copy(update=update)


def read_start(raw: object, *, extra_arguments: int, takes_apostrophes: bool = True) -> SessionInput:
    """Read what a session was started with, whoever started it. Raises `Refused` naming the field (SES-4).

    `takes_apostrophes`: in the user's name; runs from before rules 3 refuse them.
    """
    if extra_arguments:
        raise Refused("invalid", "A session is started with one JSON object, or nothing.")
    start = parse(SessionInput, raw)
    if start.carried is None:
        check_start(start, user_pattern=USER_PATTERN if takes_apostrophes else _USER_PATTERN_BEFORE_RULES_3)
    return start


def check_start(start: SessionInput, *, user_pattern: str = USER_PATTERN) -> None:
    """Pass what can be configured. Raises `Refused` naming the field."""
    split_model(start.model)
    check_limits(start.limits)
    if start.user is not None and re.fullmatch(user_pattern, start.user) is None:
        raise Refused(
            "invalid", "user: letters, digits, space and ' . _ @ + ~ - are allowed, 64 at most.", field="user"
        )
    if start.title is not None and not 1 <= len(start.title) <= 120:
        raise Refused("invalid", "title: 1 to 120 characters are allowed.", field="title")


def check_limits(limits: Limits) -> None:
    """Pass limits that a session can live with. Raises `Refused`."""
    if limits.max_state_bytes < LEAST_STATE_BYTES:
        raise Refused(
            "invalid",
            f"limits.max_state_bytes: {LEAST_STATE_BYTES:,} to 1,000,000 are allowed.",
            field="limits.max_state_bytes",
        )


def title_of(text: str) -> str:
    r"""Make a title of a prompt's first words, at most 60 characters.

    >>> title_of("  read README.md\nand tell me its first heading ")
    'read README.md and tell me its first heading'
    """
    words = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    if len(words) <= TITLE_CHARS:
        return words or "Untitled"
    return words[: TITLE_CHARS - 1].rsplit(" ", 1)[0] + "…"


def _merged(field: str, current: Model, change: Change) -> Model:
    try:
        return parse(type(current), {**current.model_dump(), **change.model_dump()})
    except Refused as refusal:
        raise Refused("invalid", f"{field}.{refusal.message}", field=f"{field}.{refusal.field}") from None
