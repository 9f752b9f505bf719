"""The demo's output: numbered steps, each line with the seconds since the start.

On a terminal, the growing answer is shown below the lines. Otherwise the output is plain lines.
"""

import asyncio
import re
from collections.abc import Sequence
from textwrap import shorten

from rich.console import Console
from rich.live import Live
from rich.text import Text

from turnkeeper.models.transcript.conversation import ConversationMessage

MAX_CHARS = 88
"""The longest part of an answer that is printed: one line."""

MARGIN = 13
"""The width of the time before each line."""


class Report:
    """Prints the demo's output, line by line."""

    def __init__(self, console: Console | None = None) -> None:
        """Start the clock; `console` is standard output by default."""
        self._console = console or Console(highlight=False)
        self._clock = asyncio.get_running_loop().time
        self._started_at = self._clock()
        self._live: Live | None = None
        self._steps = 0
        self._max_chars = min(MAX_CHARS, max(20, self._console.width - MARGIN - 1))

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return self._clock() - self._started_at

    def text(self, *lines: str, style: str = "") -> None:
        """Print lines as they are."""
        for line in lines:
            self._print(Text(line, style=style))

    def step(self, title: str) -> None:
        """Print the heading of the next step."""
        self._steps += 1
        self.text("", f"{self._steps:>2}  {title}", style="bold")

    def event(self, text: str, style: str = "") -> None:
        """Print a line with the time."""
        self._print(Text.assemble((f"    {self.seconds:5.1f} s  ", "dim"), (text, style)))

    def answer(self, turn: ConversationMessage, remark: str = "") -> None:
        """Print the beginning of a turn's answer or error, and a remark."""
        answer = one_line(turn.agent_message or turn.error or "")
        self.event(shorten(answer, self._max_chars, placeholder="…"), "green")
        if remark:
            self.event(remark)

    def partial_answer(self, text: str) -> None:
        """Show the end of a growing answer on a terminal; the next line replaces it."""
        if not self._console.is_interactive:
            return
        if self._live is None:
            self._live = Live(console=self._console, transient=True, auto_refresh=False)
            self._live.start()
        end = one_line(text)[-self._max_chars :]
        self._live.update(Text(f"{'':{MARGIN}}{end}", style="dim green"), refresh=True)

    def conclusion(self, broken: Sequence[str], failures: Sequence[str], success: str) -> None:
        """Print `success`, or the broken promises; after `failures` of the environment they are only unknown."""
        word, style = ("UNKNOWN", "yellow") if failures else ("BROKEN", "bold red")
        self.text("", *(f"{word}  {sentence}" for sentence in broken), style=style)
        self.text(*(f"NOT PLAYED  {sentence}" for sentence in failures), style="bold red")
        if not (broken or failures):
            self.text(f"ok  {success}", style="bold green")

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, line: Text) -> None:
        self.close()
        self._console.print(line, soft_wrap=True)


def one_line(text: str) -> str:
    r"""Return `text` on one line, without Markdown's marks of headings and quotes.

    >>> one_line("one\n\n> two  three")
    'one two three'
    """
    return " ".join(re.sub(r"^[>#\s]+", "", text, flags=re.MULTILINE).split())
