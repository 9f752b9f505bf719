"""Texts of one line, for titles and lists, and the form in which they are searched (API-1)."""

import re
import unicodedata

import wcwidth

_JOINERS = "\u200c\u200d"
"""They shape the letters beside them, as in Persian, and join emoji."""

_JOINED = re.compile(rf"(?<=[^\x00-\x7f])[{_JOINERS}](?=[^\x00-\x7f])")


def one_line(text: str, max_chars: int, *, whole_words: bool = False) -> str:
    r"""Return the beginning of `text` in one line of at most `max_chars` characters, without invisible ones.

    It is cut between letters as readers see them: not within an emoji, a flag or an accented letter. With
    `whole_words`, it is cut between words where that is possible.

    >>> one_line("  list\nthe files ", 20), one_line("list the files", 10)
    ('list the files', 'list the …')
    >>> one_line("🇩🇪🇫🇷🇪🇸", 4)
    '🇩🇪…'
    """
    head = text.lstrip()[: 20 * max_chars]
    joiners = {match.start() for match in _JOINED.finditer(head)}
    visible = "".join(char if char.isprintable() or at in joiners else " " for at, char in enumerate(head))
    line = " ".join(visible.split())
    if len(line) <= max_chars:
        return line
    beginning = line[: wcwidth.grapheme_boundary_before(line, max_chars) or max_chars - 1]
    return f"{beginning.rsplit(' ', 1)[0] if whole_words else beginning}…"


def searchable(text: str) -> str:
    r"""Return `text` in the form in which it is compared: without case, in one normal form, without joiners.

    >>> searchable("Cre\u0300me") == searchable("CRÈME"), searchable("\u06cc\u200c\u062e") == searchable("\u06cc\u062e")
    (True, True)
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFKC", folded).translate(dict.fromkeys(map(ord, _JOINERS)))
