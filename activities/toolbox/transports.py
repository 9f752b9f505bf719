"""The two ways to a foreign tool server: a local program, and an HTTP endpoint (AGT-6, AGT-7).

A local program gets JSON messages as lines of its input, and writes them as lines of its output. Unlike the SDK's own
transport this one also handles bad servers: a line without an end, lines that are not messages, invalid text. And
nothing of the server outlives the worker: it runs under a guard (`process_guard.py`), in a session and process group of
its own.

The server's stderr goes to a file of its own and not to our log, since it may quote prompts.

An HTTP endpoint's responses have a meaning for its calls. In the SDK's transport a failed request breaks the connection
and every other call on it, and some invalid responses look like rejections. Here each becomes a JSON-RPC error for its
own request:

    the request was not sent, or its session is unknown    NOT_SENT           nothing was called
    4xx                                                    INVALID_REQUEST    rejected
    5xx, a broken connection, an invalid response          CONNECTION_CLOSED  outcome unknown

`HttpServer` works between the SDK and the network. The SDK still handles redirects, sessions and event streams; only
messages are parsed here first (`foreign_messages.py`).
"""

import asyncio
import contextlib
import json
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
from http import HTTPStatus
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.sse import sse_client
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, JSONRPCError, JSONRPCMessage, JSONRPCResponse

from turnkeeper.activities.toolbox import process_guard
from turnkeeper.activities.toolbox.foreign_messages import (
    MAX_MESSAGE_BYTES,
    NOT_SENT,
    lost_answer_error,
    parse_message,
    parse_whole_message,
)
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


CONNECT_SECONDS = 10.0
WRITE_SECONDS = 30.0
MAX_SSE_SILENCE = 86_400.0
GOODBYE_SECONDS = 2.0
"""How long closing a session waits for the server's response."""

_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)


