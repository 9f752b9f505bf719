"""Connections to the gateway: how many there may be, and how long a client may take for its request (API-4).

Theory of operation. uvicorn waits for ever for the rest of a request: a client that sends half of one, and nothing
more, holds a connection until it goes away, and with enough of them nobody else gets in. uvicorn has no setting for it,
and an ASGI application is asked only once a head is whole. So this is its protocol with one timer more, which runs
while the client has something left to send: from the first moment to the end of the head, and from there to the end of
the body. It does not run while a request is answered: long polls and event streams take as long as they like. Between
two requests of a connection uvicorn's own timer runs.

The whole time is bounded, and not the pause between two pieces: a byte now and then would hold a connection as well.

An answer may be complete while the body of its request is still on its way (404, 403, 405: nobody reads it). The rest
is dropped, so that the client can read the answer, and the connection goes on with the next request. Once a request is
answered, nothing more is written for it: what is late or malformed then just ends the connection.
"""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Self

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from turnkeeper.api import problems
from turnkeeper.api.problems import ProblemError
from turnkeeper.models.settings.settings import Settings

MAX_HEAD_BYTES = 65_536
"""What a head may have without an end. Those of browsers have a kilobyte or two."""


@dataclass(frozen=True)
class ConnectionBounds:
    """What a client may take for the head and for the body of a request, and how many connections there may be."""

    head_seconds: float = 10.0
    body_seconds: float = 60.0
    max_connections: int = 1_000

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(settings.api_head_timeout, settings.api_body_timeout, settings.api_max_connections)


DEFAULT_BOUNDS = ConnectionBounds()


class BoundedConfig(uvicorn.Config):
    """A server's configuration, and the bounds of its connections."""

    def __init__(self, app: Any, bounds: ConnectionBounds, **options: Any) -> None:
        """Serve `app`; `options` are uvicorn's."""
        super().__init__(app, http=BoundedConnection, **options)
        self.bounds = bounds


class BoundedConnection(HttpToolsProtocol):
    """One connection: closed when the rest of a request doesn't come in time, and at once where there are too many."""

    def __init__(self, config: BoundedConfig, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        self._bounds = config.bounds
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._is_in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Wait for the first head, or let go of one connection too many."""
        super().connection_made(transport)
        if len(self.connections) > self._bounds.max_connections:
            self._reject(problems.too_many_connections(self._bounds.max_connections))
        else:
            self._set_timer(self._bounds.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_timer(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; what comes between two requests begins a head."""
        if self._is_between_requests:
            self._head_bytes += len(data)
            if self._timer is None:
                self._set_timer(self._bounds.head_seconds)
        super().data_received(data)
        if self._is_between_requests and self._head_bytes > MAX_HEAD_BYTES:
            self._reject(problems.head_too_large(MAX_HEAD_BYTES))

    def on_headers_complete(self) -> None:
        """Answer the request, and wait for its body."""
        self._head_bytes = 0
        self._unset_keepalive_if_required()
        self._set_timer(self._bounds.body_seconds)
        super().on_headers_complete()
        self._is_in_body = True

    def on_message_complete(self) -> None:
        """Wait for nothing any more: from here on the client waits for us, or has its answer already."""
        self._is_in_body = False
        self._set_timer(None)
        super().on_message_complete()
        if self._is_between_requests:
            # uvicorn's own timer began with the answer, and was stopped by the rest of the body.
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP request: where the next one begins can't be told."""
        self._reject(problems.malformed())

    def handle_websocket_upgrade(self) -> None:
        self._set_timer(None)
        super().handle_websocket_upgrade()

    @property
    def _is_between_requests(self) -> bool:
        return not self._is_in_body and (self.cycle is None or self.cycle.response_complete)

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._on_timeout)

    def _on_timeout(self) -> None:
        self._timer = None
        if self.flow.read_paused:
            # It is we who don't take the rest yet.
            self._set_timer(self._bounds.body_seconds)
        elif self._is_between_requests and not self._head_bytes:
            # A connection that a browser opened in case it would be of use: nothing was asked, nothing is answered.
            self.transport.close()
        else:
            self._reject(problems.request_timeout())

    def _reject(self, problem: ProblemError) -> None:
        """Answer, unless an answer has begun, and close the connection."""
        if self.transport.is_closing():
            return
        if self._is_between_requests or not (self.pipeline or self.cycle.response_started):
            self.transport.write(_closing_answer(problem))
        self.transport.close()


def _closing_answer(problem: ProblemError) -> bytes:
    answer = problems.answer(problem.problem, {**problem.headers, "Connection": "close"})
    status = HTTPStatus(answer.status_code)
    head = [f"HTTP/1.1 {status.value} {status.phrase}".encode()]
    head += [name + b": " + value for name, value in answer.raw_headers]
    return b"\r\n".join([*head, b"", bytes(answer.body)])
