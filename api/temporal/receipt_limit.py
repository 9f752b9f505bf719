"""How many prompts may wait for their positions at once: as many as the workers answer in time (API-1).

Where workers have more to do than they can, a query waits for its time in vain, and takes theirs and Temporal's. So
each unanswered query halves the number, and each answered one adds one, as TCP does with its packets. Prompts beyond
it are answered at once, without a position. One may always ask, so that the number grows again once workers answer.
"""

from collections.abc import Iterator
from contextlib import contextmanager

MAX_WAITING = 1_024


class ReceiptLimit:
    """The prompts of one gateway that wait for their positions.

    >>> limit = ReceiptLimit()
    >>> for _ in range(10):
    ...     limit.note(is_answered=False)
    >>> with limit.waiting():
    ...     limit.has_room
    False
    >>> limit.note(is_answered=True)
    >>> with limit.waiting():
    ...     limit.has_room
    True
    """

    def __init__(self) -> None:
        self._max_waiting = MAX_WAITING
        self._waiting = 0

    @property
    def has_room(self) -> bool:
        """Return whether one more prompt may wait."""
        return self._waiting < self._max_waiting

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count a prompt that waits."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def note(self, *, is_answered: bool) -> None:
        """Note whether a query was answered in time."""
        self._max_waiting = min(self._max_waiting + 1, MAX_WAITING) if is_answered else max(self._max_waiting // 2, 1)
