"""The gateway's web server: uvicorn, and what event streams need in addition (API-3).

Streams and waits don't end by themselves when it stops, so they are ended (`closing.py`); a request that takes too long
then is answered with a problem, where uvicorn would send plain text. And uvicorn would wait forever for a client that
stops reading without disconnecting.
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

import anyio
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnkeeper.api.http.bounded_connections import DEFAULT_BOUNDS, BoundedConfig, ConnectionBounds
from turnkeeper.api.http.closing import Closing
from turnkeeper.api.http.event_stream import EVENT_STREAM
from turnkeeper.api.http.problem_responses import problem_response
from turnkeeper.api.problems import problem
from turnkeeper.api.timeouts import Timeouts

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
