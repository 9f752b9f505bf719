"""The gateway's web server: uvicorn with limits of connections (API-4), and what event streams need (API-3).

Streams and waits don't end by themselves when it stops, so they are ended (`streams.py`); a request that takes too long
then is answered with a problem, where uvicorn would send plain text. And uvicorn would wait forever for a client that
stops reading without disconnecting.

**Connections.** uvicorn waits forever for the rest of a request. A client that sends half of one holds a connection,
and with enough of those nobody else gets in. uvicorn has no setting for this, and calls an ASGI application only once
the head is complete. So this extends its protocol with a timer that runs while the client has something left to send:
first the head, then the body. The timer doesn't run while a request is answered, since long polls and event streams may
take as long as they like. Between two requests of a connection uvicorn's own timer runs.

While there are as many connections as there may be, a new one replaces one that waits for its client: first those
between two requests, then those with a part of a request, the oldest first. So only requests that are being answered
keep others out, and strangers are answered at once.

The timer limits the whole time and not the pause between two pieces: one byte now and then would hold a connection too.

A response may be complete while the body of its request is still arriving (404, 403, 405: nobody reads it). The rest
is dropped, so that the client can read the response, and the connection continues with the next request. Once a
request is answered, nothing more is written for it: late or malformed data just closes the connection.
"""

import asyncio
import contextlib
import gc
import logging
import math
import resource
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Self

import anyio
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from turnkeeper.api.http.responses import problem_response
from turnkeeper.api.http.streams import EVENT_STREAM, Closing
from turnkeeper.api.problems import ProblemError, problem
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.settings.settings import Settings

MAX_HEAD_BYTES = 65_536
"""Limit of a request's head. Those of browsers have a kilobyte or two."""


@dataclass(frozen=True)
class ConnectionBounds:
    """Seconds for sending a head and a body, and the number of connections."""

    head_seconds: float = 10.0
    body_seconds: float = 60.0
    max_connections: int = 1_000

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(settings.api_head_timeout, settings.api_body_timeout, settings.api_max_connections)


DEFAULT_BOUNDS = ConnectionBounds()


class BoundedConfig(uvicorn.Config):
    """uvicorn's configuration, and the limits of connections. `options` are uvicorn's."""

    def __init__(self, app: Any, bounds: ConnectionBounds, **options: Any) -> None:
        super().__init__(app, http=BoundedConnection, **options)
        self.bounds = bounds
        self.idle: dict[BoundedConnection, None] = {}
        """Connections between two requests, in the order in which they became so."""
        self.receiving: dict[BoundedConnection, None] = {}
        """Those whose client has sent a part of a request, in that order."""


class BoundedConnection(HttpToolsProtocol):
    """One connection: closed when a request doesn't arrive in time, or while it waits and there are too many."""

    def __init__(self, config: BoundedConfig, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        self._bounds = config.bounds
        self._idle, self._receiving = self._waiting = (config.idle, config.receiving)
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._is_in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Wait for the first head. If there are too many connections, close one that waits for its client."""
        super().connection_made(transport)
        if len(self.connections) > self._bounds.max_connections:
            waiting = next((connection for group in self._waiting for connection in group), self)
            waiting._make_room()
        if not transport.is_closing():
            self._wait_in(self._idle)
            self._set_timer(self._bounds.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_timer(None)
        self._wait_in(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on. Data between two requests begins a head."""
        if self._is_between_requests:
            self._head_bytes += len(data)
            self._wait_in(self._receiving)
            if self._timer is None:
                self._set_timer(self._bounds.head_seconds)
        super().data_received(data)
        if self._is_between_requests and self._head_bytes > MAX_HEAD_BYTES:
            self._reject(problem("head-too-large", max_bytes=MAX_HEAD_BYTES))

    def on_headers_complete(self) -> None:
        """Start the response, and the timer of the body."""
        self._head_bytes = 0
        self._unset_keepalive_if_required()
        self._set_timer(self._bounds.body_seconds)
        super().on_headers_complete()
        self._is_in_body = True

    def on_message_complete(self) -> None:
        """Stop the timer: the client has sent everything."""
        self._is_in_body = False
        self._set_timer(None)
        super().on_message_complete()
        self._wait_in(self._idle if self._is_between_requests else None)
        if self._is_between_requests:
            # uvicorn's own timer started with the response, and was stopped by the rest of the body.
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of this one's body."""
        super().on_response_complete()
        if self._is_between_requests and not self.transport.is_closing():
            self._wait_in(self._idle)

    def send_400_response(self, msg: str) -> None:
        """Reject what is not HTTP, and close the connection: where the next request begins is unknown."""
        self._reject(problem("malformed-request"))

    def handle_websocket_upgrade(self) -> None:
        self._set_timer(None)
        super().handle_websocket_upgrade()

    @property
    def _is_between_requests(self) -> bool:
        return not self._is_in_body and (self.cycle is None or self.cycle.response_complete)

    def _wait_in(self, group: "dict[BoundedConnection, None] | None") -> None:
        """Note what is waited for, and since when, unless that was so before; `None`: for us."""
        if group is not None and self in group:
            return
        for other in self._waiting:
            other.pop(self, None)
        if group is not None:
            group[self] = None

    def _make_room(self) -> None:
        """Close this connection now, as another one needs its place."""
        is_idle = self in self._idle
        self._wait_in(None)
        if not is_idle:
            self._reject(problem("too-many-connections", count=self._bounds.max_connections))
        if is_idle or self.transport.get_write_buffer_size():
            self.transport.abort()  # a client that doesn't read would delay a proper close

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._on_timeout)

    def _on_timeout(self) -> None:
        self._timer = None
        if self.flow.read_paused:
            # The client is not slow: we have paused reading.
            self._set_timer(self._bounds.body_seconds)
        elif self._is_between_requests and not self._head_bytes:
            # Browsers open spare connections. Nothing was requested, so nothing is sent.
            self.transport.close()
        else:
            self._reject(problem("request-timeout"))

    def _reject(self, error: ProblemError) -> None:
        """Send the problem, unless a response has begun, and close the connection."""
        if self.transport.is_closing():
            return
        if self._is_between_requests or not (self.pipeline or self.cycle.response_started):
            self.transport.write(_closing_response(error))
        self.transport.close()


