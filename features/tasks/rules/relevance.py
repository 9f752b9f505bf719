"""Which messages of a conversation matter to a task (CTX-15).

An exchange is a user's message with all answers to it, or the messages before the first one. It stays whole: an answer
without its question is hard to understand. Each message is scored against a text, from 0 to 1, the score of the best
match; an exchange has the score of its best message. The first and the last exchange always stay. Of the others the
best stay, as long as they reach the policy's `min_relevance` and have room.

The scores come from `features/tasks/stores/bm25.py`: this module only decides.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

from turnkeeper.features.tasks.rules.task_context import HistoryMessage
from turnkeeper.models.settings.history_policy import HistoryPolicy
from turnkeeper.models.wire import Frozen

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
