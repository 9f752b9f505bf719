"""Handing off a conversation to a task: validate, correct, and cut it by a policy (CTX-9, CTX-10, CTX-15).

Only the latest messages are read. An invalid message is an error, an empty one is skipped, and the text of any other is
trimmed and cut. With `relevant_to`, what matters less to that is left out. With that or `compress`, texts grow again as
far as there is room. Then the oldest are dropped until the rest is small enough. A warning describes each change to a
message, with its index in the caller's list, which is never modified. Texts that the model is to condense are cut here
too; their whole texts go along.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from turnkeeper.features.tasks.rules.relevance import ExchangeRelevance, Rank, select_exchanges
from turnkeeper.features.tasks.rules.task_context import ConversationHistory, HistoryMessage, is_timestamp, moment_of
from turnkeeper.features.tasks.rules.text_room import CutText, grown_texts, read_attachments, room_for, with_numbers
from turnkeeper.models.bounds import count_unencodable, encodable_text
from turnkeeper.models.errors import TaskErrorType, TaskValidationError, preview
from turnkeeper.models.invalid_values import field_path
from turnkeeper.models.settings.history_policy import HistoryPolicy, HistoryRole, resolve_policy
from turnkeeper.models.texts.counted import counted
from turnkeeper.models.transcript.task_view import Severity, TaskValidationWarning, WarningCode

PROMPT_TOKENS = 20_000
"""Upper bound of the first prompt's estimated tokens (TSK-7)."""

HISTORY_FIELD = "conversation_history"
"""The parameter of the conversation: prefix of all field paths here."""


class HandedOver(NamedTuple):
    """The history that is handed off, or `None` if nothing is left, and warnings about corrections."""

    history: ConversationHistory | None
    warnings: list[TaskValidationWarning]


class HandOff(NamedTuple):
    """A history that is handed off, with what is only known while it is made."""

    history: ConversationHistory | None
    warnings: list[TaskValidationWarning]
    wholes: Sequence[str] = ()
    """The whole text of each message of the history, before it was cut; it may be unencodable."""
    condensed_chars: Sequence[int] = ()
    """How long each text may be if the model condenses it."""
    relevance: Sequence[ExchangeRelevance] = ()
    """Of each exchange that was read, if they were ranked."""
    contents: Mapping[str, bytes] = MappingProxyType({})
    """The contents of the messages' attachments, by hash."""


def validate_conversation_history(
    history: object, policy: HistoryPolicy | str, now: datetime | str, *, rank: Rank | None = None
) -> HandedOver:
    """Validate `history` and cut it by `policy` (CTX-9 to CTX-11).

    `history` is a list of `{role, content, timestamp?, attachments?}`. `policy` may be a preset's name. `now` replaces
    missing timestamps; a string is stored unchanged. `None` and an empty list mean no history, without a warning. A
    policy with `relevant_to` needs `rank`.

    Raises `TaskValidationError` for the first invalid message.

    >>> messages = [{"role": " User ", "content": "x" * 200, "timestamp": "2025-10-29T13:20:15"}]
    >>> history, warnings = validate_conversation_history(messages, "keep_assistant", "2025-10-29T13:30:00Z")
    >>> history.messages[0].role, history.messages[0].content[148:], history.messages[0].original_length
    ('user', 'xx... [truncated]', 200)
    >>> [(warning.code, warning.field) for warning in warnings]
    [('truncated', 'conversation_history[0].content')]
    """
    hand_off = hand_off_history(history, resolve_policy(policy), now, description="", rank=rank)
    return HandedOver(hand_off.history, hand_off.warnings)