def _closing_response(error: ProblemError) -> bytes:
    response = problem_response(error, {"Connection": "close"})
    status = HTTPStatus(response.status_code)
    head = [f"HTTP/1.1 {status.value} {status.phrase}".encode()]
    head += [name + b": " + value for name, value in response.raw_headers]
    return b"\r\n".join([*head, b"", bytes(response.body)])


NOT_FINISHED = (
    "This gateway is stopping and could not finish the request, which may or may not have been done. Try again."
)

LINGER_MILLIS = 60_000
"""After how long the kernel drops a connection whose other side doesn't acknowledge data."""

SPARE_DESCRIPTORS = 256
"""File descriptors beyond the clients' connections: Temporal, the archive, files."""

_log = logging.getLogger(__name__)


def allow_descriptors(count: int) -> None:
    """Raise the limit of open files to `count`, or as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        limit = count if hard == resource.RLIM_INFINITY else min(count, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


class GatewayServer(uvicorn.Server):
    """Serves the gateway on `host` and `port` (0: any free port). Waits and event streams end at once when it stops."""

    def __init__(
        self,
        app: FastAPI,
        *,
        host: str,
        port: int,
        bounds: ConnectionBounds = DEFAULT_BOUNDS,
        watchdog: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """Prepare to serve `app`. `watchdog` is entered on the server's event loop while it serves."""
        timeouts: Timeouts = app.state.timeouts
        config = BoundedConfig(
            app,
            bounds,
            host=host,
            port=port,
            # The second is for sending the answers.
            timeout_graceful_shutdown=timeouts.stop + 1,
            timeout_keep_alive=timeouts.keep_alive,
            # Logging is configured elsewhere: one format for all processes, and no line for every poll.
            log_config=None,
            access_log=False,
        )
        super().__init__(config)
        self._app = app
        self._bounds = bounds
        self._watchdog = watchdog

    @property
    def port(self) -> int:
        """The port, once the server has started."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal arrives. Changes the garbage collector and limits of the whole process."""
        # Excludes what is loaded now from garbage collection, whose full runs would pause all streams for 0.2 s.
        gc.collect()
        gc.freeze()
        allow_descriptors(self._bounds.max_connections + SPARE_DESCRIPTORS)
        super().run(sockets)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        with self._watchdog():
            await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and make the kernel drop closed connections with unsent data, on systems that support that."""
        await super().startup(sockets)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            for listener in self.servers[0].sockets:
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LINGER_MILLIS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the waits and streams first, then everything else."""
        self._app.state.closing.begin()
        await super().shutdown(sockets)


class ClosingMiddleware:
    """Answers requests with a problem that are not answered `Timeouts.stop` after the gateway began to stop."""

    def __init__(self, app: ASGIApp, *, closing: Closing, timeouts: Timeouts) -> None:
        self._app = app
        self._closing = closing
        self._grace = timeouts.stop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            async with self._closing.time_limit(grace=self._grace):
                await self._app(scope, receive, send_and_note)
        except TimeoutError:
            if not self._closing.has_begun:
                raise
            _log.warning("%s was not finished when the gateway stopped", scope["path"])
            if not has_begun:
                await problem_response(problem("stopping", NOT_FINISHED))(scope, receive, send)


class StalledStreamMiddleware:
    """Disconnects clients of event streams that have stopped reading."""

    def __init__(self, app: ASGIApp, *, timeouts: Timeouts) -> None:
        self._app = app
        self._timeouts = timeouts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with anyio.CancelScope() as request:
            await self._app(scope, receive, _with_send_timeout(send, request, self._timeouts.stalled))
        if request.cancel_called:
            _log.info(
                "a client of %s read nothing for %g s and was disconnected", scope["path"], self._timeouts.stalled
            )


def _with_send_timeout(send: Send, request: anyio.CancelScope, seconds: float) -> Send:
    """Return a `send` that ends the request when the client of an event stream takes too long to accept a message."""
    clock, is_stream = asyncio.get_running_loop().time, False

    async def send_in_time(message: Message) -> None:
        nonlocal is_stream
        if message["type"] == "http.response.start":
            is_stream = dict(message["headers"]).get(b"content-type", b"").startswith(EVENT_STREAM.encode())
        if not is_stream or request.deadline < math.inf:  # another message is on its way
            await send(message)
            return
        request.deadline = clock() + seconds
        try:
            await send(message)
        finally:
            request.deadline = math.inf

    return send_in_time
