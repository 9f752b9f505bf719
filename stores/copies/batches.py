"""Splits what a copy writes into transactions of bounded size."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def batches(items: Iterable[Item], sizes: Iterable[int], *, max_size: int) -> Iterator[list[Item]]:
    """Yield the items in lists of at most `max_size` together; a larger item is in a list of its own.

    >>> list(batches("abcd", [3, 2, 9, 1], max_size=5))
    [['a', 'b'], ['c'], ['d']]
    """
    batch, room = list[Item](), max_size
    for item, size in zip(items, sizes, strict=True):
        if batch and room < size:
            yield batch
            batch, room = [], max_size
        batch.append(item)
        room -= size
    if batch:
        yield batch
