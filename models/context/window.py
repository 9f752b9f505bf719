"""The sliding window: which messages the model still sees when there are too many (CTX-1 to CTX-4).

Messages are divided into *groups*: an assistant message with tool calls and the results that follow it are one group,
every other message is a group of its own. Only whole groups are kept or evicted, so no call loses its result. Three
kinds of group always stay: those that reach into the first `preserve_first_n` messages (the head), those that reach
into the last `preserve_last_n` (the tail), and those with a pinned message. The rest of `max_messages` goes to the
latest other groups, without gaps: the first one that does not fit ends it.

This rule covers all of CTX-2 and CTX-3. If head and tail, extended to whole groups, leave no room, only they stay; if
they meet, nothing can be evicted.

Messages can have three forms, recognised by their fields: Anthropic content blocks (`tool_use`, `tool_result`), OpenAI
`tool_calls` and `role: tool`, and our own `ModelMessage`. They are never modified.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, Self, TypeVar

from pydantic import Field, model_validator

from turnkeeper.models.texts import estimate_tokens, get_field
from turnkeeper.models.wire import Change, Frozen, Strict

MessageT = TypeVar("MessageT")
"""Anything with a `role` and a `content`, as fields or as keys."""

BOTH_FORMS = "max_conversation_messages is short for conversation.max_messages: give only one of them"


class ConversationHistoryConfig(Strict):
    """How much of a conversation the model sees (CTX-1). All numbers count messages."""

    max_messages: int = Field(100, ge=0)
    """The most messages that the model sees; beyond it, the oldest are evicted. 0: no limit."""
    summarize_on_trim: bool = False
    """Whether evicted messages are summarised, at the price of a model call (CTX-5); at most one for every 10
    messages."""
    preserve_first_n: int = Field(1, ge=0)
    """Messages at the beginning that are always sent."""
    preserve_last_n: int = Field(20, ge=0)
    """Messages at the end that are always sent."""
    evict_block: int = Field(35, ge=0)
    """Messages that are evicted at once, so that the vendor's prompt cache stays valid for many calls (CTX-4).

    With 35, input costs 40 % less than with 10: measured in long sessions, by the vendors' cache rules.
    """


class HistoryChange(ConversationHistoryConfig, Change):
    """Settings of the window to change; the others stay as they are."""


class ConversationMetrics(Frozen):
    """Counts of a trim. `estimated_tokens` is that of the preserved messages."""

    total_messages: int
    preserved_messages: int
    evicted_messages: int
    estimated_tokens: int


@dataclass(frozen=True)
class TrimResult(Generic[MessageT]):
    """Messages that stay and that go, in their order. `warning` says that the settings leave no room."""

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
        """Divide `messages` into those that stay and those that go.

        `evict_block` has no effect here; sessions use it (`eviction_config`).

        >>> window = ConversationWindow(ConversationHistoryConfig(max_messages=3, preserve_last_n=1))
        >>> result = window.trim([{"role": "user", "content": text} for text in "abcde"])
        >>> [message["content"] for message in result.trimmed], [message["content"] for message in result.evicted]
        (['a', 'd', 'e'], ['b', 'c'])
        """
        indexes, warning = kept_indexes(messages, self.config)
        preserved = set(indexes)
        trimmed = [messages[index] for index in indexes]
        evicted = [message for index, message in enumerate(messages) if index not in preserved]
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
    """Return the indexes that stay, ascending, and a warning if the settings leave no room (CTX-2, CTX-3).

    Messages at the `pinned` indexes always stay and count towards `max_messages` (CTX-4). More than `max_messages` stay
    only if head, tail and pinned messages alone are more. Takes linear time.

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
    return [index for index in range(total) if index not in evicted], _warning(
        config, total, head_meets_tail=not middle
    )


