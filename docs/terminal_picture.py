"""A terminal's screen as an SVG with selectable text, in the reader's own monospaced font."""

import io
import re
from itertools import groupby

import pyte
from pyte.screens import Char
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

WITHOUT_FONTS = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code, monospace", "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
)
"""Rich's own format without the font that it loads from the network."""

THEME = TerminalTheme(
    (24, 26, 31),
    (215, 218, 224),
    [
        *((62, 68, 81), (224, 108, 117), (152, 195, 121), (229, 192, 123)),
        *((97, 175, 239), (198, 120, 221), (86, 182, 194), (215, 218, 224)),
    ],
    [
        *((127, 132, 142), (239, 128, 137), (170, 211, 141), (240, 208, 143)),
        *((122, 192, 245), (213, 145, 233), (110, 200, 211), (255, 255, 255)),
    ],
)
"""Background, foreground, the eight colours, and the eight bright ones."""

FAINT, NORMAL, EXTENDED = 2, 22, (38, 48)


class FaintScreen(pyte.Screen):
    """A screen with faint text, which pyte does not know: it is stored as blinking text, which no program here uses.

    `NORMAL` ends both bold and faint.
    """

    def select_graphic_rendition(self, *attrs: int, private: bool = False) -> None:
        """Set the display attributes of the following text."""
        result: list[int] = []
        rest = list(attrs)
        while rest:
            attr = rest.pop(0)
            result += [5] if attr == FAINT else [NORMAL, 25] if attr == NORMAL else [attr]
            if attr in EXTENDED:  # the following numbers are a colour
                count = 4 if rest[:1] == [2] else 2
                result, rest = result + rest[:count], rest[count:]
        super().select_graphic_rendition(*result)


def svg_of(screen: pyte.Screen, *, title: str) -> str:
    """Return the screen, down to its last line with text, as a window with a title."""
    lines = [_line(screen, row) for row in range(screen.lines)]
    while lines and not lines[-1].plain.strip():
        lines.pop()
    console = Console(
        record=True, width=screen.columns, force_terminal=True, color_system="truecolor", file=io.StringIO()
    )
    console.print(Text("\n").join(lines), soft_wrap=True)
    return console.export_svg(title=title, theme=THEME, code_format=WITHOUT_FONTS, unique_id="terminal")


def _line(screen: pyte.Screen, row: int) -> Text:
    cells = [screen.buffer[row][column] for column in range(screen.columns)]
    line = Text()
    for style, run in groupby(cells, key=_style):
        line.append("".join(cell.data for cell in run), style)
    line.rstrip()
    return line


def _style(cell: Char) -> Style:
    return Style(
        color=_colour(cell.fg),
        bgcolor=_colour(cell.bg),
        bold=cell.bold,
        italic=cell.italics,
        underline=cell.underscore,
        strike=cell.strikethrough,
        reverse=cell.reverse,
        dim=cell.blink,
    )


def _colour(name: str) -> str | None:
    """Return Rich's name for one of pyte's colours."""
    if name == "default":
        return None
    if re.fullmatch(r"[0-9a-f]{6}", name):
        return f"#{name}"
    return re.sub(r"^bright", "bright_", name).replace("brown", "yellow")
