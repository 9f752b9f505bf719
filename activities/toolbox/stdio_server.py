"""A tool server that is a local program, with JSON messages as lines of its input and output.

Unlike the SDK's own transport this one also handles bad servers: a line without an end, lines that are not messages,
invalid text. And nothing of the server outlives the worker: it runs under a guard (`process_guard.py`), in a session
and process group of its own.

The server's stderr goes to a file of its own and not to our log, since it may quote prompts.
"""

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from turnkeeper.activities.toolbox import process_guard
from turnkeeper.activities.toolbox.foreign_messages import MAX_MESSAGE_BYTES, parse_message
from turnkeeper.stores.private_files import make_private_folder, private_opener

END_SECONDS = 2 * process_guard.GRACE_SECONDS + 1.0
"""How long the process guard may take to end a server; then both are killed."""

STDERR_BYTES = 500_000
"""Size of a server's stderr log. One earlier log of the same size is kept."""

STDERR_LINE_BYTES = 10_000

MAX_LAST_WORDS = 3

_REGULAR_END = re.compile(r"\[ended with (0|-\d+)\]")
"""The process guard's line after a server that exited with 0 or by our signal."""

_ToSession = MemoryObjectSendStream[SessionMessage | Exception]
_FromSession = MemoryObjectReceiveStream[SessionMessage]
_Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StdioServer:
    """A server's command. `env` is added to the few variables that the SDK passes to every server."""

    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    log: Path | None = None
    """The file for its stderr; `None` to discard it."""
    last_words: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_LAST_WORDS), repr=False, compare=False)
    """The last lines of the newest process's stderr: why it did not start. Later lines may quote prompts."""

    @asynccontextmanager
    async def connected(self, stopping: asyncio.Event) -> AsyncIterator[_Streams]:
        """Run the server during the block, then end it and all that it started; `stopping` is set once it ends."""
        self.last_words.clear()
        process = await self._start()
        # Unbuffered: a sender waits for the receiver.
        received_in, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        send_stream, to_send = anyio.create_memory_object_stream[SessionMessage](0)
        pumps = [
            asyncio.create_task(_receive(process.stdout, received_in, stopping)),
            asyncio.create_task(_send(process.stdin, to_send, stopping)),
            asyncio.create_task(_keep_stderr(process.stderr, self.log, self.last_words)),
        ]
        try:
            yield received, send_stream
        finally:
            await process.end()
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)
            for stream in (received_in, received, send_stream, to_send):
                stream.close()

    async def _start(self) -> "_GuardedProcess":
        ours, its = socket.socketpair()
        with its:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", process_guard.__file__, str(its.fileno()), self.command, *self.args),
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=PIPE,
                    limit=MAX_MESSAGE_BYTES,
                    env={**get_default_environment(), **self.env},
                    cwd=self.cwd,
                    pass_fds=(its.fileno(),),
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        return _GuardedProcess(process, ours)


class _GuardedProcess:
    """A server's guard process, which leads the server's process group, and our end of the lifeline."""

    def __init__(self, process: Process, lifeline: socket.socket) -> None:
        if not (process.stdin and process.stdout and process.stderr):
            raise ValueError("a tool server needs three pipes")
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr
        self._process = process
        self._lifeline = lifeline

    async def end(self) -> None:
        """Close the lifeline, and return once the guard has ended the server, or both are killed."""
        self.stdin.close()
        self._lifeline.setblocking(False)
        try:
            async with asyncio.timeout(END_SECONDS):
                self._lifeline.shutdown(socket.SHUT_WR)
                # Not `process.wait()`, which waits for the pipes too: a process that left the group may have them open.
                await asyncio.get_running_loop().sock_recv(self._lifeline, 1)
        except (TimeoutError, OSError):
            _log.warning("the tool server of process %d did not end when told to", self._process.pid)
        finally:
            # Kill the whole group, in case the guard was killed. An empty group is no error.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._lifeline.close()
            self._process._transport.close()  # type: ignore[attr-defined]  # nothing public closes all pipes


async def _receive(stdout: asyncio.StreamReader, received: _ToSession, stopping: asyncio.Event) -> None:
    """Pass on the server's messages until its output ends."""
    noise = 0
    try:
        async for line in _lines(stdout):
            message = parse_message(line)
            if message is not None:
                await received.send(SessionMessage(message))
            elif line.strip():
                noise += 1
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass  # the session is closed
    finally:
        stopping.set()
        received.close()
        if noise:
            _log.warning("a tool server wrote %d lines to its output that are not messages", noise)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield lines; only the beginning of one that is too long."""
    is_rest = False
    while True:
        try:
            piece, is_end = await stream.readuntil(b"\n"), True
        except asyncio.LimitOverrunError as error:
            piece, is_end = await stream.readexactly(error.consumed), False
        except asyncio.IncompleteReadError as error:
            if error.partial and not is_rest:
                yield error.partial
            return
        if not is_rest:
            yield piece
        is_rest = not is_end


async def _send(stdin: asyncio.StreamWriter, to_send: _FromSession, stopping: asyncio.Event) -> None:
    """Pass messages to the server until it closes its input."""
    try:
        async for session_message in to_send:
            stdin.write(session_message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await stdin.drain()
    except OSError:
        stopping.set()
    finally:
        # Calls that wait to be sent must fail.
        to_send.close()
        stdin.close()


async def _keep_stderr(stderr: asyncio.StreamReader, file: Path | None, last_words: deque[str]) -> None:
    """Read the server's stderr, so that the server never blocks on it, and log a limited amount."""
    stderr_log = _open_stderr_log(file)
    try:
        async for line in _lines(stderr):
            text = line[:STDERR_LINE_BYTES].decode(errors="replace").rstrip()
            stderr_log.info("%s", text)
            if text and not _REGULAR_END.fullmatch(text):
                last_words.append("".join(char if char.isprintable() else "?" for char in text.strip()))
    finally:
        for handler in stderr_log.handlers:
            handler.close()


class _PrivateLog(RotatingFileHandler):
    """A rotating log that only its owner can read, since a tool server may quote prompts."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=private_opener)


def _open_stderr_log(file: Path | None) -> logging.Logger:
    # Not from `getLogger`: no configuration of the process must apply to it, and it has no parent.
    stderr_log = logging.Logger("stderr of a tool server")
    handler: logging.Handler = logging.NullHandler()
    if file is not None:
        try:
            make_private_folder(file.parent)
            handler = _PrivateLog(file, maxBytes=STDERR_BYTES, backupCount=1, encoding="utf-8")
        except OSError as error:
            _log.warning("the stderr of a tool server can't be logged (%s)", type(error).__name__)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    stderr_log.addHandler(handler)
    return stderr_log
