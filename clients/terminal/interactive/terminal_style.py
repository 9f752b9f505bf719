"""A terminal's width, colours and characters."""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from rich.console import Console, RenderableType
from rich.theme import Theme

MAX_COLUMNS = 100
"""Wider lines are hard to read."""

THEME = Theme(
    {
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "italic",
        "markdown.code": "cyan",
        "markdown.code_inline": "cyan",
        "markdown.block_quote": "italic",
        "markdown.table.header": "bold",
        "markdown.table.border": "dim",
    }
)
"""Styles for Markdown that are readable on dark and light backgrounds."""


class Sign(StrEnum):
    """The first character of a line, and the separator of facts."""

    PROMPT = "›"
    TOOL = "⚒"
    THOUGHT = "✻"
    GOOD = "✓"
    BAD = "✗"
    QUEUED = "◦"
    QUESTION = "?"
    STEER = "↳"
    DOT = "·"


SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

_ASCII = str.maketrans(
    {
        Sign.PROMPT: ">",
        Sign.TOOL: "*",
        Sign.THOUGHT: "~",
        Sign.GOOD: "ok",
        Sign.BAD: "x",
        Sign.QUEUED: "+",
        Sign.STEER: ">>",
        Sign.DOT: "-",
        **dict(zip(SPINNER, "|/-\\|/-\\|/", strict=True)),
        **dict.fromkeys("–—─", "-"),
        **dict.fromkeys("│▌", "|"),
        **dict.fromkeys("‘’", "'"),
        **dict.fromkeys("“”", '"'),
        "━": "=",
        "•": "*",
        "…": "...",
    }
)
"""Replacements for terminals that can only show ASCII."""


_LABEL = re.compile(r"^[A-Z][a-z]+:", re.MULTILINE)
"""Only the labels of an approval's text begin a line."""


@dataclass(frozen=True)
class TerminalStyle:
    """Renders for one terminal. `columns` returns its current width; without `colour`, texts have no styles."""

    columns: Callable[[], int]
    colour: bool = True
    encoding: str = "utf-8"

    @property
    def width(self) -> int:
        """The number of columns to use."""
        return max(1, min(self.columns(), MAX_COLUMNS))

    def render(self, *renderables: RenderableType) -> str:
        """Return the text to send to the terminal; each part starts on a new line."""
        console = Console(
            file=io.StringIO(),
            force_terminal=True,
            color_system="standard" if self.colour else None,
            width=self.width,
            theme=THEME,
            highlight=False,
            markup=False,
            emoji=False,
        )
        with console.capture() as capture:
            console.print(*renderables, sep="\n", crop=False)
        return self.encodable(capture.get())

    def encodable(self, text: str) -> str:
        """Return the text with replacements for characters that the terminal can't show.

        >>> style = TerminalStyle(lambda: 80, encoding="ascii")
        >>> style.encodable("• one … ü"), style.encodable("✓")
        ('* one ... ?', 'ok')
        """
        try:
            text.encode(self.encoding)
        except (UnicodeEncodeError, LookupError):
            return text.translate(_ASCII).encode(self.encoding, errors="replace").decode(self.encoding)
        return text

    def exact(self, text: str) -> str:
        """Return the text with markers for characters that the terminal can't show, so that all stay different.

        >>> TerminalStyle(lambda: 80, encoding="ascii").exact("1 ü")
        '1 <U+00FC>'
        """
        return "".join(char if self._can_show(char) else f"<U+{ord(char):04X}>" for char in text)

    def approval(self, text: str) -> str:
        r"""Return an approval's text as `exact` does, with its labels bold, also without colours.

        A terminal breaks long lines itself, and the rest of one can stand where labels do; but it can't be bold.

        >>> TerminalStyle(lambda: 80).approval("Tool: pay\nArguments:\n  to: 1")
        '\x1b[1mTool:\x1b[22m pay\n\x1b[1mArguments:\x1b[22m\n  to: 1'
        """
        return _LABEL.sub("\x1b[1m\\g<0>\x1b[22m", self.exact(text))

    def _can_show(self, char: str) -> bool:
        try:
            char.encode(self.encoding)
        except (UnicodeEncodeError, LookupError):
            return char.isascii()
        return True
