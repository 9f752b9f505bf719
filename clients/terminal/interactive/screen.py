"""The terminal: printed text scrolls up; below it are the live output, the input line and a status line.

This module knows nothing of sessions. To print, it erases the lower part, writes the text and draws the lower part
again, all in one write on the event loop's thread, so that no key is lost and no frame is torn.
"""

import asyncio
import fcntl
import io
import os
import re
import struct
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.data_structures import Size
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import ConditionalContainer, HSplit, Layout, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.layout.processors import BeforeInput
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style
from rich.console import Console, RenderableType
from rich.theme import Theme

from turnkeeper.clients.terminal.formatting import well_formed

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


MAX_INPUT_ROWS = 6

ESCAPE_SECONDS = 0.2
"""How long after Esc another key may follow that belongs to it: Alt-Enter is Esc and Enter."""

STYLE = Style.from_dict({"sign": "bold ansicyan", "status": "ansibrightblack", "question": "bold ansiyellow"})


class Screen:
    """A terminal. Ctrl-C calls `on_interrupt`, and Esc calls `on_escape`.

    `on_line` receives typed lines, and returns whether it is done with the line; if not, it stays.
    """

    def __init__(
        self,
        *,
        sign: str,
        on_line: Callable[[str], bool],
        on_interrupt: Callable[[], None],
        on_escape: Callable[[], None],
        on_change: Callable[[str], None],
    ) -> None:
        """Stdin and stdout are a terminal; nothing is drawn before `run`."""
        self._live = ""
        self._status = ""
        self._question = ""
        self._is_left = False
        self._on_line = on_line
        # Without asking for the cursor's position: a slow terminal's reply would get into the typed text.
        self._output = _WholeFrames(sys.stdout, _terminal_size, enable_cpr=False)
        self._buffer = Buffer(
            multiline=True,
            accept_handler=self._accept,
            on_text_changed=lambda buffer: on_change(buffer.text),
        )
        self._app: Application[None] = Application(
            layout=self._layout(sign),
            key_bindings=self._keys(on_interrupt, on_escape),
            style=STYLE,
            color_depth=ColorDepth.from_env(),  # with NO_COLOR there are none
            erase_when_done=True,
            input=_TypeAheadInput(sys.stdin),
            output=self._output,
            after_render=lambda _: self._output.release(),
        )
        # Other keys also start with Esc, but their next character follows at once.
        self._app.ttimeoutlen = self._app.timeoutlen = ESCAPE_SECONDS

    async def run(self) -> None:
        """Read input until `leave`."""
        try:
            await self._app.run_async(handle_sigint=False)
        finally:
            self._output.release()

    def leave(self) -> None:
        """Make `run` return and erase everything below the printed text."""
        self._is_left = True
        if self._is_drawn:
            self._app.exit()

    @property
    def _is_drawn(self) -> bool:
        return self._app.is_running and not self._app.is_done

    # ---- output

    def print(self, text: str) -> None:
        if self._is_drawn:
            self._output.hold()
            self._app.renderer.erase()
        self._output.write_raw(text.replace("\n", "\r\n"))
        self._output.flush()
        if self._is_drawn:
            self._app.invalidate()

    def show(self, *, live: str, question: str, status: str) -> None:
        """Replace what is shown below the printed text."""
        if (live, question, status) != (self._live, self._question, self._status):
            self._live, self._question, self._status = live, question, status
            self._app.invalidate()

    @property
    def size(self) -> Size:
        return self._output.get_size()

    @property
    def input(self) -> str:
        return self._buffer.text

    def restore(self, text: str) -> bool:
        """Put a text back into the input line; False if that has other text or the user has left."""
        if self._is_left or self._buffer.text:
            return False
        self._buffer.text = text
        self._buffer.cursor_position = len(text)
        return True

    def clear_input(self) -> None:
        self._buffer.reset()

    # ---- layout and keys

    def _accept(self, buffer: Buffer) -> bool:
        text = well_formed(buffer.text).strip()
        return text != "" and not self._on_line(text)

    def _layout(self, sign: str) -> Layout:
        def text_window(text: Callable[[], str], style: str = "") -> ConditionalContainer:
            control = FormattedTextControl(lambda: ANSI(text()))
            window = Window(control, dont_extend_height=True, wrap_lines=True, style=style)
            return ConditionalContainer(window, Condition(lambda: text() != ""))

        input_window = Window(
            BufferControl(self._buffer, input_processors=[BeforeInput([("class:sign", f"{sign} ")])]),
            height=lambda: Dimension(min=1, max=MAX_INPUT_ROWS),
            wrap_lines=True,
            dont_extend_height=True,
        )
        parts = [
            text_window(lambda: self._live),
            text_window(lambda: self._question, "class:question"),
            Window(height=1, char=" "),
            input_window,
            Window(FormattedTextControl(lambda: self._status), height=1, style="class:status"),
        ]
        return Layout(HSplit(parts), focused_element=input_window)

    def _keys(self, on_interrupt: Callable[[], None], on_escape: Callable[[], None]) -> KeyBindings:
        keys = KeyBindings()
        keys.add("enter")(lambda event: self._buffer.validate_and_handle())
        keys.add("escape", "enter")(lambda event: self._buffer.insert_text("\n"))
        keys.add("c-j")(lambda event: self._buffer.insert_text("\n"))
        keys.add("c-c")(lambda event: on_interrupt())
        keys.add("escape")(lambda event: on_escape())

        @keys.add("c-d")
        def _(event: KeyPressEvent) -> None:
            if self._buffer.text:
                self._buffer.delete()
            else:
                self.leave()

        return keys


class _TypeAheadInput(Vt100Input):
    """Input that includes keys typed before the terminal was in raw mode: Enter sends there too (API-6)."""

    @contextmanager
    def attach(self, input_ready_callback: Callable[[], None]) -> Iterator[None]:
        """Call `input_ready_callback` inside the block for keys, first for those typed before raw mode."""
        with super().attach(input_ready_callback):
            (waiting,) = struct.unpack("i", fcntl.ioctl(self.fileno(), termios.FIONREAD, bytes(struct.calcsize("i"))))
            # Until now, the terminal has turned Enter into a line feed and Ctrl-D into a NUL.
            text = self.stdin_reader.read(waiting) if waiting else ""
            self.vt100_parser.feed(text.replace("\n", "\r").replace("\0", "\x04"))
            asyncio.get_running_loop().call_soon(input_ready_callback)
            yield


class _WholeFrames(Vt100_Output):
    """Writes each frame at once, so that no half frame is visible.

    Terminals with synchronised output (mode 2026) also show it at once; others ignore the two sequences.
    """

    BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"

    _is_on_hold = False

    def hold(self) -> None:
        """Buffer output until `release`."""
        self._is_on_hold = True

    def release(self) -> None:
        """Write the buffered output."""
        self._is_on_hold = False
        self.flush()

    def flush(self) -> None:
        """Write the buffered output, except between `hold` and `release`."""
        if self._buffer and not self._is_on_hold:
            self._buffer = [self.BEGIN, *self._buffer, self.END]
            super().flush()


def _terminal_size() -> Size:
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        columns, rows = 80, 24
    return Size(rows=rows or 24, columns=columns or 80)
