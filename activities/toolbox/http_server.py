"""A tool server with an HTTP endpoint, and the meaning of HTTP responses for its calls (AGT-7).

In the SDK's transport a failed request breaks the connection and every other call on it, and some invalid responses
look like rejections. Here each becomes a JSON-RPC error for its own request:

    the request was not sent, or its session is unknown    NOT_SENT           nothing was called
    4xx                                                    INVALID_REQUEST    rejected
    5xx, a broken connection, an invalid response          CONNECTION_CLOSED  outcome unknown

This module works between the SDK and the network. The SDK still handles redirects, sessions and event streams; only
messages are parsed here first (`foreign_messages.py`).
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from mcp_types import INVALID_REQUEST, JSONRPCError, JSONRPCMessage, JSONRPCResponse

from turnkeeper.activities.toolbox.foreign_messages import (
    MAX_MESSAGE_BYTES,
    NOT_SENT,
    lost_answer_error,
    parse_message,
    parse_whole_message,
)

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
    """Return the answer in `body`, or an error in its place."""
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
    """Return the body of `response`; `None` if it is too large."""
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
