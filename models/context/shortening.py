"""Shortening what can't be evicted, once a vendor said that the context is too long (CTX-7).

The results of the newest step stay, or the model would ask for them again, and so does the head. Where they alone are
too long, the longest of their texts are shortened: the model still reads the beginning and the end of each.
"""

from collections.abc import Sequence

from turnkeeper.models.bounds import bound_text
from turnkeeper.models.transcript.model_call import ModelMessage

MIN_TEXT_CHARS = 200
"""No text is cut to less: the outcome of a call stays."""


def longest_allowed(lengths: Sequence[int], excess: int) -> int:
    """Return the length to which texts of these `lengths` are cut so that `excess` characters go, from the longest.

    At least `MIN_TEXT_CHARS`, also where that is not enough.

    >>> longest_allowed([1000, 400, 10], 600), longest_allowed([1000, 400, 10], 900), longest_allowed([250], 999)
    (400, 250, 200)
    """
    remaining = sorted(lengths, reverse=True)
    total = sum(remaining) - excess
    while remaining and remaining[-1] * len(remaining) <= total:
        total -= remaining.pop()
    return max(MIN_TEXT_CHARS, total // len(remaining)) if remaining else max(lengths, default=0)


def shortened(message: ModelMessage, max_chars: int) -> ModelMessage:
    r"""Return the message with at most `max_chars` characters of text; what is kept by reference, as its excerpt.

    >>> shortened(ModelMessage(role="tool", content="a" * 60 + "z" * 60), 80).content
    'aaaaaaaaaaaaaaaaaaaaaaaaaa\n[... 82 of 120 characters left out ...]\nzzzzzzzzzzzz'
    """
    content = bound_text(message.content, max_chars, 4 * max_chars)
    return message.model_copy(update={"content": content, "blob": None, "blob_start": 0})