@dataclass(frozen=True)
class HttpServer:
    """A server's address, and the headers of every request."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @asynccontextmanager
    async def connected(self, stopping: asyncio.Event) -> AsyncIterator[Any]:
        """Yield the SDK's streams; `stopping` is set once they are closed."""
        # No read timeout: the call has a time limit of its own.
        timeout = httpx2.Timeout(CONNECT_SECONDS, write=WRITE_SECONDS, read=None)
        async with (
            _Wire(stopping, headers=dict(self.headers), timeout=timeout) as wire,
            streamable_http_client(self.url, http_client=wire, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
        ):
            yield streams


@dataclass(frozen=True)
class SseServer(HttpServer):
    """A server with the older transport: a stream of events for all answers, and an address for messages."""

    @asynccontextmanager
    async def connected(self, stopping: asyncio.Event) -> AsyncIterator[Any]:
        """Yield the SDK's streams; `stopping` is set once they are closed. Silence does not end them."""
        try:
            async with sse_client(
                self.url, dict(self.headers), CONNECT_SECONDS, sse_read_timeout=MAX_SSE_SILENCE
            ) as streams:
                yield streams
        finally:
            stopping.set()


class _Wire(httpx2.AsyncClient):
    """An HTTP client whose responses are always ones that the SDK interprets correctly."""

    def __init__(self, stopping: asyncio.Event, **options: Any) -> None:
        super().__init__(**options)
        self._stopping = stopping

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request. Failures of a message become a response of our own."""
        if request.method != "POST":
            async with asyncio.timeout(GOODBYE_SECONDS if request.method == "DELETE" else None):
                return _with_messages_read(await super().send(request, **options))
        try:
            return await self._readable(await super().send(request, **options), _id_of(request))
        except _NOT_SENT as error:
            self._stopping.set()
            return _instead(
                request, lost_answer_error(None, f"The server was not reached ({type(error).__name__}).", code=NOT_SENT)
            )
        except httpx2.RequestError as error:
            return _instead(request, lost_answer_error(None, f"The connection broke ({type(error).__name__})."))

    async def _readable(self, response: httpx2.Response, request_id: int | str | None) -> httpx2.Response:
        """Return `response`, or a response of our own in its place."""
        if response.next_request:
            return response  # the SDK handles redirects
        if response.status_code == HTTPStatus.NOT_FOUND and MCP_SESSION_ID in response.request.headers:
            # The server was restarted: after another `initialize` it accepts the same request.
            self._stopping.set()
            return await _replaced(
                response, lost_answer_error(None, "The server has forgotten the session.", code=NOT_SENT)
            )
        if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return await _replaced(
                response, lost_answer_error(None, f"The server answered HTTP {response.status_code}.")
            )
        kind = response.headers.get("content-type", "").lower()
        if kind.startswith("application/json"):
            return await _replaced(response, _answer_to(request_id, await _body(response), response.status_code))
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            return await _replaced(response, _refusal(response.status_code))
        if request_id is None or kind.startswith("text/event-stream"):
            return _with_messages_read(response)
        return await _replaced(response, lost_answer_error(None, _NO_ANSWER))


class _Events(httpx2.AsyncByteStream):
    """The body of a stream of events, with its messages as we parse them."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        buffer = bytearray()
        async for piece in self._response.aiter_bytes():
            end = 1 + max(piece.rfind(b"\n"), piece.rfind(b"\r"))
            buffer += piece[:end]
            if end or len(buffer) > MAX_MESSAGE_BYTES:  # the SDK rejects longer events
                yield b"".join(map(_as_read, bytes(buffer).splitlines(keepends=True)))
                buffer.clear()
            buffer += piece[end:]
        yield bytes(buffer)

    async def aclose(self) -> None:
        await self._response.aclose()


def _as_read(line: bytes) -> bytes:
    """Return a line of a stream of events, with its message as we parse it. Few servers split one over lines."""
    content = line.rstrip(b"\r\n")
    if not content.startswith(b"data:"):
        return line
    message = parse_whole_message(content.removeprefix(b"data:").decode(errors="replace"))
    if message is None:
        return line
    return b"data: " + _json_of(message).encode() + line[len(content) :]


def _with_messages_read(response: httpx2.Response) -> httpx2.Response:
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        return response
    headers = {name: value for name, value in response.headers.items() if name not in _HEADERS_OF_A_BODY}
    return httpx2.Response(response.status_code, headers=headers, stream=_Events(response), request=response.request)


_HEADERS_OF_A_BODY = ("content-encoding", "content-length", "transfer-encoding")
_NO_ANSWER = "The server sent no answer to the request."


def _id_of(request: httpx2.Request) -> int | str | None:
    """Return the id of the message in a request; `None` for notifications and for our own responses."""
    message = json.loads(request.content)
    request_id: int | str | None = message.get("id") if "method" in message else None
    return request_id


def _answer_to(request_id: int | str | None, body: bytes | None, status: int) -> JSONRPCMessage:
    message = None if body is None else parse_message(body)
    if isinstance(message, JSONRPCError) and (message.id is None or str(message.id) == str(request_id)):
        return message
    if status >= HTTPStatus.BAD_REQUEST:
        return _refusal(status)
    if isinstance(message, JSONRPCResponse) and str(message.id) == str(request_id):
        return message
    return lost_answer_error(None, _NO_ANSWER)


def _refusal(status: int) -> JSONRPCError:
    return lost_answer_error(None, f"The server answered HTTP {status}.", code=INVALID_REQUEST)


async def _body(response: httpx2.Response) -> bytes | None:
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > MAX_MESSAGE_BYTES:
            return None
    return bytes(body)


async def _replaced(response: httpx2.Response, message: JSONRPCMessage) -> httpx2.Response:
    """Return a response with `message`, and with the session id of `response`."""
    await response.aclose()
    replacing = _instead(response.request, message)
    if MCP_SESSION_ID in response.headers:
        replacing.headers[MCP_SESSION_ID] = response.headers[MCP_SESSION_ID]
    return replacing


def _instead(request: httpx2.Request, message: JSONRPCMessage) -> httpx2.Response:
    # With an error status the SDK passes the error to the caller, whatever its id is.
    status = HTTPStatus.BAD_GATEWAY if isinstance(message, JSONRPCError) else HTTPStatus.OK
    headers = {"content-type": "application/json"}
    return httpx2.Response(status, headers=headers, content=_json_of(message), request=request)


def _json_of(message: JSONRPCMessage) -> str:
    return message.model_dump_json(by_alias=True, exclude_unset=True)
