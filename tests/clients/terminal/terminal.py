"""A terminal controlled by a test: a real command on a real pseudo terminal, and its screen.

Everything that the command writes goes through a terminal emulator, so what a test sees is what a person would. All
of it is kept with its times too (`recording`), to be played again.
"""

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import termios
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pyte

from tests.harness import BOUND
from tests.processes.forked import ForkedProcess, fork
from tests.processes.terminals import take_terminal

Folder = str | os.PathLike[str]

KEYS = {
    "enter": "\r",
    "c-c": "\x03",
    "c-d": "\x04",
    "c-u": "\x15",
    "escape": "\x1b",
    "up": "\x1b[A",
    "alt-enter": "\x1b\r",
    "backspace": "\x7f",
}

BEGIN, END = b"\x1b[?2026h", b"\x1b[?2026l"
"""Between these, a terminal with synchronised output shows nothing new."""

KILL_SECONDS = 5.0

CHUNK_BYTES = 65_536


class Emulator(pyte.HistoryScreen):
    """A screen with faint text, shown in another colour.

    Nobody pages back in its history, so it need not watch each access to one of its attributes for that.
    """

    __getattribute__ = object.__getattribute__

    @property
    def display(self) -> list[str]:
        """The lines; the second cell of a wide character is empty."""
        columns = range(self.columns)
        return [
            "".join([line[column].data for column in columns])
            for line in map(self.buffer.__getitem__, range(self.lines))
        ]

    def select_graphic_rendition(self, *codes: int, **more: bool) -> None:
        super().select_graphic_rendition(*codes, **more)
        if 2 in codes and not {38, 48} & set(codes):
            super().select_graphic_rendition(90)


@dataclass
class Terminal:
    """A command on a terminal of `columns` and `rows`; to be had from `terminal_with`."""

    process: Process | ForkedProcess
    master: int
    screen: Emulator
    recording: list[tuple[float, bytes]] = field(default_factory=list)
    """The output with its times, in seconds of the loop's clock."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _is_within_a_picture: bool = False
    """A screen update has arrived in part only: it must not be read yet."""
    _tail: bytes = b""

    def __post_init__(self) -> None:
        self._stream = pyte.ByteStream(self.screen)

    # ---- what a person sees

    def starts_in_bold(self, start: str) -> list[bool]:
        """Of each line that starts so, also of those that have scrolled away, whether that start is bold."""
        rows = [*self.screen.history.top, *(self.screen.buffer[row] for row in range(self.screen.lines))]
        starts = [[row[column] for column in range(len(start))] for row in rows]
        return [all(cell.bold for cell in cells) for cells in starts if "".join(cell.data for cell in cells) == start]

    @property
    def lines(self) -> list[str]:
        """All lines, those that have scrolled away too, without the blanks at their ends."""
        scrolled = [
            "".join(row[column].data for column in range(self.screen.columns)) for row in self.screen.history.top
        ]
        return [line.rstrip() for line in [*scrolled, *self.screen.display]]

    @property
    def text(self) -> str:
        """All that was printed and not erased."""
        return "\n".join(self.lines).rstrip()

    @property
    def on_screen(self) -> str:
        """The current text of the screen."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    # ---- what a person does

    def type(self, text: str, *, enter: bool = True) -> None:
        """Type a line."""
        self.type_bytes((text + (KEYS["enter"] if enter else "")).encode())

    def type_bytes(self, data: bytes) -> None:
        """Send what no keyboard sends, but a paste may."""
        os.write(self.master, data)

    def press(self, key: str) -> None:
        """Press one of `KEYS`."""
        os.write(self.master, KEYS[key].encode())

    def resize(self, *, columns: int, rows: int) -> None:
        """Give the terminal another size, as dragging its window does."""
        self.screen.resize(rows, columns)
        set_size(self.master, columns=columns, rows=rows)
        self.process.send_signal(signal.SIGWINCH)

    # ---- waiting

    async def until(self, what: str | Callable[["Terminal"], bool], *, bound: float = BOUND) -> None:
        """Wait for a text to be printed, or for a condition to hold."""
        condition = (lambda terminal: what in terminal.text) if isinstance(what, str) else what
        try:
            async with asyncio.timeout(bound):
                while self._is_within_a_picture or not condition(self):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"never came: {what!r}\n----\n{self.text}\n----") from None

    async def until_gone(self, text: str, *, bound: float = BOUND) -> None:
        """Wait until a text is no longer on the screen."""
        await self.until(lambda terminal: text not in terminal.on_screen, bound=bound)

    async def exit_code(self, *, bound: float = BOUND) -> int:
        """Return the command's exit code once it has ended and all it wrote has been read."""
        async with asyncio.timeout(bound):
            return await self.process.wait()

    # ---- reading

    def read(self) -> bool:
        """Read what the command has written; return `False` at its end."""
        try:
            output = os.read(self.master, CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError:  # on Linux, the other side was closed
            output = b""
        if output:
            self.recording.append((asyncio.get_running_loop().time(), output))
            self._stream.feed(output)
            begin_at, end_at = (self._tail + output).rfind(BEGIN), (self._tail + output).rfind(END)
            if begin_at != end_at:
                self._is_within_a_picture = begin_at > end_at
            self._tail = output[-len(BEGIN) + 1 :]
        self._changed.set()
        return bool(output)


@asynccontextmanager
async def terminal_with(
    command: Sequence[str], *, env: Mapping[str, str], cwd: Folder, columns: int = 90, rows: int = 32
) -> AsyncIterator[Terminal]:
    """Run `command` on a terminal of its own; what still runs after the block is killed."""

    async def start(slave: int) -> Process:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=with_terminal_name(env),
            cwd=cwd,
            start_new_session=True,
            # So that the terminal is its controlling one, and a closed window hangs it up.
            preexec_fn=take_terminal,
        )

    async with opened(start, columns=columns, rows=rows) as terminal:
        yield terminal