def hand_off_history(
    history: object,
    policy: HistoryPolicy,
    now: datetime | str,
    *,
    description: str,
    rank: Rank | None,
    max_tokens: int = PROMPT_TOKENS,
    has_stored_contents: bool = False,
) -> HandOff:
    """Do what `validate_conversation_history` says; `description` is the task's.

    `max_tokens` is what its first prompt has room for: where texts are ranked or condensed, they grow up to that.
    `has_stored_contents`: attachments may refer to contents of the session that the history is inherited from.

    Raises `TaskValidationError`, and `ValueError` for a policy that ranks messages without `rank`.
    """
    collection_time = now if isinstance(now, str) else now.isoformat()
    moment_of(collection_time)  # raises for a bad one before any message gets it
    if history is None:
        return HandOff(None, [])
    if not isinstance(history, list):
        raise TaskValidationError(HISTORY_FIELD, "must be a list of messages", preview(history), "type_error")
    readings, notes, warnings = _read_latest(history, policy, collection_time, has_stored_contents=has_stored_contents)
    relevance: list[ExchangeRelevance] = []
    if readings and policy.ranks:
        readings, relevance, leaving_out = _relevant(readings, policy, policy.query(description), rank)
        warnings += leaving_out
    lengths = [len(reading.message.content) for reading in readings]
    if policy.ranks or policy.compress == "summarise":
        readings, lengths = _grown(readings, relevance, policy, max_tokens)
    readings = [_with_cut_warning(reading, policy) for reading in readings]
    notes |= {reading.position: reading.warnings for reading in readings}
    warnings += [warning for index in sorted(notes) for warning in notes[index]]
    if not readings:
        return HandOff(None, [*warnings, *_all_filtered(history)])
    messages = with_numbers([reading.message for reading in readings])
    whole = ConversationHistory.of(messages, collection_time=collection_time)
    left_out = sum(exchange.last - exchange.first + 1 for exchange in relevance if not exchange.stays)
    whole = whole.model_copy(update={"left_out": left_out}) if left_out else whole
    latest, dropping = _within_total_size(whole, policy)
    dropped = len(readings) - len(latest.messages) if latest else 0
    wholes = [reading.whole for reading in readings][dropped:]
    contents = {name: content for reading in readings for name, content in reading.contents.items()}
    return HandOff(latest, [*warnings, *dropping], wholes, lengths[dropped:], relevance, contents)


class _Read(NamedTuple):
    """A message that was read: its position in the caller's list, its whole text and contents, and warnings."""

    position: int
    message: HistoryMessage
    whole: str
    contents: Mapping[str, bytes]
    warnings: list[TaskValidationWarning]


def _read_latest(
    history: list[object], policy: HistoryPolicy, now: str, *, has_stored_contents: bool
) -> tuple[list[_Read], dict[int, list[TaskValidationWarning]], list[TaskValidationWarning]]:
    """Return the messages with content, the warnings about each of the others, and about all of them."""
    skipped = max(0, len(history) - policy.max_read)
    messages, notes = list[_Read](), dict[int, list[TaskValidationWarning]]()
    for index, item in enumerate(history[skipped:], start=skipped):
        reading = _Reading(field_path([HISTORY_FIELD, index]), policy, now, has_stored_contents=has_stored_contents)
        message = reading.read(item)
        if message:
            messages.append(_Read(index, message, reading.whole, reading.contents, reading.warnings))
        else:
            notes[index] = reading.warnings
    return messages, notes, _too_many(len(history), policy) if skipped else []


def _relevant(
    readings: Sequence[_Read], policy: HistoryPolicy, query: str, rank: Rank | None
) -> tuple[list[_Read], list[ExchangeRelevance], list[TaskValidationWarning]]:
    """Return the messages that matter to `query`, what was decided of each exchange, and a warning about the others."""
    if rank is None:
        raise ValueError("a policy with relevant_to needs a function that ranks messages")
    scores = rank(query, [encodable_text(reading.whole) for reading in readings])
    exchanges = select_exchanges(
        [reading.message for reading in readings], scores, policy, indexes=[reading.position for reading in readings]
    )
    staying = {index for exchange in exchanges if exchange.stays for index in range(exchange.first, exchange.last + 1)}
    # The first and the last exchange alone may be too many.
    remaining = [reading for reading in readings if reading.position in staying][-policy.max_messages :]
    return remaining, exchanges, _left_out(exchanges, len(readings) - len(remaining), len(readings), policy, query)


def _left_out(
    exchanges: Sequence[ExchangeRelevance], count: int, total: int, policy: HistoryPolicy, query: str
) -> list[TaskValidationWarning]:
    if not count:
        return []
    scores = {
        reason: [exchange.score for exchange in exchanges if exchange.reason == reason]
        for reason in ("irrelevant", "no_room")
    }
    reasons = [
        f"{len(scores[reason])} {why}, scored {min(scores[reason]):.2f} to {max(scores[reason]):.2f}"
        for reason, why in (
            ("irrelevant", f"under a relevance of {policy.min_relevance:g}"),
            ("no_room", "beyond max_messages or max_total_chars"),
        )
        if scores[reason]
    ]
    message = f"{count:,} of {total:,} messages were left out, since others matter more to {preview(query)}" + (
        f": of {len(exchanges):,} exchanges {' and '.join(reasons)}." if reasons else "."
    )
    return [history_warning("left_out", message, suggestion="Lower min_relevance, or say in relevant_to what matters.")]


