"""How much of each text a hand-off has room for, where texts are ranked or condensed (CTX-15).

Theory of operation. First every text over its limit is cut, and the messages are chosen by these sizes. What is then
left of the policy's total size, and of the first prompt, is for the cut texts: the most relevant first, or the latest
where nothing is ranked. A text that fits is handed over whole, the first that doesn't is cut less. Texts that the model
is to condense keep a part of the room, so that each of them may be longer.
"""

from collections.abc import Sequence
from typing import NamedTuple

from turnkeeper.models.limits import PROMPT_BYTES
from turnkeeper.models.tasks.history_policy import HistoryPolicy, TextLimit
from turnkeeper.models.tasks.stored_history import HistoryMessage
from turnkeeper.models.tokens import estimate_tokens

MAX_CONDENSED_CHARS = 2_000
"""Maximum of a condensed text, also where the policy's limit is higher."""

GROWN_CONDENSED_CHARS = 900
"""How long a condensed text may become beyond the policy's limit: eight of them are an answer of 8,000 tokens."""

USABLE = 0.8
"""Part of a prompt's tokens and bytes for the texts of a history; the rest is for headers and indentation."""


class CutText(NamedTuple):
    """A message with its whole text: it may be cut."""

    message: HistoryMessage
    whole: str
    limit: TextLimit

    @property
    def cut_chars(self) -> int:
        """How many characters were cut."""
        return max(0, len(self.whole) - len(self.message.content)) if self.message.truncated else 0

    @property
    def condensed_chars(self) -> int:
        """How long the text may be if the model condenses it, by its policy alone."""
        return min(MAX_CONDENSED_CHARS, self.limit.kept_chars or self.limit.max_chars)

    def cut_at(self, chars: int) -> str:
        """Return the text with its first `chars` characters, marked as cut if that is not all."""
        return self.limit.model_copy(update={"max_chars": chars, "kept_chars": chars}).cut(self.whole)


def room_for(texts: Sequence[CutText], policy: HistoryPolicy, *, max_tokens: int) -> int:
    """Return how many characters are left for cut texts, in the policy's total size and in a prompt of `max_tokens`."""
    wholes = [{"content": text.whole} for text in texts]
    chars = max(1, sum(len(text.whole) for text in texts))
    present = sum(len(text.message.content) for text in texts)
    by_tokens = USABLE * max_tokens * chars / max(1, estimate_tokens(wholes))
    by_bytes = USABLE * PROMPT_BYTES * chars / max(1, sum(len(text.whole.encode(errors="replace")) for text in texts))
    total = sum(text.message.size for text in texts)
    return max(0, min(policy.max_total_chars - total, int(min(by_tokens, by_bytes)) - present))


def grown_texts(texts: Sequence[CutText], ranks: Sequence[float], *, room: int, condense: bool) -> list[int]:
    """Return how many characters of each text are handed over, or may be condensed to: its whole length, if it fits.

    `ranks` are the texts' relevances; of equal ones, the latest comes first.

    >>> limit = TextLimit(max_chars=10, marker="")
    >>> def text(chars: int) -> CutText:
    ...     message = HistoryMessage(
    ...         role="assistant", content="x" * 10, timestamp="", truncated=chars > 10, original_length=chars)
    ...     return CutText(message, "x" * chars, limit)
    >>> grown_texts([text(50), text(50), text(5)], [0.1, 1.0, 0.5], room=60, condense=False)
    [30, 50, 5]
    """
    lengths = [text.limit.kept_chars or text.limit.max_chars if text.cut_chars else len(text.whole) for text in texts]
    order = sorted(range(len(texts)), key=lambda index: (-ranks[index], -index))
    cut = [index for index in order if texts[index].cut_chars]
    reserves = {index: _growth(texts[index]) if condense else 0 for index in cut}
    for index in list(cut):
        needed = texts[index].cut_chars
        if needed <= room - sum(reserves.values()) + reserves[index]:
            lengths[index] = len(texts[index].whole)
            room -= needed
            cut.remove(index)
            del reserves[index]
        elif not condense:
            lengths[index] += max(0, room)
            break
    for index in cut if condense else ():
        growth = min(_growth(texts[index]), max(0, room) // len(cut))
        lengths[index] = texts[index].condensed_chars + growth
    return lengths


def _growth(text: CutText) -> int:
    """Return by how many characters a condensed text may grow."""
    return max(0, min(GROWN_CONDENSED_CHARS, len(text.whole)) - text.condensed_chars)
