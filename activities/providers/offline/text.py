"""How the offline model shortens, quotes and searches text."""

import re
from collections.abc import Iterable, Sequence

_FILLER = re.compile(
    r"an?|about|and|are|at|did|do|for|i|in|is|it|me|my|of|on|our|said|say|tell|that|the|this|to|told|was|what|you|your"
)
"""Words that a topic and a statement about it need not share."""


def shorten(text: str, max_chars: int) -> str:
    r"""Return `text` on one line, in at most `max_chars` characters; an ellipsis stands for what is left out.

    >>> shorten("one  two\nthree", 9)
    'one two…'
    """
    text = " ".join(text.split())
    return text if len(text) <= max_chars else f"{text[: max_chars - 1].rstrip()}…"


def end_sentence(text: str) -> str:
    """Return `text` with a mark that ends its sentence."""
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def quote(lines: Sequence[str], *, max_lines: int) -> str:
    r"""Quote the first `max_lines` lines, and add how many more there are.

    >>> quote(["one", "two", "three"], max_lines=1)
    '> one\n> … and 2 more'
    """
    more = [f"… and {len(lines) - max_lines} more"] if len(lines) > max_lines else []
    return "\n".join(f"> {line.rstrip()[:300]}" for line in [*lines[:max_lines], *more])


def sentences(*texts: str) -> list[str]:
    """Return the sentences of all `texts`; a line ends one, too."""
    return [sentence for text in texts for sentence in re.split(r"(?<=[.!?])\s+|\n", text)]


def lines_about(topic: str, lines: Iterable[str]) -> list[str]:
    """Return the lines that name everything in `topic` and state something about it; without a topic, all.

    >>> lines_about("the code", ["- The code is 4711", "the code?", "tea is ready"])
    ['The code is 4711']
    """
    topic_words = _words(topic)
    stripped = (line.strip(" \t\r-*>#") for line in lines)
    return [line for line in stripped if line and (not topic or (topic_words and topic_words < _words(line)))]


def _words(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text.casefold()) if not _FILLER.fullmatch(word)}
