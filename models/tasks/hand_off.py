"""A conversation handed to a task: checked, mended, and cut by a policy (CTX-9, CTX-10).

Theory of operation. Only the latest messages are looked at. Each is read by itself: it is refused, which ends it all;
or skipped, since it says nothing; or kept, its text trimmed and cut. Of what is kept, the oldest are dropped until the
rest is small enough. Whatever was done to a message is told in a warning, under the message's place in the caller's
own list, which is itself never modified.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, NamedTuple

from turnkeeper.models.bounds import count_unencodable, encodable_text
from turnkeeper.models.errors import TaskErrorType, TaskValidationError, shown
from turnkeeper.models.field_paths import field_path
from turnkeeper.models.tasks.history_policy import HistoryPolicy, HistoryRole, resolve_policy
from turnkeeper.models.tasks.stored_history import ConversationHistory, HistoryMessage
from turnkeeper.models.tasks.timestamps import is_timestamp, moment_of
from turnkeeper.models.wire import Frozen

HISTORY_FIELD = "conversation_history"
"""The parameter that all fields here are a part of."""

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
    """Something that was mended; the message says what was done. Warnings never fail a task (TSK-2)."""

    code: WarningCode
    field: str
    message: str
    severity: Severity = "low"
    suggestion: str | None = None


class HandedOver(NamedTuple):
    """What is handed over, None where nothing is left, and what was mended on the way."""

    history: ConversationHistory | None
    warnings: list[TaskValidationWarning]


def validate_conversation_history(history: object, policy: HistoryPolicy | str, now: datetime | str) -> HandedOver:
    """Check `history`, a list of `{role, content, timestamp?}`, and cut it as `policy` says (CTX-9 to CTX-11).

    `policy` may be a preset's name. `now` stands for every missing timestamp; as text it is stored as given. None and
    an empty list are no history, without a warning.

    Raises `TaskValidationError` for the first message in the caller's order that can't be mended.

    >>> said = [{"role": " User ", "content": "x" * 200, "timestamp": "2025-10-29T13:20:15"}]
    >>> kept, warnings = validate_conversation_history(said, "keep_assistant", "2025-10-29T13:30:00Z")
    >>> kept.messages[0].role, kept.messages[0].content[148:], kept.messages[0].original_length
    ('user', 'xx... [truncated]', 200)
    >>> [(warning.code, warning.field) for warning in warnings]
    [('truncated', 'conversation_history[0].content')]
    """
    chosen, collection_time = resolve_policy(policy), now if isinstance(now, str) else now.isoformat()
    moment_of(collection_time)  # every missing timestamp becomes this one
    if history is None:
        return HandedOver(None, [])
    if not isinstance(history, list):
        raise TaskValidationError(HISTORY_FIELD, "must be a list of messages", shown(history), "type_error")
    messages, warnings = _read_latest(history, chosen, collection_time)
    if not messages:
        return HandedOver(None, [*warnings, *_all_filtered(history)])
    read = ConversationHistory.of(messages, collection_time=collection_time)
    kept, dropping = _within_total_size(read, chosen)
    return HandedOver(kept, [*warnings, *dropping])


def _read_latest(
    history: list[object], policy: HistoryPolicy, now: str
) -> tuple[list[HistoryMessage], list[TaskValidationWarning]]:
    skipped = max(0, len(history) - policy.max_messages)
    messages, warnings = list[HistoryMessage](), _too_many(len(history), policy) if skipped else []
    for index, given in enumerate(history[skipped:], start=skipped):
        reading = _Reading(field_path([HISTORY_FIELD, index]), policy, now)
        message = reading.read(given)
        messages += [message] if message else []
        warnings += reading.warnings
    return messages, warnings


class _Reading:
    """One message on its way in: `path` names it in errors and in the warnings that are collected."""

    def __init__(self, path: str, policy: HistoryPolicy, now: str) -> None:
        self._path, self._policy, self._now = path, policy, now
        self.warnings: list[TaskValidationWarning] = []

    def read(self, given: object) -> HistoryMessage | None:
        """Return the message as it is handed over, or None if it says nothing. Raises `TaskValidationError`."""
        fields = self._fields(given)
        role = self._role(fields["role"])
        content = self._content(fields["content"], role)
        if attachments := fields.get("attachments"):
            raise self._error(".attachments", "are not taken by this version", shown(attachments), "invalid_value")
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

    def _fields(self, given: object) -> Mapping[object, object]:
        if not isinstance(given, Mapping):
            raise self._error("", "must be an object with role and content", shown(given), "type_error")
        missing = [name for name in ("role", "content") if name not in given]
        if missing:
            raise self._error("", f"{' and '.join(missing)} missing", shown(given), "missing_field")
        return given

    def _role(self, given: object) -> HistoryRole:
        role = given.strip().lower() if isinstance(given, str) else ""
        if role not in self._policy.roles:
            reason = f"must be one of {', '.join(self._policy.roles)}"
            raise self._error(".role", reason, shown(given), "invalid_value")
        return role

    def _content(self, given: object, role: HistoryRole) -> str:
        if not isinstance(given, str):
            raise self._error(".content", "must be a string", shown(given), "type_error")
        content, most = given.strip(), self._policy.text_limit(role).hard_limit
        if most is not None and len(content) > most:
            reason = f"has {len(content):,} characters; of {role} {most:,} are allowed"
            raise self._error(".content", reason, shown(content), "too_long")
        return content

    def _encodable(self, text: str) -> str:
        count = count_unencodable(text)
        if not count:
            return text
        characters = "1 character was" if count == 1 else f"{count:,} characters were"
        said = f"{characters} replaced by U+FFFD: NUL and lone surrogates can't be stored."
        self._warn("replaced_characters", "content", said, "Send text that is valid Unicode, without NUL.")
        return encodable_text(text)

    def _timestamp(self, given: object) -> str:
        if given is None or given == "":
            self._warn("missing_timestamp", "timestamp", f"There was no timestamp; it was set to {self._now}.")
            return self._now
        if not isinstance(given, str) or not is_timestamp(given):
            said = f"The timestamp {shown(given)} is not ISO 8601; it was set to {self._now}."
            self._warn("invalid_timestamp", "timestamp", said, "Write it like 2025-10-29T13:30:00Z.")
            return self._now
        return given

    def _warn_of_cut(self, before: int, after: int) -> None:
        said = f"The text was cut from {before:,} to {after:,} characters, the mark included."
        self._warn("truncated", "content", said, "Say the essential in fewer words, or choose another history_policy.")

    def _warn(self, code: WarningCode, part: str, message: str, suggestion: str | None = None) -> None:
        self.warnings.append(
            TaskValidationWarning(code=code, field=f"{self._path}.{part}", message=message, suggestion=suggestion)
        )

    def _error(self, part: str, reason: str, value: str, error_type: TaskErrorType) -> TaskValidationError:
        return TaskValidationError(self._path + part, reason, value, error_type)


def _within_total_size(history: ConversationHistory, policy: HistoryPolicy) -> HandedOver:
    """Drop the oldest messages until the size is within the policy's, or only the fewest are left."""
    sizes = [message.size for message in history.messages]
    total, dropped = sum(sizes), 0
    if total <= policy.max_total_chars:
        return HandedOver(history, [])
    while total > policy.max_total_chars and len(sizes) - dropped > policy.min_messages:
        total -= sizes[dropped]
        dropped += 1
    done = f"the oldest {dropped} were dropped" if dropped else f"none of the latest {policy.min_messages} is dropped"
    warning = history_warning(
        "total_size",
        f"{len(sizes)} messages have a size of {sum(sizes):,} characters, over {policy.max_total_chars:,}: {done}.",
        suggestion="Hand over only the messages that matter to the task.",
    )
    return HandedOver(history.without_oldest(dropped), [warning])


def history_warning(
    code: WarningCode, message: str, *, severity: Severity = "medium", suggestion: str | None = None
) -> TaskValidationWarning:
    return TaskValidationWarning(
        code=code, field=HISTORY_FIELD, message=message, severity=severity, suggestion=suggestion
    )


def _too_many(given: int, policy: HistoryPolicy) -> list[TaskValidationWarning]:
    message = f"Of {given:,} messages only the latest {policy.max_messages} were looked at."
    return [history_warning("too_many_messages", message, suggestion="Hand over only recent messages that matter.")]


def _all_filtered(history: list[object]) -> list[TaskValidationWarning]:
    if not history:
        return []
    message = "No message has any content: the task is given no history."
    return [history_warning("all_filtered", message, severity="high")]
