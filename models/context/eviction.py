"""Which entries of a model view an eviction takes, by their indexes (CTX-4, CTX-7, SES-15)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from turnkeeper.models.context.view_entries import ViewEntry

MAX_ENDING_CHARS = 4_000
"""A head that keeps the answer of its last turn keeps none that is longer than this."""


@dataclass(frozen=True)
class Eviction:
    """The entries that were evicted, oldest first, and the number of their messages."""

    entries: list[ViewEntry]
    evicted: int


def oldest_to_evict(
    entries: Sequence[ViewEntry], excess: int, permanent: set[int], *, size: Callable[[ViewEntry], int]
) -> set[int]:
    """Return the oldest entries, except `permanent` ones, that have `excess` of their sizes together, if possible.

    The turn where that is reached loses steps only, and keeps its prompt and its end; earlier ones go whole.
    """
    leaving = set[int]()
    for turn in _turns(entries):
        evictable = [index for index in turn if index not in permanent]
        if excess <= 0:
            break
        if sum(size(entries[index]) for index in evictable) > excess:
            steps = [index for index in evictable if index not in (turn[0], turn[-1])]
            sizes = list(accumulate(size(entries[index]) for index in steps))
            if sizes and sizes[-1] >= excess:
                evictable = steps[: sum(total < excess for total in sizes) + 1]
        leaving.update(evictable)
        excess -= sum(size(entries[index]) for index in evictable)
    return leaving


def permanent_entries(
    entries: Sequence[ViewEntry], running_turn: str, staying: set[int], *, keeps_last: bool = True
) -> set[int]:
    """Return what stays in an eviction: those `staying`, and the prompts of the turns of which they are steps.

    The running turn's prompt always stays, and with `keeps_last` the last entry.
    """
    permanent = staying | ({len(entries) - 1} if keeps_last and entries else set())
    # The last one counts: the id may have been used long ago.
    prompts = [index for index, entry in enumerate(entries) if entry.is_prompt_of(running_turn)]
    return permanent | set(prompts[-1:]) | {turn[0] for turn in _turns(entries) if not permanent.isdisjoint(turn)}


def head_indexes(entries: Sequence[ViewEntry], first_n: int, *, keeps_answer: bool = False) -> list[int]:
    """Return the entries that begin within the first `first_n` messages.

    With `keeps_answer`, the last turn among them keeps its end, if that is short.
    """
    starts = accumulate((len(entry.messages) for entry in entries), initial=0)
    head = [index for index, start in enumerate(starts) if start < first_n][: len(entries)]
    if head and keeps_answer:
        end = next(turn[-1] for turn in _turns(entries) if head[-1] in turn)
        is_short = entries[end].ends_turn and entries[end].chars <= MAX_ENDING_CHARS
        head += [end] if is_short and end not in head else []
    return head


def tail_indexes(entries: Sequence[ViewEntry], last_n: int) -> list[int]:
    """Return the entries that reach into the last `last_n` messages."""
    ends = accumulate((len(entry.messages) for entry in reversed(entries)), initial=0)
    last = len(entries) - 1
    return [last - index for index, end in enumerate(ends) if end < last_n and index <= last]


def _turns(entries: Sequence[ViewEntry]) -> list[list[int]]:
    """Return the indexes of each turn's entries."""
    numbers = groupby(range(len(entries)), key=lambda index: entries[index].ref.number)
    return [list(indexes) for _, indexes in numbers]
