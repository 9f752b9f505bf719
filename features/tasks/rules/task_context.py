"""The context that an agent gets with its task (TSK-1)."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from turnkeeper.models.errors import TaskValidationError, preview
from turnkeeper.models.settings.history_policy import HistoryRole
from turnkeeper.models.transcript.attachments import Attachment
from turnkeeper.models.wire import Compact, Frozen, Items, error_type_of, field_path

OMITTED = "... (earlier messages omitted for brevity)\n\n"
"""Precedes the first message if older ones were dropped."""

OVERHEAD_CHARS = 10
"""Added to the size of a message for its envelope."""


class HistoryMessage(Frozen):
    """A message that was handed off. `original_length` is that of its trimmed content before it was cut."""

    role: HistoryRole
    content: str
    timestamp: str
    truncated: bool
    """Whether the content is shorter than it was: cut, or condensed by the model."""
    original_length: int
    condensed: bool = Field(False, exclude_if=lambda condensed: not condensed)
    """Whether the content is the model's, in place of a cut text (CTX-15)."""
    attachments: Items[Attachment] = Field([], exclude_if=lambda attachments: not attachments)
    """By reference; the latest of the history are attachments of the task's first prompt (CTX-16)."""

    @property
    def size(self) -> int:
        """The message's share of the total size, in characters."""
        return len(self.content) + len(self.role) + len(self.timestamp) + OVERHEAD_CHARS


class HistoryMetadata(Frozen):
    """When the history was collected, and its oldest and newest timestamps, as they were written."""

    collection_time: str
    oldest_message: str
    newest_message: str

    @classmethod
    def of(cls, timestamps: Sequence[str], *, collection_time: str | None = None) -> "HistoryMetadata":
        """Return the metadata of at least one timestamp; `collection_time` defaults to the newest."""
        newest = max(timestamps, key=moment_of)
        return cls(
            collection_time=newest if collection_time is None else collection_time,
            oldest_message=min(timestamps, key=moment_of),
            newest_message=newest,
        )


class ConversationHistory(Frozen):
    """A conversation as a task stores it, oldest message first; never empty (CTX-11)."""

    messages: list[HistoryMessage]
    total_messages: int
    truncated_count: int
    """How many texts are cut; condensed ones don't count."""
    metadata: HistoryMetadata
    left_out: int = Field(0, ge=0, exclude_if=lambda left_out: not left_out)
    """How many messages between these were left out, since they matter less to the task (CTX-15)."""

    @model_validator(mode="before")
    @classmethod
    def _with_metadata(cls, value: object) -> object:
        """Add missing `metadata`: other programs may store a history without it."""
        if not isinstance(value, Mapping) or "metadata" in value:
            return value
        messages = value.get("messages")
        messages = messages if isinstance(messages, list) else []
        texts = [message.get("timestamp") for message in messages if isinstance(message, Mapping)]
        timestamps = [text for text in texts if isinstance(text, str) and is_timestamp(text)]
        return {**value, "metadata": HistoryMetadata.of(timestamps)} if timestamps else value

    @classmethod
    def of(cls, messages: Sequence[HistoryMessage], *, collection_time: str) -> "ConversationHistory":
        """Return the history of at least one message."""
        timestamps = [message.timestamp for message in messages]
        return cls(
            messages=list(messages),
            total_messages=len(messages),
            truncated_count=sum(message.truncated and not message.condensed for message in messages),
            metadata=HistoryMetadata.of(timestamps, collection_time=collection_time),
        )

    def without_oldest(self, count: int) -> "ConversationHistory | None":
        """Return the history without its first `count` messages; `None` if none is left.

        The first remaining text says so, unless `count` is 0.
        """
        if not count or count >= len(self.messages):
            return None if count else self
        first, *rest = self.messages[count:]
        marked = first.model_copy(update={"content": OMITTED + first.content})
        return self.with_messages([marked, *rest])

    def with_messages(self, messages: Sequence[HistoryMessage]) -> "ConversationHistory":
        """Return the history with at least one of these messages in place of its own."""
        history = ConversationHistory.of(messages, collection_time=self.metadata.collection_time)
        return history.model_copy(update={"left_out": self.left_out}) if self.left_out else history