def _grown(
    readings: Sequence[_Read], relevance: Sequence[ExchangeRelevance], policy: HistoryPolicy, max_tokens: int
) -> tuple[list[_Read], list[int]]:
    """Return the messages with as much of their texts as there is room for, and the lengths that texts may have."""
    texts = [CutText(one.message, one.whole, policy.text_limit(one.message.role)) for one in readings]
    ranks = [
        next((exchange.score for exchange in relevance if exchange.first <= one.position <= exchange.last), 0.0)
        for one in readings
    ]
    condense = policy.compress == "summarise"
    room = room_for(texts, policy, max_tokens=max_tokens)
    lengths = grown_texts(texts, ranks, room=room, condense=condense)
    grown = list[_Read]()
    for one, text, length in zip(readings, texts, lengths, strict=True):
        is_whole = length >= len(text.whole)
        if not text.cut_chars or (condense and not is_whole):
            grown.append(one)
            continue
        update = {"content": encodable_text(text.cut_at(length)), "truncated": not is_whole}
        grown.append(one._replace(message=one.message.model_copy(update=update)))
    return grown, lengths


def _with_cut_warning(reading: _Read, policy: HistoryPolicy) -> _Read:
    """Return the message with a warning if its text is cut."""
    if not reading.message.truncated:
        return reading
    before, after = len(reading.whole), len(reading.message.content)
    code: WarningCode = "truncated"
    suggestion: str | None = "Say the essential in fewer words, or choose another history_policy."
    message = f"The text was cut from {before:,} to {after:,} characters, the mark included."
    if policy.compress == "summarise":
        code, suggestion = "condensed", None
        message = (
            f"The model will condense the text of {before:,} characters when the task starts; if it can't, the text is "
            f"cut to {after:,}."
        )
    field = f"{field_path([HISTORY_FIELD, reading.position])}.content"
    warning = TaskValidationWarning(code=code, field=field, message=message, suggestion=suggestion)
    return reading._replace(warnings=[warning, *reading.warnings])


class _Reading:
    """Reads one message and collects warnings; `path` names the message in them and in errors."""

    def __init__(self, path: str, policy: HistoryPolicy, now: str, *, has_stored_contents: bool) -> None:
        self._path, self._policy, self._now = path, policy, now
        self._has_stored_contents = has_stored_contents
        self.warnings: list[TaskValidationWarning] = []
        self.whole = ""
        """The text before it was cut; it may be unencodable."""
        self.contents: Mapping[str, bytes] = {}
        """The contents of the attachments, by hash."""

    def read(self, item: object) -> HistoryMessage | None:
        """Return the message to hand off, or `None` if it is empty. Raises `TaskValidationError`."""
        fields = self._fields(item)
        role = self._role(fields["role"])
        content = self._content(fields["content"], role)
        attachments, self.contents = read_attachments(
            fields.get("attachments"),
            path=f"{self._path}.attachments",
            has_stored_contents=self._has_stored_contents,
        )
        if not content and not attachments:
            self._warn("empty_content", "content", "The message has no content and was skipped.")
            return None
        limit = self._policy.text_limit(role)
        text, self.whole = limit.cut(content), content
        truncated = len(content) > limit.max_chars
        text = self._encodable(text)
        return HistoryMessage(
            role=role,
            content=text,
            timestamp=self._timestamp(fields.get("timestamp")),
            truncated=truncated,
            original_length=len(content),
            attachments=attachments,
        )

    def _fields(self, item: object) -> Mapping[object, object]:
        if not isinstance(item, Mapping):
            raise self._error("", "must be an object with role and content", preview(item), "type_error")
        missing = [name for name in ("role", "content") if name not in item]
        if missing:
            reason = " and ".join(f"missing required field {name!r}" for name in missing)
            raise self._error("", reason, preview(item), "missing_field")
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
        were = "was" if count == 1 else "were"
        message = f"{counted(count, 'character')} {were} replaced by U+FFFD: NUL and lone surrogates can't be stored."
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
    message = f"The history has {count:,} messages, truncating to most recent {policy.max_read}."
    return [history_warning("too_many_messages", message, suggestion="Hand over only recent messages that matter.")]


def _all_filtered(history: list[object]) -> list[TaskValidationWarning]:
    if not history:
        return []
    message = "No message has any content: the task is given no history."
    return [history_warning("all_filtered", message, severity="high")]
