"""Shortening messages that can't be evicted, after a vendor said that the context is too long (CTX-7).

The head stays, and so do the results of the newest step, or the model would ask for them again. If they alone are too
long, the longest of their texts are shortened: the model still reads the head and the tail of each.
"""

from collections.abc import Sequence

from turnkeeper.models.bounds import bound_text
from turnkeeper.models.transcript.model_call import ModelMessage

MIN_TEXT_CHARS = 200
"""No text becomes shorter than this, so that the outcome of a call stays."""


def max_text_chars(lengths: Sequence[int], excess: int) -> int:
    """Return the length to cut texts of these `lengths` to, so that the longest lose `excess` characters together.

    At least `MIN_TEXT_CHARS`, even if that is not enough.

    >>> max_text_chars([1000, 400, 10], 600), max_text_chars([1000, 400, 10], 900), max_text_chars([250], 999)
    (400, 250, 200)
    """
    remaining = sorted(lengths, reverse=True)
    total = sum(remaining) - excess
    while remaining and remaining[-1] * len(remaining) <= total:
        total -= remaining.pop()
    return max(MIN_TEXT_CHARS, total // len(remaining)) if remaining else max(lengths, default=0)


def shorten_message(message: ModelMessage, max_chars: int) -> ModelMessage:
    r"""Return the message with at most `max_chars` characters of text; a text by reference becomes its excerpt.

    >>> shorten_message(ModelMessage(role="tool", content="a" * 60 + "z" * 60), 80).content
    'aaaaaaaaaaaaaaaaaaaaaaaaaa\n[... 82 of 120 characters left out ...]\nzzzzzzzzzzzz'
    """
    content = bound_text(message.content, max_chars, 4 * max_chars)
    return message.model_copy(update={"content": content, "blob": None, "blob_start": 0})
