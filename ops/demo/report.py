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

MAX_CHARS = 88
"""Of an answer: a line of it."""

MARGIN = 13
"""Characters before what a line says: the time."""


class Report:
    """The demo's output, line by line."""

    def __init__(self, console: Console | None = None) -> None:
        """Begin to count the seconds; without a `console`, standard output is written to."""
        self._console = console or Console(highlight=False)
        self._clock = asyncio.get_running_loop().time
        self._started = self._clock()
        self._live: Live | None = None
        self._steps = 0
        self._line_chars = MAX_CHARS
        """How many characters a line has beside the time."""
        if self._console.is_interactive:
            self._line_chars = max(20, self._console.width - MARGIN - 1)

    @property
    def seconds(self) -> float:
        """The seconds since the beginning."""
        return self._clock() - self._started

    def text(self, *lines: str) -> None:
        """Print lines as they are."""
        for line in lines:
            self._print(Text(line))

    def step(self, title: str) -> None:
        """Begin the next numbered step."""
        self._steps += 1
        self._print(Text.assemble("\n", (f"{self._steps:>2}  {title}", "bold")))

    def event(self, text: str, style: str = "") -> None:
        """Print what has happened, and when."""
        self._print(Text.assemble((f"    {self.seconds:5.1f} s  ", "dim"), (text, style)))

    def answer(self, text: str, remark: str = "") -> None:
        """Print an answer in short, and a remark on it."""
        self.event(one_line(text, min(MAX_CHARS, self._line_chars)), "green")
        if remark:
            self.event(remark)

    def partial_answer(self, text: str) -> None:
        """Show the end of what is being written, where there is a terminal; the next line takes its place."""
        if not self._console.is_interactive:
            return
        end = one_line(text, len(text))[-self._line_chars :]
        if self._live is None:
            self._live = Live(console=self._console, transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(Text(f"{'':{MARGIN}}{end}", style="dim green"), refresh=True)

    def table(self, rows: Iterable[tuple[str, str]]) -> None:
        """Print names and values in two columns."""
        table = Table.grid(padding=(0, 3))
        table.add_column()
        table.add_column(justify="right")
        for name, value in rows:
            table.add_row(Text(f"    {name}"), Text(value))
        self._print(Text())
        self._console.print(table)

    def conclusion(self, broken: list[str], failures: list[str], success: str) -> None:
        """Print `success`, or which promises are broken; after failures of the environment they are only open."""
        self._print(Text())
        word, style = ("OPEN", "yellow") if failures else ("BROKEN", "bold red")
        for sentence in broken:
            self._print(Text(f"{word}  {sentence}", style=style))
        for sentence in failures:
            self._print(Text(f"NOT PLAYED  {sentence}", style="bold red"))
        if not (broken or failures):
            self._print(Text(f"ok  {success}", style="bold green"))

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, text: Text) -> None:
        self.close()
        self._console.print(text, soft_wrap=True)


def one_line(text: str, max_chars: int) -> str:
    r"""Return `text` on one line, in at most `max_chars` characters, without Markdown's headings and quotation marks.

    >>> one_line("one\n\n> two  three", 8)
    'one two…'
    """
    words = " ".join(re.sub(r"^[>#\s]+", "", text, flags=re.MULTILINE).split())
    return words if len(words) <= max_chars else f"{words[: max_chars - 1].rstrip()}…"


def last_words(text: str, count: int = 6) -> str:
    r"""Return the end of `text` on one line.

    >>> last_words("one two\n> three", 2)
    '… two three'
    """
    return f"… {' '.join(one_line(text, len(text)).split()[-count:])}"
