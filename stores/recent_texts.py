"""A cache of large texts and of attachments; nothing ever changes under its hash (SES-15)."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Generic, TypeVar

Content = TypeVar("Content", str, bytes)


class RecentTexts(Generic[Content]):
    """Texts or contents by owner and hash, of at most `max_chars` together; the oldest are dropped first."""

    def __init__(self, *, max_chars: int) -> None:
        self._max_chars = max_chars
        self._texts: OrderedDict[tuple[str, str], Content] = OrderedDict()
        self._chars = 0

    def find(self, owner: str, hashes: Iterable[str]) -> dict[str, Content]:
        return {name: self._texts[owner, name] for name in hashes if (owner, name) in self._texts}

    def remember(self, owner: str, texts: dict[str, Content]) -> None:
        for name, text in texts.items():
            earlier = self._texts.pop((owner, name), None)
            self._chars += len(text) - (len(earlier) if earlier else 0)
            self._texts[owner, name] = text
        while self._chars > self._max_chars:
            _, forgotten = self._texts.popitem(last=False)
            self._chars -= len(forgotten)
