"""Fates on their way from a session to the archive (SES-6)."""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice, takewhile

from turnkeeper.models.session.queue.prompts import Fate

MAX_LEAVING_FATES = 10_000
"""Maximum fates that wait for the archive: Temporal's limit of signals per run."""


class LeavingFates:
    """Fates that wait for the archive, oldest first. At the limit, rejections are dropped before others."""

    def __init__(self) -> None:
        self._fates: dict[int, Fate] = {}
        self._rejections: deque[int] = deque()
        self._count = 0
        self.bytes = 0
        self.accepted_bytes = 0
        """JSON bytes of all but rejections."""

    def __len__(self) -> int:
        return len(self._fates)

    def __iter__(self) -> Iterator[Fate]:
        return iter(self._fates.values())

    def add(self, fate: Fate) -> Fate | None:
        """Append a fate; return the one that was dropped for it, if any."""
        self._fates[self._count] = fate
        if fate.fate == "rejected":
            self._rejections.append(self._count)
        self._count += 1
        self._count_bytes(fate, 1)
        return self._drop_oldest() if len(self._fates) > MAX_LEAVING_FATES else None

    def first(self, *, max_bytes: int) -> list[Fate]:
        """Return the oldest fates with at most `max_bytes` together, but at least one if there is any."""
        total = accumulate(fate_bytes(fate) for fate in self)
        count = sum(1 for _ in takewhile(lambda size: size <= max_bytes, total))
        return list(islice(self, max(1, count)))

    def remove(self, fates: Iterable[Fate]) -> list[Fate]:
        """Remove these fates, if still here, and return those that were."""
        objects = {id(fate) for fate in fates}
        return [self._pop(number) for number in [number for number, fate in self._fates.items() if id(fate) in objects]]

    def bound(self, *, max_bytes: int, rejections_only: bool = True) -> list[Fate]:
        """Drop the oldest rejections, then others, until at most `max_bytes` are left; return the dropped fates."""
        dropped = []
        while self.bytes > max_bytes and (self.bytes > self.accepted_bytes or not rejections_only):
            dropped.append(self._drop_oldest())
        return dropped

    def _drop_oldest(self) -> Fate:
        number = self._oldest_rejection()
        return self._pop(next(iter(self._fates)) if number is None else number)

    def _oldest_rejection(self) -> int | None:
        while self._rejections and self._rejections[0] not in self._fates:
            self._rejections.popleft()
        return self._rejections[0] if self._rejections else None

    def _pop(self, number: int) -> Fate:
        fate = self._fates.pop(number)
        self._count_bytes(fate, -1)
        return fate

    def _count_bytes(self, fate: Fate, times: int) -> None:
        size = times * fate_bytes(fate)
        self.bytes += size
        self.accepted_bytes += size if fate.fate != "rejected" else 0


def fate_bytes(fate: Fate) -> int:
    """Return the JSON bytes of a fate in a list."""
    return len(fate.model_dump_json()) + 1