@asynccontextmanager
async def turnkeeper_terminal(
    *arguments: str, env: Mapping[str, str], cwd: Folder, columns: int = 90, rows: int = 32
) -> AsyncIterator[Terminal]:
    """As `terminal_with`, for our own command line, whose process is forked."""

    async def start(slave: int) -> ForkedProcess:
        env_of_terminal = with_terminal_name(env)
        streams = {"stdin": slave, "stdout": slave, "stderr": slave}
        return await fork("turnkeeper.cli", *arguments, env=env_of_terminal, cwd=cwd, **streams, terminal=True)

    async with opened(start, columns=columns, rows=rows) as terminal:
        yield terminal


@asynccontextmanager
async def opened(
    start: Callable[[int], Awaitable[Process | ForkedProcess]], *, columns: int, rows: int
) -> AsyncIterator[Terminal]:
    """Open a terminal and start its process, which is given the terminal's other end."""
    master, slave = pty.openpty()
    set_size(slave, columns=columns, rows=rows)
    os.set_blocking(master, False)
    process = await start(slave)
    os.close(slave)
    terminal = Terminal(process, master, Emulator(columns, rows, history=5_000, ratio=0.5))
    loop = asyncio.get_running_loop()

    def on_readable() -> None:
        if not terminal.read():
            loop.remove_reader(master)

    loop.add_reader(master, on_readable)
    try:
        yield terminal
    finally:
        await _end(process)
        loop.remove_reader(master)
        os.close(master)


def with_terminal_name(env: Mapping[str, str]) -> dict[str, str]:
    return {**env, "TERM": env.get("TERM", "xterm-256color")}


async def _end(process: Process | ForkedProcess) -> None:
    if process.returncode is None:
        process.kill()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KILL_SECONDS):
            await process.wait()


def set_size(descriptor: int, *, columns: int, rows: int) -> None:
    """Set the size of a terminal."""
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
