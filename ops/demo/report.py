"""What people see of the demo: numbered steps, each line with the seconds since the beginning.

On a terminal the answer that is being written stands below them for as long as it grows. Elsewhere, and with
`NO_COLOR`, it is plain lines.
"""

import asyncio
import re
from collections.abc import Iterable

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

SHOWN_CHARS = 88
"""Of an answer: a line of it."""

MARGIN = 13
"""Characters before what a line says: the time."""


class Telling:
    """The demo's output, told line by line."""

    def __init__(self, console: Console | None = None) -> None:
        """Begin to count the seconds; without a `console`, standard output is written to."""
        self._console = console or Console(highlight=False)
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._live: Live | None = None
        self._steps = 0

    @property
    def seconds(self) -> float:
        """How long it has been going on."""
        return self._clock() - self._began

    def title(self, *lines: str) -> None:
        """Say what this is."""
        for line in lines:
            self._print(Text(line))

    def step(self, title: str) -> None:
        """Begin the next numbered step."""
        self._steps += 1
        self._print(Text.assemble("\n", (f"{self._steps:>2}  {title}", "bold")))

    def line(self, text: str, style: str = "") -> None:
        """Say what has happened, and when."""
        self._print(Text.assemble((f"    {self.seconds:5.1f} s  ", "dim"), (text, style)))

    def asked(self, text: str, remark: str = "") -> None:
        """Say what was asked."""
        self.line(f"> {text}{remark}", "cyan")

    def answered(self, text: str, remark: str = "") -> None:
        """Say what was answered, in short, and what is worth knowing of it."""
        self.line(one_line(text, min(SHOWN_CHARS, self._room)), "green")
        if remark:
            self.line(remark)

    def growing(self, text: str) -> None:
        """Show the end of what is being written, where there is a terminal; the next line takes its place."""
        if not self._console.is_interactive:
            return
        shown = Text(f"{'':{MARGIN}}{one_line(text, len(text))[-self._room :]}", style="dim green")
        if self._live is None:
            self._live = Live(console=self._console, transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(shown, refresh=True)

    def table(self, rows: Iterable[tuple[str, str]]) -> None:
        """Show what it came to."""
        table = Table.grid(padding=(0, 3))
        table.add_column()
        table.add_column(justify="right")
        for name, value in rows:
            table.add_row(Text(f"    {name}"), Text(value))
        self._print(Text())
        self._console.print(table)

    def verdict(self, violations: list[str], accidents: list[str], kept: str) -> None:
        """Say that all promises are `kept`, or which are not; after `accidents`, what is open, and why."""
        self._print(Text())
        word, style = ("OPEN", "yellow") if accidents else ("BROKEN", "bold red")
        for violation in violations:
            self._print(Text(f"{word}  {violation}", style=style))
        for accident in accidents:
            self._print(Text(f"NOT PLAYED  {accident}", style="bold red"))
        if not (violations or accidents):
            self._print(Text(f"ok  {kept}", style="bold green"))

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    @property
    def _room(self) -> int:
        """How many characters a line has beside the time."""
        return max(20, self._console.width - MARGIN - 1) if self._console.is_interactive else SHOWN_CHARS

    def _print(self, text: Text) -> None:
        self.close()
        self._console.print(text, soft_wrap=True)


def one_line(text: str, most: int = SHOWN_CHARS) -> str:
    r"""Return `text` on one line of at most `most` characters, without Markdown's marks of headings and quotations.

    >>> one_line("one\n\n> two  three", 8)
    'one two…'
    """
    words = " ".join(re.sub(r"^[>#\s]+", "", text, flags=re.MULTILINE).split())
    return words if len(words) <= most else f"{words[: most - 1].rstrip()}…"


def last_words(text: str, most: int = 6) -> str:
    r"""Return the end of `text` on one line.

    >>> last_words("one two\n> three", 2)
    '… two three'
    """
    return f"… {' '.join(one_line(text, len(text)).split()[-most:])}"
