"""The gateway's own web server: uvicorn, and what event streams need beside it (API-3).

A stream never ends by itself, so uvicorn would wait for it in vain when it is asked to stop; and a client that takes
nothing more, without leaving, would be sent to for ever.
"""

import contextlib
import gc
import logging
import resource
import socket

import anyio
import anyio.lowlevel
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnkeeper.api.http.bounded_connections import DEFAULT_BOUNDS, BoundedConfig, ConnectionBounds

STOP_SECONDS = 3
"""What open requests get when the gateway stops."""

KEEP_ALIVE_SECONDS = 5
"""What a connection may be idle between two requests."""

SEND_SECONDS = 30.0
"""What a client of an event stream may take to accept an event before it is let go; it comes back to its place."""

LINGER_MILLIS = 60_000
"""What the kernel goes on for with a connection whose other side takes nothing."""

SPARE_DESCRIPTORS = 256
"""What the process may have open beside its clients' connections: Temporal's, the archive's, its files."""

_log = logging.getLogger(__name__)


def allow_descriptors(count: int) -> None:
    """Raise the limit of open files to `count`, as far as the system lets this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        limit = count if hard == resource.RLIM_INFINITY else min(count, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


class GatewayServer(uvicorn.Server):
    """Serves the gateway; its event streams end at once when it is asked to stop."""

    def __init__(self, app: FastAPI, *, host: str, port: int, bounds: ConnectionBounds = DEFAULT_BOUNDS) -> None:
        """Listen on `port` of `host` once it is run; port 0: one that is free."""
        config = BoundedConfig(
            app,
            bounds,
            host=host,
            port=port,
            timeout_graceful_shutdown=STOP_SECONDS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            # Logging is ours: one format for all, and no line for every poll.
            log_config=None,
            access_log=False,
        )
        super().__init__(config)
        self._app = app
        self._bounds = bounds

    @property
    def port(self) -> int:
        """Where it listens, once it has started."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal ends it; the process is the gateway's own."""
        # What is loaded by now stays: to look through all of it again and again would hold every stream up for 0.2 s.
        gc.collect()
        gc.freeze()
        allow_descriptors(self._bounds.max_connections + SPARE_DESCRIPTORS)
        super().run(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. A connection closed with something left to send is given up by the kernel, where that can be said."""
        await super().startup(sockets)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            for listener in self.servers[0].sockets:
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LINGER_MILLIS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then what else is open."""
        self._app.state.services.feed.stop()
        await super().shutdown(sockets)


class StalledStreamMiddleware:
    """Lets go of clients of event streams that take nothing any more. Nobody else waits for them meanwhile."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; a stream that is not taken any more just ends."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with anyio.CancelScope() as request:
            await self._app(scope, receive, _with_send_timeout(send, request))
        if request.cancel_called:
            _log.info("a client of %s took nothing for %g s and was let go", scope["path"], SEND_SECONDS)


def _with_send_timeout(send: Send, request: anyio.CancelScope) -> Send:
    is_stream = False

    async def send_in_time(message: Message) -> None:
        nonlocal is_stream
        if message["type"] == "http.response.start":
            is_stream = dict(message["headers"]).get(b"content-type", b"").startswith(b"text/event-stream")
        with anyio.move_on_after(SEND_SECONDS if is_stream else None) as timeout_scope:
            await send(message)
        if timeout_scope.cancelled_caught:
            request.cancel()
            await anyio.lowlevel.checkpoint()  # where the cancellation arrives

    return send_in_time
