"""A cache of large texts; a text never changes under its hash (SES-15)."""

from collections import OrderedDict
from collections.abc import Iterable


class RecentTexts:
    """Texts by owner and hash, with at most `max_chars` together; the oldest are dropped first."""

    def __init__(self, *, max_chars: int) -> None:
        self._max_chars = max_chars
        self._texts: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._chars = 0

    def find(self, owner: str, hashes: Iterable[str]) -> dict[str, str]:
        return {name: self._texts[owner, name] for name in hashes if (owner, name) in self._texts}

    def remember(self, owner: str, texts: dict[str, str]) -> None:
        for name, text in texts.items():
            self._chars += len(text) - len(self._texts.pop((owner, name), ""))
            self._texts[owner, name] = text
        while self._chars > self._max_chars:
            _, forgotten = self._texts.popitem(last=False)
            self._chars -= len(forgotten)