Priority = Literal["P0", "P1", "P2", "P3", "P4"]
"""The most urgent first."""


def _none_if_empty(value: object) -> object:
    is_empty = isinstance(value, Mapping) and not value.get("messages", value)
    return None if is_empty else value


class TaskContext(Compact):
    """The start context of a task's agent. All fields are optional; `None` and empty values mean the same."""

    description: str = ""
    priority: Priority | None = None
    client_cwd: str | None = None
    background_context: str | None = None
    expected_deliverables: list[str] | None = None
    success_criteria: list[str] | None = None
    constraints: list[str] | None = None
    relevant_files: list[str] | None = None
    conversation_history: Annotated[ConversationHistory | None, BeforeValidator(_none_if_empty)] = None
    """Other programs may store one without messages, with null times: it is read as `None`."""
    related_documentation: list[str] | None = None

    def with_history(self, history: ConversationHistory | None) -> "TaskContext":
        return self.model_copy(update={"conversation_history": history})


REGISTRY_KEY = "task_context"
"""The key of the context in a task registry; a caller may pass the registry's object."""


def read_task_context(raw: Mapping[str, object]) -> TaskContext:
    """Parse a context, or an object with the one key `task_context`.

    Raises `TaskValidationError` for wrong values and unknown keys.

    >>> read_task_context({"task_context": {"constraints": ["No new dependencies"]}}).constraints
    ['No new dependencies']
    """
    if set(raw) == {REGISTRY_KEY}:
        context = raw[REGISTRY_KEY]
        if not isinstance(context, Mapping):
            raise TaskValidationError(REGISTRY_KEY, "must be an object", preview(context), "type_error")
        raw = context
    elif REGISTRY_KEY in raw:
        others = ", ".join(sorted(map(str, raw.keys() - {REGISTRY_KEY})))
        reason = f"must be the only key; pass it on without {field_path([others])}"
        raise TaskValidationError(REGISTRY_KEY, reason, preview(raw), "invalid_value")
    try:
        return TaskContext.model_validate(raw, extra="forbid")
    except ValidationError as error:
        raise _first_error(error.errors()[0]) from None


def _first_error(problem: ErrorDetails) -> TaskValidationError:
    if problem["type"] == "extra_forbidden":
        allowed = ", ".join(TaskContext.model_fields) if len(problem["loc"]) == 1 else "those of a stored history"
        reason = f"is unknown; known are {allowed}"
    else:
        reason = problem["msg"][:1].lower() + problem["msg"][1:]
    return TaskValidationError(
        field_path(problem["loc"]), reason, preview(problem["input"]), error_type_of(dict(problem))
    )


_CHARACTERS = re.compile(r"[0-9T:.,+ WZ-]{8,40}")
"""Only characters of ISO 8601: `fromisoformat` would accept a line break between date and time."""


def moment_of(timestamp: str) -> datetime:
    """Return the time of an ISO 8601 `timestamp`; without a zone it is UTC. Raises `ValueError`.

    >>> moment_of("2025-10-29T14:00:00+02:00") == moment_of("2025-10-29T12:00:00")
    True
    """
    if not _CHARACTERS.fullmatch(timestamp):
        raise ValueError("is no ISO 8601 timestamp")
    moment = datetime.fromisoformat(timestamp)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def is_timestamp(value: object) -> bool:
    """Return whether `value` is an ISO 8601 timestamp.

    >>> is_timestamp("2025-10-29"), is_timestamp("yesterday"), is_timestamp(17)
    (True, False, False)
    """
    try:
        return isinstance(value, str) and moment_of(value) is not None
    except ValueError:
        return False


def clock_time(timestamp: str) -> str:
    r"""Return the time of day in the timestamp's own zone; without one, the timestamp itself, on one line.

    >>> clock_time("2025-10-29T14:13:17.5+02:00"), clock_time("2025-10-29"), clock_time("at\nnoon")
    ('14:13:17', '2025-10-29', 'at noon')
    """
    if _is_date(timestamp) or not is_timestamp(timestamp):
        return " ".join(timestamp.split())
    return f"{moment_of(timestamp):%H:%M:%S}"


def _is_date(timestamp: str) -> bool:
    try:
        return date.fromisoformat(timestamp) is not None
    except ValueError:
        return False
