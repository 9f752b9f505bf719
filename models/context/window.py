"""Which messages the model still sees, once there are too many (seed 2, CTX-1 to CTX-4).

How it works. Messages are first cut into *groups*: an assistant message with tool calls and the results that follow
it are one group, every other message is a group of its own. From there on only whole groups are kept or evicted, so
no call can lose its result. Three kinds of group always stay: those that reach into the first `preserve_first_n`
messages (the head), those that reach into the last `preserve_last_n` (the tail), and those that hold a pinned
message. What room they leave within `max_messages` goes to the latest of the other groups, without gaps: the first
one that does not fit ends it.

That one rule gives all of CTX-2 and CTX-3. Where the settings, or the growth of head and tail to whole groups, leave
no room, only head and tail stay; where head and tail meet, there is nothing else to evict.

Messages are read in three forms, told apart by their fields alone: Anthropic content blocks (`tool_use`,
`tool_result`), OpenAI `tool_calls` and `role: tool`, and our own `ModelMessage`. They are never modified.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, Self, TypeVar

from pydantic import Field, model_validator

from turnkeeper.models.tokens import estimate_tokens, field_of
from turnkeeper.models.wire import Change, Frozen, Strict

MessageT = TypeVar("MessageT")
"""Anything with a `role` and a `content`, as fields or as keys."""

BOTH_FORMS = "max_conversation_messages is short for conversation.max_messages: give only one of them"

EARLIER_EVICT_BLOCK = 10
"""Default of `evict_block` for sessions that were started under rules 1 and 2."""

LEAST_HALVED = 4
"""A window is halved no further: below, a session would remember nothing for one message that was too long."""


class ConversationHistoryConfig(Strict):
    """How much of a conversation the model sees (CTX-1). All numbers count messages."""

    max_messages: int = Field(100, ge=0)
    """Beyond so many, messages are evicted; 0 turns trimming off."""
    summarize_on_trim: bool = False
    """Whether what is evicted is summarised first, at the price of a model call (CTX-5)."""
    preserve_first_n: int = Field(1, ge=0)
    """So many at the beginning always stay."""
    preserve_last_n: int = Field(20, ge=0)
    """So many at the end always stay."""
    evict_block: int = Field(35, ge=0)
    """So many go at once in a session, so that the prompt's prefix stays the same for many calls (CTX-4).

    Measured in long sessions at the vendors' cache rules: with 35, input costs 40 % less than with 10.
    """

    def with_earlier_defaults(self) -> "ConversationHistoryConfig":
        """Return the window of a session that was started while other defaults held (SES-19).

        >>> ConversationHistoryConfig().with_earlier_defaults().evict_block
        10
        >>> ConversationHistoryConfig(evict_block=35).with_earlier_defaults().evict_block
        35
        """
        if "evict_block" in self.model_fields_set:
            return self
        return self.model_copy(update={"evict_block": EARLIER_EVICT_BLOCK})


class HistoryChange(ConversationHistoryConfig, Change):
    """Settings of the window to change; the others stay as they are."""


class ConversationMetrics(Frozen):
    """What a trim came to. `estimated_tokens` is of what was kept."""

    total_messages: int
    preserved_messages: int
    evicted_messages: int
    estimated_tokens: int


@dataclass(frozen=True)
class TrimResult(Generic[MessageT]):
    """What stays and what goes, both in their old order. `warning` is a sentence about settings that leave no room."""

    trimmed: list[MessageT]
    evicted: list[MessageT]
    metrics: ConversationMetrics
    warning: str | None = None

    @property
    def warned(self) -> bool:
        """Whether the settings leave no room to choose from."""
        return self.warning is not None


@dataclass(frozen=True)
class ConversationWindow:
    """A sliding window over a conversation of any form (CTX-2)."""

    config: ConversationHistoryConfig

    def trim(self, messages: Sequence[MessageT]) -> TrimResult[MessageT]:
        """Tell the messages that stay from those that go; the messages themselves are left as they are.

        `evict_block` plays no part here: it is the session's (`eviction_config`).

        >>> window = ConversationWindow(ConversationHistoryConfig(max_messages=3, preserve_last_n=1))
        >>> result = window.trim([{"role": "user", "content": text} for text in "abcde"])
        >>> [message["content"] for message in result.trimmed], [message["content"] for message in result.evicted]
        (['a', 'd', 'e'], ['b', 'c'])
        """
        kept, warning = kept_indexes(messages, self.config)
        staying = set(kept)
        trimmed = [messages[index] for index in kept]
        evicted = [message for index, message in enumerate(messages) if index not in staying]
        metrics = ConversationMetrics(
            total_messages=len(messages),
            preserved_messages=len(trimmed),
            evicted_messages=len(evicted),
            estimated_tokens=estimate_tokens(trimmed),
        )
        return TrimResult(trimmed, evicted, metrics, warning)


def kept_indexes(
    messages: Sequence[object], config: ConversationHistoryConfig, *, pinned: AbstractSet[int] = frozenset()
) -> tuple[list[int], str | None]:
    """Choose the indexes that stay, ascending, and warn in a sentence where the settings leave no room (CTX-2, CTX-3).

    Messages at the `pinned` indexes stay whatever happens and count within `max_messages` (CTX-4). More than
    `max_messages` stay only where head, tail and pinned messages alone are more. Linear in the number of messages.

    >>> messages = [{"role": "user", "content": "?"}] * 5
    >>> kept_indexes(messages, ConversationHistoryConfig(max_messages=3, preserve_last_n=1))
    ([0, 3, 4], None)
    >>> kept_indexes(messages, ConversationHistoryConfig(max_messages=3, preserve_last_n=1), pinned={2})
    ([0, 2, 4], None)
    """
    total = len(messages)
    if config.max_messages == 0 or total <= config.max_messages:
        return list(range(total)), None
    groups = message_groups(messages)
    middle = [group for group in groups if not _is_preserved(group, total, config)]
    evictable = [group for group in middle if pinned.isdisjoint(group)]
    room = config.max_messages - total + sum(map(len, evictable))
    evicted = {index for group in _beyond(room, evictable) for index in group}
    kept = [index for index in range(total) if index not in evicted]
    return kept, _warning(config, total, head_meets_tail=not middle)


def eviction_config(config: ConversationHistoryConfig) -> ConversationHistoryConfig:
    """Lower the cap by a block: what a session that has overflowed `config` trims to (CTX-4).

    `max_messages` becomes `max(max_messages - evict_block, preserve_first_n + preserve_last_n)`, but never 0 from
    another number: 0 means off. Drop the warning of a trim to it: the lowered cap may leave no room where the user's
    own settings do.

    >>> eviction_config(ConversationHistoryConfig()).max_messages
    65
    """
    if config.max_messages == 0:
        return config
    preserved = config.preserve_first_n + config.preserve_last_n
    lowered = max(config.max_messages - config.evict_block, preserved, 1)
    return config.model_copy(update={"max_messages": lowered})


def halved_config(config: ConversationHistoryConfig, cap: int) -> ConversationHistoryConfig:
    """Shrink a window to `cap` messages, tail and block in proportion; a smaller one stays as it is (CTX-7).

    >>> halved = halved_config(ConversationHistoryConfig(), 50)
    >>> halved.max_messages, halved.preserve_last_n, halved.evict_block
    (50, 12, 12)
    >>> halved_config(ConversationHistoryConfig(max_messages=30), 50).max_messages
    30
    """
    if 0 < config.max_messages <= cap:
        return config
    share = max(1, cap // 4)
    return config.model_copy(
        update={
            "max_messages": cap,
            "preserve_last_n": min(config.preserve_last_n, share),
            "evict_block": min(config.evict_block, share),
        }
    )


def halved_cap(config: ConversationHistoryConfig, message_count: int) -> int:
    """Halve what the model sees now, `message_count` messages; down to `LEAST_HALVED`, or the window's own cap (CTX-7).

    >>> halved_cap(ConversationHistoryConfig(max_messages=0), 80), halved_cap(ConversationHistoryConfig(), 6)
    (40, 4)
    """
    seen = min(config.max_messages or message_count, message_count)
    half = max(LEAST_HALVED, seen // 2)
    return min(config.max_messages or half, half)


def no_room_warning(config: ConversationHistoryConfig) -> str | None:
    """Say that head and tail leave nothing to choose from; `None` if they do not (CTX-2).

    >>> no_room_warning(ConversationHistoryConfig(max_messages=10))
    'preserve_first_n=1 and preserve_last_n=20 leave no room within max_messages=10: only these are kept'
    """
    if not 0 < config.max_messages <= config.preserve_first_n + config.preserve_last_n:
        return None
    return f"{_preserved(config)} leave no room within max_messages={config.max_messages}: only these are kept"


def message_groups(messages: Sequence[object]) -> list[range]:
    """Cut `messages` into the groups that stay or go as one: calls with their results, all else alone (CTX-3).

    A result belongs to the latest message that asked for it by id, with whatever came between; one whose id nobody
    asked for belongs to the calls it directly follows; failing that it stands alone.

    >>> message_groups([
    ...     {"role": "user", "content": "Which day is it?"},
    ...     {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}, {"id": "2"}]},
    ...     {"role": "tool", "content": "Monday", "tool_call_id": "1"},
    ...     {"role": "tool", "content": "May", "tool_call_id": "2"},
    ...     {"role": "assistant", "content": "A Monday in May."},
    ... ])
    [range(0, 1), range(1, 4), range(4, 5)]
    """
    starts: list[int] = []
    asked_at: dict[str | int | None, int] = {}
    being_answered: int | None = None
    for index, message in enumerate(messages):
        asked, answered = _asked_ids(message), _answered_ids(message)
        origins = (asked_at.get(call_id, being_answered) if call_id else being_answered for call_id in answered)
        start = min((origin for origin in origins if origin is not None), default=index)
        while starts and starts[-1] > start:
            starts.pop()
        if start == index:
            starts.append(index)
        asked_at.update(dict.fromkeys(asked, index))
        if not answered:
            being_answered = index if asked else None
    return [range(start, stop) for start, stop in pairwise([*starts, len(messages)])]


def history_config(settings: Mapping[str, object]) -> ConversationHistoryConfig:
    """Read the window's settings in either form a settings file may use; without any, the defaults stand (CTX-1).

    The full form is `conversation: {...}`, the shorthand `max_conversation_messages: 100`. Other keys of `settings`
    are not looked at.

    Raises:
        pydantic.ValidationError: a negative number, an unknown key, or both forms at once. It names the key.

    >>> history_config({"max_conversation_messages": 30}).max_messages
    30
    >>> history_config({"conversation": {"max_messages": 30, "preserve_last_n": 5}}).preserve_last_n
    5
    """
    return _EitherForm.model_validate(dict(settings)).config


class _EitherForm(Frozen):
    """The shorthand or the full form, as a person wrote it."""

    max_conversation_messages: int | None = Field(None, ge=0)
    conversation: ConversationHistoryConfig | None = None

    @model_validator(mode="after")
    def _not_both(self) -> Self:
        if self.max_conversation_messages is not None and self.conversation is not None:
            raise ValueError(BOTH_FORMS)
        return self

    @property
    def config(self) -> ConversationHistoryConfig:
        if self.max_conversation_messages is not None:
            return ConversationHistoryConfig(max_messages=self.max_conversation_messages)
        return self.conversation or ConversationHistoryConfig()


def _is_preserved(group: range, total: int, config: ConversationHistoryConfig) -> bool:
    """Return whether `group` reaches into the head or the tail, which so grow to whole groups."""
    return group.start < config.preserve_first_n or group.stop > total - config.preserve_last_n


def _beyond(room: int, groups: Sequence[range]) -> Sequence[range]:
    """Return the oldest of `groups`: what is left once the latest have filled `room` messages without a gap."""
    for count in range(len(groups), 0, -1):
        room -= len(groups[count - 1])
        if room < 0:
            return groups[:count]
    return ()


def _warning(config: ConversationHistoryConfig, total: int, *, head_meets_tail: bool) -> str | None:
    if head_meets_tail:
        return f"{_preserved(config)} keep all {total} messages, over max_messages={config.max_messages}"
    return no_room_warning(config)


def _preserved(config: ConversationHistoryConfig) -> str:
    return f"preserve_first_n={config.preserve_first_n} and preserve_last_n={config.preserve_last_n}"


def _asked_ids(message: object) -> list[str | int | None]:
    """List the ids of the tool calls `message` makes, in any form; None stands for a call without one."""
    uses = _blocks(message, "tool_use")
    return [_id_in(call, "id") for call in (*_items(field_of(message, "tool_calls")), *uses)]


def _answered_ids(message: object) -> list[str | int | None]:
    """List the ids of the calls `message` brings results of, in any form; None stands for a result without one."""
    if field_of(message, "role") == "tool":
        return [_id_in(message, "call_id") or _id_in(message, "tool_call_id")]
    return [_id_in(block, "tool_use_id") for block in _blocks(message, "tool_result")]


def _id_in(holder: object, name: str) -> str | int | None:
    found = field_of(holder, name)
    return found if isinstance(found, str | int) and found else None


def _blocks(message: object, kind: str) -> list[object]:
    return [block for block in _items(field_of(message, "content")) if field_of(block, "type") == kind]


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()
