"""How the offline model handles text: it shortens and quotes, and finds the lines that are about a topic."""

import re
from collections.abc import Iterable, Sequence

_FILLER = re.compile(
    r"an?|about|and|are|at|did|do|for|i|in|is|it|me|my|of|on|our|said|say|tell|that|the|this|to|told|was|what|you|your"
)
"""Words that a topic and a statement about it need not share."""


def short(text: str, most: int) -> str:
    r"""Return `text` on one line, in at most `most` characters; an ellipsis stands for what is left out.

    >>> short("one  two\nthree", 9)
    'one two…'
    """
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def ended(text: str) -> str:
    """Return `text` with a mark that ends its sentence."""
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def quoted(lines: Sequence[str], *, most: int) -> str:
    r"""Quote the first `most` lines, and say how many more there are.

    >>> quoted(["one", "two", "three"], most=1)
    '> one\n> … and 2 more'
    """
    more = [f"… and {len(lines) - most} more"] if len(lines) > most else []
    return "\n".join(f"> {line.rstrip()[:300]}" for line in [*lines[:most], *more])


def sentences(*texts: str) -> list[str]:
    """Return the sentences of all `texts`; a line ends one, too."""
    return [sentence for text in texts for sentence in re.split(r"(?<=[.!?])\s+|\n", text)]


def lines_about(topic: str, lines: Iterable[str]) -> list[str]:
    """Return the lines that name everything in `topic` and say something about it; without a topic, all.

    >>> lines_about("the code", ["- The code is 4711", "the code?", "tea is ready"])
    ['The code is 4711']
    """
    wanted = _words(topic)
    stripped = (line.strip(" \t\r-*>#") for line in lines)
    return [line for line in stripped if line and (not topic or (wanted and wanted < _words(line)))]


def _words(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text.casefold()) if not _FILLER.fullmatch(word)}
