"""How the terminal at hand is written to: its width, its colours, and the signs it can show."""

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from rich.console import Console, RenderableType
from rich.theme import Theme

MOST_COLUMNS = 100
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

Sign = Literal["prompt", "tool", "thought", "good", "bad", "waits", "asks", "joins", "notice", "dot"]

_UNICODE: dict[Sign, str] = {
    "prompt": "›",
    "tool": "⚒",
    "thought": "✻",
    "good": "✓",
    "bad": "✗",
    "waits": "◦",
    "asks": "?",
    "joins": "↳",
    "notice": "•",
    "dot": "·",
}
_PLAIN: dict[Sign, str] = {
    "prompt": ">",
    "tool": "*",
    "thought": "~",
    "good": "ok",
    "bad": "x",
    "waits": "+",
    "asks": "?",
    "joins": ">>",
    "notice": "-",
    "dot": "-",
}

_PLAINER = str.maketrans(
    {
        "…": "...",
        "•": "*",
        "·": "-",
        "–": "-",
        "—": "-",
        "─": "-",
        "━": "=",
        "│": "|",
        "▌": "|",
        "‘": "'",
        "’": "'",
        "“": '"',
        "”": '"',
        "›": ">",
    }
)


@dataclass(frozen=True)
class Look:
    """Writes for a terminal: `columns` says how wide it is now; without `colour`, styles that need none are kept."""

    columns: Callable[[], int]
    colour: bool = True
    encoding: str = "utf-8"

    def sign(self, name: Sign) -> str:
        """Return a sign, in letters where the terminal has nothing better.

        >>> Look(lambda: 80).sign("good"), Look(lambda: 80, encoding="ascii").sign("good")
        ('✓', 'ok')
        """
        return _UNICODE[name] if self._has("".join(_UNICODE[sign] for sign in get_args(Sign))) else _PLAIN[name]

    @property
    def width(self) -> int:
        """The columns that are written to."""
        return max(1, min(self.columns(), MOST_COLUMNS))

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
        """Return the text in signs that the terminal can show.

        >>> Look(lambda: 80, encoding="ascii").encodable("• one … ü")
        '* one ... ?'
        """
        if self._has(text):
            return text
        return text.translate(_PLAINER).encode(self.encoding, errors="replace").decode(self.encoding)

    def _has(self, text: str) -> bool:
        try:
            text.encode(self.encoding)
        except (UnicodeEncodeError, LookupError):
            return False
        return True


def wants_colour() -> bool:
    """Tell whether colours are wanted: `NO_COLOR` (no-color.org) forbids them."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
