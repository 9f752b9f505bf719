"""What people see of the demo: numbered steps, each line with the seconds since the beginning.

On a terminal the answer that is being written stands below them for as long as it grows. Elsewhere, and with
`NO_COLOR`, it is plain lines.
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
"""How much of an answer is shown, at most: a line of it."""

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
        self._max_chars = min(MAX_CHARS, max(20, self._console.width - MARGIN - 1))

    @property
    def seconds(self) -> float:
        """The seconds since the beginning."""
        return self._clock() - self._started

    def text(self, *lines: str, style: str = "") -> None:
        """Print lines as they are."""
        for line in lines:
            self._print(Text(line, style=style))

    def step(self, title: str) -> None:
        """Begin the next numbered step."""
        self._steps += 1
        self.text("", f"{self._steps:>2}  {title}", style="bold")

    def event(self, text: str, style: str = "") -> None:
        """Print what has happened, and when."""
        self._print(Text.assemble((f"    {self.seconds:5.1f} s  ", "dim"), (text, style)))

    def answer(self, turn: ConversationMessage, remark: str = "") -> None:
        """Print what came of a prompt in short, and a remark on it."""
        answer = one_line(turn.agent_message or turn.error or "")
        self.event(shorten(answer, self._max_chars, placeholder="…"), "green")
        if remark:
            self.event(remark)

    def partial_answer(self, text: str) -> None:
        """Show the end of what is being written, where there is a terminal; the next line takes its place."""
        if not self._console.is_interactive:
            return
        if self._live is None:
            self._live = Live(console=self._console, transient=True, auto_refresh=False)
            self._live.start()
        end = one_line(text)[-self._max_chars :]
        self._live.update(Text(f"{'':{MARGIN}}{end}", style="dim green"), refresh=True)

    def conclusion(self, broken: Sequence[str], failures: Sequence[str], success: str) -> None:
        """Print `success`, or which promises are broken; after failures of the environment they are only open."""
        word, style = ("OPEN", "yellow") if failures else ("BROKEN", "bold red")
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
    r"""Return `text` on one line, without Markdown's headings and quotation marks.

    >>> one_line("one\n\n> two  three")
    'one two three'
    """
    return " ".join(re.sub(r"^[>#\s]+", "", text, flags=re.MULTILINE).split())
