"""The fates of the last prompts (SES-6).

The session remembers the latest fates. Older ones move to the archive, except `started`: its turn shows that.
"""

from collections import deque
from collections.abc import Iterable

from turnkeeper.models.session.queue.leaving_fates import LeavingFates, fate_bytes
from turnkeeper.models.session.queue.prompts import Fate

REMEMBERED_FATES = 200


class RecentFates:
    """The last fates, oldest first, and those that wait for the archive."""

    def __init__(self, recent: Iterable[Fate], leaving: Iterable[Fate], *, max_bytes: int) -> None:
        """`max_bytes` bounds the JSON of `recent`; `leaving` wait for the archive."""
        self.recent: deque[Fate] = deque()
        self.leaving = LeavingFates()
        self.bytes = 0
        """JSON bytes of `recent`."""
        self._max_bytes = max_bytes
        self._by_id: dict[str, Fate] = {}
        for fate in leaving:
            self._by_id[fate.id] = fate
            self.leaving.add(fate)
        for fate in recent:
            self.add(fate)

    def of(self, message_id: str) -> Fate | None:
        return self._by_id.get(message_id)

    def add(self, fate: Fate) -> None:
        """Remember a fate; the oldest ones leave."""
        self.recent.append(fate)
        self._by_id[fate.id] = fate
        self.bytes += fate_bytes(fate)
        while len(self.recent) > REMEMBERED_FATES or self.bytes > self._max_bytes:
            oldest = self.recent.popleft()
            self.bytes -= fate_bytes(oldest)
            if oldest.fate == "started":
                self._forget(oldest)
            elif dropped := self.leaving.add(oldest):
                self._forget(dropped)

    def remove_leaving(self, fates: Iterable[Fate]) -> None:
        """Forget those of `leaving` that the archive has stored."""
        for fate in self.leaving.remove(fates):
            self._forget(fate)

    def bound_leaving(self, *, max_bytes: int, rejections_only: bool) -> None:
        """Drop the oldest fates that wait for the archive, rejections first, until at most `max_bytes` are left."""
        for fate in self.leaving.bound(max_bytes=max_bytes, rejections_only=rejections_only):
            self._forget(fate)

    def _forget(self, fate: Fate) -> None:
        if self._by_id.get(fate.id) is fate:
            del self._by_id[fate.id]