def eviction_config(config: ConversationHistoryConfig) -> ConversationHistoryConfig:
    """Return `config` with its cap lowered by a block: what a session over the cap trims to (CTX-4).

    `max_messages` becomes `max(max_messages - evict_block, preserve_first_n + preserve_last_n)`, at least 1, since 0
    means off. Ignore the warning of a trim to it: the lowered cap may leave no room although the user's settings do.

    >>> eviction_config(ConversationHistoryConfig()).max_messages
    65
    """
    if config.max_messages == 0:
        return config
    preserved = config.preserve_first_n + config.preserve_last_n
    lowered = max(config.max_messages - config.evict_block, preserved, 1)
    return config.model_copy(update={"max_messages": lowered})


def no_room_warning(config: ConversationHistoryConfig) -> str | None:
    """Return a warning if head and tail leave no room for other messages, else `None` (CTX-2).

    >>> no_room_warning(ConversationHistoryConfig(max_messages=10))
    'preserve_first_n=1 and preserve_last_n=20 leave no room within max_messages=10: only these are kept'
    """
    if not 0 < config.max_messages <= config.preserve_first_n + config.preserve_last_n:
        return None
    return f"{_preserved(config)} leave no room within max_messages={config.max_messages}: only these are kept"


def message_groups(messages: Sequence[object]) -> list[range]:
    """Divide `messages` into groups that stay or go together: calls with their results, all others alone (CTX-3).

    A result belongs to the latest call of its id, with all messages between; one with an unknown id belongs to the
    calls that it directly follows; otherwise it is a group of its own.

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
    call_indexes: dict[str | int | None, int] = {}
    open_calls: int | None = None
    for index, message in enumerate(messages):
        calls, results = _call_ids(message), _result_ids(message)
        origins = (call_indexes.get(call_id, open_calls) if call_id else open_calls for call_id in results)
        start = min((origin for origin in origins if origin is not None), default=index)
        while starts and starts[-1] > start:
            starts.pop()
        if start == index:
            starts.append(index)
        call_indexes.update(dict.fromkeys(calls, index))
        if not results:
            open_calls = index if calls else None
    return [range(start, stop) for start, stop in pairwise([*starts, len(messages)])]


def history_config(settings: Mapping[str, object]) -> ConversationHistoryConfig:
    """Read the window's settings in either form of a settings file; the default is an empty mapping's (CTX-1).

    The full form is `conversation: {...}`, the shorthand `max_conversation_messages: 100`. Other keys of `settings`
    are ignored.

    Raises:
        pydantic.ValidationError: a negative number, an unknown key, or both forms at once. It names the key.

    >>> history_config({"max_conversation_messages": 30}).max_messages
    30
    >>> history_config({"conversation": {"max_messages": 30, "preserve_last_n": 5}}).preserve_last_n
    5
    """
    return _EitherForm.model_validate(dict(settings)).config


class _EitherForm(Frozen):
    """The shorthand or the full form of the settings."""

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
    """Return whether `group` reaches into the head or the tail."""
    return group.start < config.preserve_first_n or group.stop > total - config.preserve_last_n


def _beyond(room: int, groups: Sequence[range]) -> Sequence[range]:
    """Return the oldest `groups`: those left after the latest have filled `room` messages without a gap."""
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


def _call_ids(message: object) -> list[str | int | None]:
    """Return the ids of the tool calls in `message`, in any form; `None` stands for a call without one."""
    uses = _blocks(message, "tool_use")
    return [_id_in(call, "id") for call in (*_items(get_field(message, "tool_calls")), *uses)]


def _result_ids(message: object) -> list[str | int | None]:
    """Return the call ids of the results in `message`, in any form; `None` stands for a result without one."""
    if get_field(message, "role") == "tool":
        return [_id_in(message, "call_id") or _id_in(message, "tool_call_id")]
    return [_id_in(block, "tool_use_id") for block in _blocks(message, "tool_result")]


def _id_in(holder: object, name: str) -> str | int | None:
    value = get_field(holder, name)
    return value if isinstance(value, str | int) and value else None


def _blocks(message: object, kind: str) -> list[object]:
    return [block for block in _items(get_field(message, "content")) if get_field(block, "type") == kind]


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()
