"""Handing off a conversation to a task: validate, correct, and cut it by a policy (TSK-1, CTX-9, CTX-10, CTX-15).

Only the latest messages are read. An invalid message is an error, an empty one is skipped, and the text of any other is
trimmed and cut. With `relevant_to`, what matters less to that is left out. With that or `compress`, texts grow again as
far as there is room. Then the oldest are dropped until the rest is small enough. A warning describes each change to a
message, with its index in the caller's list, which is never modified. Texts that the model is to condense are cut here
too; their whole texts go along.

Relevance: an exchange is a user's message with all answers to it, or the messages before the first one. It stays whole:
an answer without its question is hard to understand. Each message is scored against a text, from 0 to 1, the score of
the best match (`features/tasks/histories.py`); an exchange has the score of its best message. The first and the last
exchange always stay. Of the others the best stay, as long as they reach the policy's `min_relevance` and have room.

A task inherits the latest messages of the policy's roles from its parent session. The transcript is read from its end,
some turns at a time, until there are enough messages. A warning says that others were left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from types import MappingProxyType
from typing import Literal, NamedTuple

from turnkeeper.features.tasks.rules.task_context import ConversationHistory, HistoryMessage, is_timestamp, moment_of
from turnkeeper.features.tasks.rules.text_room import CutText, grown_texts, read_attachments, room_for, with_numbers
from turnkeeper.models.errors import TaskErrorType, TaskValidationError, preview
from turnkeeper.models.settings.history_policy import HistoryPolicy, HistoryRole, resolve_policy
from turnkeeper.models.texts import count_unencodable, counted, encodable_text
from turnkeeper.models.transcript.attachments import MAX_ATTACHMENTS, MAX_CONTENT_BYTES, Attachment, with_names
from turnkeeper.models.transcript.conversation import (
    ConversationMessage,
    Severity,
    TaskValidationWarning,
    UserStep,
    WarningCode,
)
from turnkeeper.models.transcript.notes import earlier_try_note, ending_note, joined_prompts
from turnkeeper.models.wire import Frozen, field_path

Rank = Callable[[str, Sequence[str]], Sequence[float]]
"""Scores texts against a query: 0 to 1 each, 1 for the best match; all 0 if none has a word of it."""

SCORE_DIGITS = 3


class ExchangeRelevance(Frozen):
    """An exchange of the conversation: its messages by their indexes in the caller's list, and whether it stayed.

    `irrelevant`: its score is under `min_relevance`. `no_room`: better ones fill the limits of the policy.
    """

    first: int
    last: int
    score: float
    stays: bool
    reason: Literal["first", "last", "relevant", "irrelevant", "no_room"]


def select_exchanges(
    messages: Sequence[HistoryMessage], scores: Sequence[float], policy: HistoryPolicy, *, indexes: Sequence[int]
) -> list[ExchangeRelevance]:
    """Return the exchanges of at least one message, in order. `indexes` are those of the messages in the caller's list.

    >>> def says(role: str) -> HistoryMessage:
    ...     return HistoryMessage(role=role, content="x", timestamp="", truncated=False, original_length=1)
    >>> messages = [says(role) for role in ("user", "assistant", "user", "user", "assistant")]
    >>> exchanges = select_exchanges(messages, [0, 0, 0.1, 0, 1.0], HistoryPolicy(), indexes=range(5))
    >>> [(exchange.first, exchange.last, exchange.score, exchange.reason) for exchange in exchanges]
    [(0, 1, 0.0, 'first'), (2, 2, 0.1, 'irrelevant'), (3, 4, 1.0, 'last')]
    """
    starts = [index for index, message in enumerate(messages) if index == 0 or message.role == "user"]
    spans = [range(start, end) for start, end in pairwise([*starts, len(messages)])]
    best = [max(scores[index] for index in span) for span in spans]
    staying = {0, len(spans) - 1}
    messages_left = policy.max_messages - sum(len(spans[number]) for number in staying)
    chars_left = policy.max_total_chars - sum(_size(messages, spans[number]) for number in staying)
    # The best first; of equal ones, the latest.
    for number in sorted(range(len(spans)), key=lambda number: (-best[number], -number)):
        size = _size(messages, spans[number])
        has_room = len(spans[number]) <= messages_left and size <= chars_left
        if number not in staying and best[number] >= policy.min_relevance and has_room:
            staying.add(number)
            messages_left, chars_left = messages_left - len(spans[number]), chars_left - size
    return [
        ExchangeRelevance(
            first=indexes[span[0]],
            last=indexes[span[-1]],
            score=round(best[number], SCORE_DIGITS),
            stays=number in staying,
            reason=_reason(number, len(spans), best[number], policy, stays=number in staying),
        )
        for number, span in enumerate(spans)
    ]


def _size(messages: Sequence[HistoryMessage], span: range) -> int:
    return sum(messages[index].size for index in span)


def _reason(
    number: int, count: int, score: float, policy: HistoryPolicy, *, stays: bool
) -> Literal["first", "last", "relevant", "irrelevant", "no_room"]:
    if number == 0:
        return "first"
    if number == count - 1:
        return "last"
    if stays:
        return "relevant"
    return "no_room" if score >= policy.min_relevance else "irrelevant"


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
        if history:
            message = "No message has any content: the task is given no history."
            warnings.append(history_warning("all_filtered", message, severity="high"))
        return HandOff(None, warnings)
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
    if not skipped:
        return messages, notes, []
    text = f"The history has {len(history):,} messages, truncating to most recent {policy.max_read}."
    advice = "Hand over only recent messages that matter."
    return messages, notes, [history_warning("too_many_messages", text, suggestion=advice)]


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


MAX_PAGES = 4
"""About 4 MB of transcript. From a longer conversation a task inherits only the newest part, with a warning (TSK-2)."""

SPEAKERS: tuple[HistoryRole, ...] = ("user", "assistant")
"""The roles in a session."""


@dataclass(frozen=True)
class Inheritance:
    """The inherited messages, as far as the parent's conversation has been read; empty at first.

    >>> at = datetime.fromisoformat("2026-01-01T00:00:00Z")
    >>> turn = ConversationMessage(
    ...     id="m1", timestamp=at, user_timestamp=at, revision=2, user_message="Hi", agent_message="Hello!")
    >>> inherited = Inheritance(HistoryPolicy(max_messages=1)).with_older([turn], has_older=False)
    >>> [message["content"] for message in inherited.messages], inherited.is_enough, inherited.is_partial
    (['Hello!'], True, True)
    """

    policy: HistoryPolicy
    messages: Sequence[Mapping[str, object]] = ()
    """Messages of the policy's roles, oldest first, at most the policy's `max_read`."""
    seen: int = 0
    """Number of messages of any role, in the turns that were read."""
    has_older: bool = False
    """Whether there are turns that were not read."""
    retries: str | None = None
    """The id of the turn that the oldest turn read so far retries."""

    def with_older(self, turns: Iterable[ConversationMessage], *, has_older: bool) -> "Inheritance":
        """Add the turns right before those read so far; `has_older`: there are earlier ones."""
        turns = list(turns)
        older = messages_in(turns, retried=self.retries, with_notes="user" in self.policy.roles)
        messages = [*(message for message in older if message["role"] in self.policy.roles), *self.messages]
        return replace(
            self,
            messages=messages[-self.policy.max_read :],
            seen=self.seen + len(older),
            has_older=has_older,
            retries=turns[0].retries if turns else self.retries,
        )

    @property
    def is_enough(self) -> bool:
        """Whether there are as many messages as the policy allows, or as exist."""
        return len(self.messages) >= self.policy.max_read or not self.has_older

    @property
    def is_partial(self) -> bool:
        """Whether messages were left out: earlier ones, or those of other roles."""
        return self.has_older or self.seen > len(self.messages)

    @property
    def warnings(self) -> list[TaskValidationWarning]:
        """What was inherited, if messages were left out (TSK-2)."""
        if not self.is_partial:
            return []
        roles = ", ".join([role for role in self.policy.roles if role in SPEAKERS] or self.policy.roles)
        part = f"the latest {len(self.messages):,} messages" if self.messages else "no messages"
        message = f"Of the parent's conversation {part} of {roles} were taken."
        advice = "Choose a history_policy with other max_messages or roles to inherit others."
        too_many = history_warning("too_many_messages", message, suggestion=advice)
        nothing = "No message is left: the task is given no history."
        return [too_many] if self.messages else [too_many, history_warning("all_filtered", nothing, severity="high")]


def messages_in(
    turns: Sequence[ConversationMessage], *, retried: str | None = None, with_notes: bool = True
) -> list[dict[str, object]]:
    """Return the messages in `turns`, oldest first: of each the user's prompt, with steering ones, and the answer.

    In place of a missing answer there is a note (CTX-17). Thinking, tool calls, turns that the vendor refused and those
    whose place a retry took are left out, but for a note of what those had done. `retried`: the id of the turn that the
    next one retries. `with_notes`: notes are about prompts, and take the place of answers where there are none.
    """
    messages = list[dict[str, object]]()
    retried_ids = [*(turn.retries for turn in turns[1:]), retried]
    for turn, retried_id in zip(turns, retried_ids, strict=False):
        if turn.is_error and turn.id == retried_id:
            note = earlier_try_note(turn) if with_notes else None
            messages += [_message("assistant", note, turn.agent_timestamp or turn.timestamp)] if note else []
        elif turn.error_type != "refusal":
            messages += _messages_of(turn, with_notes=with_notes)
    return messages


def _messages_of(turn: ConversationMessage, *, with_notes: bool) -> Iterator[dict[str, object]]:
    attachments, texts = list(turn.attachments), list[str]()
    for step in (step for step in turn.steps if isinstance(step, UserStep)):
        together = [*attachments, *step.attachments]
        fits = len(together) <= MAX_ATTACHMENTS and sum(one.bytes or 0 for one in together) <= MAX_CONTENT_BYTES
        attachments = together if fits else attachments
        texts.append(step.content if fits else with_names(step.content, step.attachments))
    text = joined_prompts(turn.user_message, texts)
    yield _message("user", text, turn.user_timestamp, attachments)
    answer = turn.agent_message
    if answer is None and with_notes:
        answer = ending_note(turn)
    if answer is not None:
        yield _message("assistant", answer, turn.agent_timestamp or turn.timestamp)


def _message(
    role: HistoryRole, content: str, timestamp: datetime, attachments: Sequence[Attachment] = ()
) -> dict[str, object]:
    message: dict[str, object] = {"role": role, "content": content, "timestamp": timestamp.isoformat()}
    return {**message, "attachments": list(attachments)} if attachments else message
