"""Limits of connections: how many there may be, and how long a client may take to send a request (API-4).

uvicorn waits forever for the rest of a request. A client that sends half of one holds a connection, and with enough of
those nobody else gets in. uvicorn has no setting for this, and calls an ASGI application only once the head is
complete. So this extends its protocol with a timer that runs while the client has something left to send: first the
head, then the body. The timer doesn't run while a request is answered, since long polls and event streams may take as
long as they like. Between two requests of a connection uvicorn's own timer runs.

While there are as many connections as there may be, a new one replaces one that waits for its client: first those
between two requests, then those with a part of a request, the oldest first. So only requests that are being answered
keep others out, and strangers are answered at once.

The timer limits the whole time and not the pause between two pieces: one byte now and then would hold a connection too.

A response may be complete while the body of its request is still arriving (404, 403, 405: nobody reads it). The rest
is dropped, so that the client can read the response, and the connection continues with the next request. Once a
request is answered, nothing more is written for it: late or malformed data just closes the connection.
"""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Self

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from turnkeeper.api.http.problem_responses import problem_response
from turnkeeper.api.problems import ProblemError, problem
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
