"""The fates of a session's last prompts, and the ids that it has accepted (SES-6).

The session remembers the latest fates. Older ones leave for the archive, except `started`: its turn shows that. An id
counts as accepted while its prompt waits, which the queue knows, and from its fate on, which is noted here.
"""

from collections import deque
from collections.abc import Iterable
from itertools import accumulate, takewhile

from turnkeeper.models.limits import Limits
from turnkeeper.models.session.queue.prompts import Fate

REMEMBERED_FATES = 200

REMEMBERED_IDS = 1_000


class FateBook:
    """The last fates, oldest first, those that wait for the archive, and the ids of decided prompts."""

    def __init__(self, *, recent: Iterable[Fate], leaving: Iterable[Fate], ids: Iterable[str], limits: Limits) -> None:
        """`limits` bound the bytes of `recent` and `ids`; `leaving` is only bounded by `bound_leaving`."""
        self.recent: deque[Fate] = deque()
        self.leaving: list[Fate] = []
        """Fates that wait for the archive, oldest first."""
        self.leaving_bytes = self.accepted_leaving_bytes = 0
        """JSON bytes of `leaving`, and of those that are no rejections."""
        self.ids: dict[str, None] = {}
        """The last ids of prompts that were accepted and have a fate, oldest first."""
        self._limits = limits
        self._recent_bytes = self._ids_bytes = 0
        self._by_id: dict[str, Fate] = {}
        for fate in leaving:
            self._by_id[fate.id] = fate
            self._leave(fate)
        for message_id in ids:
            self._remember(message_id)
        for fate in recent:
            self.add(fate)

    @property
    def bytes(self) -> int:
        """JSON bytes of the last fates and the ids, without the fates that wait for the archive."""
        return self._recent_bytes + self._ids_bytes

    def find(self, message_id: str) -> Fate | None:
        return self._by_id.get(message_id)

    def add(self, fate: Fate) -> None:
        """Remember a fate; the oldest ones leave. A rejected id may be sent again."""
        if fate.fate != "rejected":
            self._remember(fate.id)
        self.recent.append(fate)
        self._by_id[fate.id] = fate
        self._recent_bytes += fate_bytes(fate)
        while len(self.recent) > REMEMBERED_FATES or self._recent_bytes > self._limits.fates_bytes:
            oldest = self.recent.popleft()
            self._recent_bytes -= fate_bytes(oldest)
            if oldest.fate == "started":
                self._forget(oldest)
            else:
                self._leave(oldest)

    def first_leaving(self, *, max_bytes: int) -> list[Fate]:
        """Return the oldest fates with at most `max_bytes` together, but at least one if there is any."""
        total = accumulate(map(fate_bytes, self.leaving))
        return self.leaving[: max(1, sum(1 for _ in takewhile(lambda size: size <= max_bytes, total)))]

    def remove_leaving(self, fates: Iterable[Fate]) -> None:
        """Forget those fates that the archive has stored."""
        objects, leaving = {id(fate) for fate in fates}, self.leaving
        self.leaving, self.leaving_bytes, self.accepted_leaving_bytes = [], 0, 0
        for fate in leaving:
            if id(fate) in objects:
                self._forget(fate)
            else:
                self._leave(fate)

    def bound_leaving(self, *, max_bytes: int, rejections_only: bool) -> None:
        """Drop the oldest fates that wait for the archive, rejections first, until at most `max_bytes` are left."""
        rejections = [fate for fate in self.leaving if fate.fate == "rejected"]
        others = [] if rejections_only else [fate for fate in self.leaving if fate.fate != "rejected"]
        excess, dropped = self.leaving_bytes - max_bytes, list[Fate]()
        for fate in [*rejections, *others]:
            if excess <= 0:
                break
            dropped.append(fate)
            excess -= fate_bytes(fate)
        self.remove_leaving(dropped)

    def _remember(self, message_id: str) -> None:
        """Remember an id, and forget the oldest if necessary. A known id keeps its place."""
        if message_id in self.ids:
            return
        self.ids[message_id] = None
        self._ids_bytes += _id_bytes(message_id)
        while len(self.ids) > REMEMBERED_IDS or self._ids_bytes > self._limits.ids_bytes:
            oldest = next(iter(self.ids))
            del self.ids[oldest]
            self._ids_bytes -= _id_bytes(oldest)

    def _leave(self, fate: Fate) -> None:
        self.leaving.append(fate)
        self.leaving_bytes += fate_bytes(fate)
        self.accepted_leaving_bytes += fate_bytes(fate) if fate.fate != "rejected" else 0

    def _forget(self, fate: Fate) -> None:
        if self._by_id.get(fate.id) is fate:
            del self._by_id[fate.id]


def fate_bytes(fate: Fate) -> int:
    """Return the JSON bytes of a fate in a list."""
    return len(fate.model_dump_json()) + 1


def _id_bytes(message_id: str) -> int:
    return len(message_id) + 3  # its quotes, and a comma
