"""The ids of the last accepted prompts: a repeated id is the same prompt (SES-6)."""

from collections.abc import Iterable, Iterator

REMEMBERED_IDS = 1_000


class TakenIds:
    """The last accepted ids, oldest first: at most `REMEMBERED_IDS`, with at most `max_bytes` of JSON."""

    def __init__(self, ids: Iterable[str], *, max_bytes: int) -> None:
        self._ids: dict[str, None] = {}
        self._max_bytes = max_bytes
        self.bytes = 0
        for message_id in ids:
            self.add(message_id)

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def add(self, message_id: str) -> None:
        """Remember an id, and forget the oldest if necessary. A known id keeps its place."""
        if message_id in self._ids:
            return
        self._ids[message_id] = None
        self.bytes += _json_bytes(message_id)
        while len(self._ids) > REMEMBERED_IDS or self.bytes > self._max_bytes:
            self.forget(next(iter(self._ids)))

    def forget(self, message_id: str) -> None:
        """Forget an id: it may be sent again, or the queue itself has it."""
        if message_id in self._ids:
            del self._ids[message_id]
            self.bytes -= _json_bytes(message_id)


def _json_bytes(message_id: str) -> int:
    return len(message_id) + 3  # its quotes, and a comma
