"""Shortening messages that can't be evicted, after a vendor said that the context is too long (CTX-7).

The head stays, and so do the results of the newest step, or the model would ask for them again. If they alone are too
long, the longest of their texts are shortened: the model still reads the head and the tail of each. The running turn's
prompt keeps its text; its attachments may not drive out the conversation, so the largest of them are only named.
"""

from collections.abc import Sequence

from turnkeeper.models.bounds import bound_text
from turnkeeper.models.tokens import weighted_chars
from turnkeeper.models.transcript.attachments import estimated_chars, with_names
from turnkeeper.models.transcript.model_call import ModelMessage

MIN_TEXT_CHARS = 200
"""No text becomes shorter than this, so that the outcome of a call stays."""

TOO_LONG_NOTE = " (not shown: the conversation is too long for the model)"
"""Follows the name of an attachment that is only named."""


def max_text_chars(lengths: Sequence[int], excess: int) -> int:
    """Return the size to cut texts of these `lengths` to, so that the longest lose `excess` characters together.

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
    r"""Return the message with at most `max_chars` weighted characters of text; a text by reference: of its excerpt.

    Attachments that count as more are only named.

    >>> shorten_message(ModelMessage(role="tool", content="a" * 60 + "z" * 60), 80).content
    'aaaaaaaaaaaaaaaaaaaaaaaaaa\n[... 82 of 120 characters left out ...]\nzzzzzzzzzzzz'
    """
    long = [one for one in message.attachments if estimated_chars(one) > max_chars]
    staying = [one for one in message.attachments if estimated_chars(one) <= max_chars]
    max_length = max_chars * len(message.content) // max(1, weighted_chars(message.content))
    text = bound_text(message.content, max_length, 4 * max_length)
    content = with_names(text, long, note=TOO_LONG_NOTE)
    return message.model_copy(update={"content": content, "attachments": staying, "blob": None, "blob_start": 0})


def name_largest_attachments(message: ModelMessage, excess: int) -> ModelMessage:
    """Return the message with its largest attachments only named, until it has `excess` characters fewer if possible.

    >>> from turnkeeper.models.transcript.attachments import CodeAttachment
    >>> sizes = {"a": 10, "b": 90, "c": 50}
    >>> code = [CodeAttachment(type="code", name=name, content="x" * size) for name, size in sizes.items()]
    >>> message = name_largest_attachments(ModelMessage(role="user", content="look", attachments=code), 100)
    >>> [one.name for one in message.attachments]
    ['a']
    """
    named = set[int]()
    for index in sorted(range(len(message.attachments)), key=lambda at: -estimated_chars(message.attachments[at])):
        if excess > 0:
            named.add(index)
            excess -= estimated_chars(message.attachments[index])
    left_out = [one for index, one in enumerate(message.attachments) if index in named]
    staying = [one for index, one in enumerate(message.attachments) if index not in named]
    content = with_names(message.content, left_out, note=TOO_LONG_NOTE)
    return message.model_copy(update={"content": content, "attachments": staying})
