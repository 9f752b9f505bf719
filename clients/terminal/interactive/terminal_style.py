"""How the terminal at hand is written to: its width, its colours, and the characters it can show."""

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from rich.console import Console, RenderableType
from rich.theme import Theme

MAX_COLUMNS = 100
"""Wider lines are tiring to read."""

THEME = Theme(
    {
        "markdown.h1": "bold underline",
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
"""Markdown in the terminal's own foreground: nothing that depends on its background being dark or light."""


class Sign(StrEnum):
    """What lines begin with, and what stands between the facts of a line."""

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
"""What stands for a character where the terminal can't show it."""


@dataclass(frozen=True)
class TerminalStyle:
    """Writes for a terminal: `columns` says how wide it is now; without `colour`, styles that need none are kept."""

    columns: Callable[[], int]
    colour: bool = True
    encoding: str = "utf-8"

    @property
    def width(self) -> int:
        """The columns that are written to."""
        return max(1, min(self.columns(), MAX_COLUMNS))

    def render(self, *renderables: RenderableType) -> str:
        """Return what a terminal is to be sent, each of them on lines of its own."""
        console = Console(
            file=io.StringIO(),
            force_terminal=True,
            color_system="standard" if self.colour else None,
            no_color=not self.colour,
            width=self.width,
            legacy_windows=False,
            theme=THEME,
            highlight=False,
            markup=False,
            emoji=False,
        )
        with console.capture() as captured:
            console.print(*renderables, sep="\n", crop=False)
        return self.encodable(captured.get())

    def encodable(self, text: str) -> str:
        """Return the text in characters that the terminal can show.

        >>> style = TerminalStyle(lambda: 80, encoding="ascii")
        >>> style.encodable("• one … ü"), style.encodable("✓")
        ('* one ... ?', 'ok')
        """
        try:
            text.encode(self.encoding)
        except (UnicodeEncodeError, LookupError):
            return text.translate(_ASCII).encode(self.encoding, errors="replace").decode(self.encoding)
        return text


def wants_colour() -> bool:
    """Return whether colours are wanted: `NO_COLOR` (no-color.org) forbids them."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
