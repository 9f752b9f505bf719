"""Handing off a conversation to a task: validate, correct, and cut it by a policy (CTX-9, CTX-10).

Theory of operation. Only the latest messages are read. An invalid message is an error, an empty one is skipped, and the
text of any other is trimmed and cut. Then the oldest are dropped until the rest is small enough. A warning describes
each change to a message, with its index in the caller's list, which is never modified.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, NamedTuple

from turnkeeper.models.bounds import count_unencodable, encodable_text
from turnkeeper.models.errors import TaskErrorType, TaskValidationError, preview
from turnkeeper.models.field_paths import field_path
from turnkeeper.models.tasks.history_policy import HistoryPolicy, HistoryRole, resolve_policy
from turnkeeper.models.tasks.stored_history import ConversationHistory, HistoryMessage
from turnkeeper.models.tasks.timestamps import is_timestamp, moment_of
from turnkeeper.models.wire import Frozen

HISTORY_FIELD = "conversation_history"
"""The parameter of the conversation: prefix of all field paths here."""

WarningCode = Literal[
    "too_many_messages",
    "missing_timestamp",
    "invalid_timestamp",
    "empty_content",
    "truncated",
    "replaced_characters",
    "total_size",
    "all_filtered",
    "prompt_size",
]
Severity = Literal["low", "medium", "high"]


class TaskValidationWarning(Frozen):
    """A correction; the message says what was changed. Warnings never fail a task (TSK-2)."""

    code: WarningCode
    field: str
    message: str
    severity: Severity = "low"
    suggestion: str | None = None


class HandedOver(NamedTuple):
    """The history that is handed off, or `None` if nothing is left, and warnings about corrections."""

    history: ConversationHistory | None
    warnings: list[TaskValidationWarning]


def validate_conversation_history(history: object, policy: HistoryPolicy | str, now: datetime | str) -> HandedOver:
    """Validate `history`, a list of `{role, content, timestamp?}`, and cut it by `policy` (CTX-9 to CTX-11).

    `policy` may be a preset's name. `now` replaces missing timestamps; a string is stored unchanged. `None` and an
    empty list mean no history, without a warning.

    Raises `TaskValidationError` for the first invalid message.

    >>> messages = [{"role": " User ", "content": "x" * 200, "timestamp": "2025-10-29T13:20:15"}]
    >>> history, warnings = validate_conversation_history(messages, "keep_assistant", "2025-10-29T13:30:00Z")
    >>> history.messages[0].role, history.messages[0].content[148:], history.messages[0].original_length
    ('user', 'xx... [truncated]', 200)
    >>> [(warning.code, warning.field) for warning in warnings]
    [('truncated', 'conversation_history[0].content')]
    """
    resolved, collection_time = resolve_policy(policy), now if isinstance(now, str) else now.isoformat()
    moment_of(collection_time)  # raises for a bad one before any message gets it
    if history is None:
        return HandedOver(None, [])
    if not isinstance(history, list):
        raise TaskValidationError(HISTORY_FIELD, "must be a list of messages", preview(history), "type_error")
    messages, warnings = _read_latest(history, resolved, collection_time)
    if not messages:
        return HandedOver(None, [*warnings, *_all_filtered(history)])
    whole = ConversationHistory.of(messages, collection_time=collection_time)
    latest, dropping = _within_total_size(whole, resolved)
    return HandedOver(latest, [*warnings, *dropping])


def _read_latest(
    history: list[object], policy: HistoryPolicy, now: str
) -> tuple[list[HistoryMessage], list[TaskValidationWarning]]:
    skipped = max(0, len(history) - policy.max_messages)
    messages, warnings = list[HistoryMessage](), _too_many(len(history), policy) if skipped else []
    for index, item in enumerate(history[skipped:], start=skipped):
        reading = _Reading(field_path([HISTORY_FIELD, index]), policy, now)
        message = reading.read(item)
        messages += [message] if message else []
        warnings += reading.warnings
    return messages, warnings


class _Reading:
    """Reads one message and collects warnings; `path` names the message in them and in errors."""

    def __init__(self, path: str, policy: HistoryPolicy, now: str) -> None:
        self._path, self._policy, self._now = path, policy, now
        self.warnings: list[TaskValidationWarning] = []

    def read(self, item: object) -> HistoryMessage | None:
        """Return the message to hand off, or `None` if it is empty. Raises `TaskValidationError`."""
        fields = self._fields(item)
        role = self._role(fields["role"])
        content = self._content(fields["content"], role)
        if attachments := fields.get("attachments"):
            raise self._error(".attachments", "are not taken by this version", preview(attachments), "invalid_value")
        if not content:
            self._warn("empty_content", "content", "The message has no content and was skipped.")
            return None
        limit = self._policy.text_limit(role)
        text = limit.cut(content)
        truncated = len(content) > limit.max_chars
        if truncated:
            self._warn_of_cut(len(content), len(text))
        text = self._encodable(text)
        return HistoryMessage(
            role=role,
            content=text,
            timestamp=self._timestamp(fields.get("timestamp")),
            truncated=truncated,
            original_length=len(content),
        )

    def _fields(self, item: object) -> Mapping[object, object]:
        if not isinstance(item, Mapping):
            raise self._error("", "must be an object with role and content", preview(item), "type_error")
        missing = [name for name in ("role", "content") if name not in item]
        if missing:
            raise self._error("", f"{' and '.join(missing)} missing", preview(item), "missing_field")
        return item

    def _role(self, value: object) -> HistoryRole:
        role = value.strip().lower() if isinstance(value, str) else ""
        if role not in self._policy.roles:
            reason = f"must be one of {', '.join(self._policy.roles)}"
            raise self._error(".role", reason, preview(value), "invalid_value")
        return role

    def _content(self, value: object, role: HistoryRole) -> str:
        if not isinstance(value, str):
            raise self._error(".content", "must be a string", preview(value), "type_error")
        content, max_chars = value.strip(), self._policy.text_limit(role).hard_limit
        if max_chars is not None and len(content) > max_chars:
            reason = f"has {len(content):,} characters; of {role} {max_chars:,} are allowed"
            raise self._error(".content", reason, preview(content), "too_long")
        return content

    def _encodable(self, text: str) -> str:
        count = count_unencodable(text)
        if not count:
            return text
        characters = "1 character was" if count == 1 else f"{count:,} characters were"
        message = f"{characters} replaced by U+FFFD: NUL and lone surrogates can't be stored."
        self._warn("replaced_characters", "content", message, "Send text that is valid Unicode, without NUL.")
        return encodable_text(text)

    def _timestamp(self, value: object) -> str:
        if value is None or value == "":
            self._warn("missing_timestamp", "timestamp", f"There was no timestamp; it was set to {self._now}.")
            return self._now
        if not isinstance(value, str) or not is_timestamp(value):
            message = f"The timestamp {preview(value)} is not ISO 8601; it was set to {self._now}."
            self._warn("invalid_timestamp", "timestamp", message, "Write it like 2025-10-29T13:30:00Z.")
            return self._now
        return value

    def _warn_of_cut(self, before: int, after: int) -> None:
        message = f"The text was cut from {before:,} to {after:,} characters, the mark included."
        self._warn(
            "truncated", "content", message, "Say the essential in fewer words, or choose another history_policy."
        )

    def _warn(self, code: WarningCode, part: str, message: str, suggestion: str | None = None) -> None:
        self.warnings.append(
            TaskValidationWarning(code=code, field=f"{self._path}.{part}", message=message, suggestion=suggestion)
        )

    def _error(self, part: str, reason: str, value: str, error_type: TaskErrorType) -> TaskValidationError:
        return TaskValidationError(self._path + part, reason, value, error_type)


def _within_total_size(history: ConversationHistory, policy: HistoryPolicy) -> HandedOver:
    """Drop the oldest messages until the total is within the policy, or `min_messages` are left."""
    sizes = [message.size for message in history.messages]
    total, dropped = sum(sizes), 0
    if total <= policy.max_total_chars:
        return HandedOver(history, [])
    while total > policy.max_total_chars and len(sizes) - dropped > policy.min_messages:
        total -= sizes[dropped]
        dropped += 1
    outcome = (
        f"the oldest {dropped} were dropped" if dropped else f"none of the latest {policy.min_messages} is dropped"
    )
    warning = history_warning(
        "total_size",
        f"{len(sizes)} messages have a size of {sum(sizes):,} characters, over {policy.max_total_chars:,}: {outcome}.",
        suggestion="Hand over only the messages that matter to the task.",
    )
    return HandedOver(history.without_oldest(dropped), [warning])


def history_warning(
    code: WarningCode, message: str, *, severity: Severity = "medium", suggestion: str | None = None
) -> TaskValidationWarning:
    return TaskValidationWarning(
        code=code, field=HISTORY_FIELD, message=message, severity=severity, suggestion=suggestion
    )


def _too_many(count: int, policy: HistoryPolicy) -> list[TaskValidationWarning]:
    message = f"Of {count:,} messages only the latest {policy.max_messages} were looked at."
    return [history_warning("too_many_messages", message, suggestion="Hand over only recent messages that matter.")]


def _all_filtered(history: list[object]) -> list[TaskValidationWarning]:
    if not history:
        return []
    message = "No message has any content: the task is given no history."
    return [history_warning("all_filtered", message, severity="high")]
