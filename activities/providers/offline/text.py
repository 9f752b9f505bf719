"""Shortening, quoting and searching text, for the offline model."""

import re
from collections.abc import Iterable, Sequence

MAX_LINES = 30
"""Maximum quoted lines of a result."""

_FILLER = frozenset({"a", "an", "are", "in", "is", "it", "my", "of", "on", "our", "the", "this", "was", "your"})
"""Words that are ignored when a statement is compared with a topic."""


def shorten(text: str, max_chars: int) -> str:
    r"""Return `text` on one line, in at most `max_chars` characters; an ellipsis stands for what is left out.

    >>> shorten("one  two\nthree", 9)
    'one two…'
    """
    text = " ".join(text.split())
    return text if len(text) <= max_chars else f"{text[: max_chars - 1].rstrip()}…"


def end_sentence(text: str) -> str:
    """Return `text` with punctuation at its end."""
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def quote(lines: Sequence[str]) -> str:
    """Quote the first `MAX_LINES` lines, with an ellipsis for the others."""
    more = ["…"] if len(lines) > MAX_LINES else []
    return "\n".join(f"> {line.rstrip()[:300]}" for line in [*lines[:MAX_LINES], *more])


def sentences(text: str) -> list[str]:
    """Return the sentences of `text`; a line ends one, too."""
    return re.split(r"(?<=[.!?])\s+|\n", text)


def lines_about(topic: str, lines: Iterable[str]) -> list[str]:
    """Return the lines that contain all words of `topic` and more.

    >>> lines_about("the code", ["- The code is 4711", "the code?", "tea is ready"])
    ['The code is 4711']
    """
    words = _words(topic)
    stripped = (line.strip(" \t\r-*>#") for line in lines)
    return [line for line in stripped if words and words < _words(line)]


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold())) - _FILLER
