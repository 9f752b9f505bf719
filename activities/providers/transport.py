"""One streamed request to a vendor through the vendor's official SDK (AGT-4, AGT-9).

The SDK provides credentials, addresses and HTTP. Its types, retries and parsing of answers are not used:
`post(…, cast_to=object, stream=True)` sends the body unchanged, and `EventReader` reads the response. The SDKs of many
vendors are generated alike, so one class serves all of them.

This module handles what an SDK doesn't. Its own retries are switched off, since the workflow retries. An HTML page with
status 200 is an error, not an empty stream. Bodies are limited (`bounded_body.py`). `json.JSONDecodeError` and the
exceptions of the HTTP library become `ModelError`. And a stream that ends cleanly but before its last event is an
error: the provider, which knows the last event, raises it.

SDKs are imported at the first request, in a thread: that takes a second or two, and heartbeats must continue.

Its stream is read here, not by the SDK: that needs more CPU time for a chunk, and overlooks events without an `event:`
line, which some servers send to Anthropic's SDK; events without data; the difference between `[DONE]` and a lost
connection; bytes that are not UTF-8, which are replaced, as the standard of event streams demands; and a last event
that lacks its blank line, if its data is whole.
"""

import asyncio
import importlib
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from datetime import UTC, datetime
from http import HTTPStatus
from types import ModuleType
from typing import Any, NamedTuple

from turnkeeper.activities.providers.answer_fields import EARLY_END, is_storable, unclear_answer_error
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.activities.providers.provider import Vendor
from turnkeeper.activities.providers.vendor_errors import error_from

CONNECT_TIMEOUT = 10.0
"""Seconds to connect."""

DRAIN_SECONDS = 0.5
"""How long to read on after `[DONE]`, so that the connection can be reused."""

Event = dict[str, Any]
"""An event of a vendor's stream: a JSON object, of at most `MAX_NESTING` levels, its numbers finite."""

MakeClient = Callable[[ModuleType, Any], Any]
"""Creates the asynchronous client of an SDK with this `http_client` and without retries. May raise what the SDK
raises."""


BEGINNING_BYTES = 1_000
"""Bytes of a stream that show whether it has events."""

_END_OF_LINE = re.compile(rb"\r\n|\n|\r")


class ReceivedEvent(NamedTuple):
    """An event of the stream."""

    name: str
    """Empty if it has none."""
    data: str


class EventReader:
    r"""Finds the events in the bytes of one stream.

    >>> reader = EventReader()
    >>> pieces = (b'data: {"a"', b': 1}\r', b'\n\r\ndata: [DO', b'NE]\n\n')
    >>> [event.data for piece in pieces for event in reader.feed(piece)]
    ['{"a": 1}', '[DONE]']
    >>> reader.is_done, reader.is_foreign
    (True, False)
    """

    def __init__(self) -> None:
        self.is_done = False
        """`[DONE]` has arrived."""
        self.beginning = b""
        """The first bytes before the first event."""
        self._has_events = False
        self._pieces: list[bytes] = []
        """The pieces of a line that has not ended."""
        self._skips_line_feed = False
        self._name = ""
        self._data: list[bytes] = []

    @property
    def is_foreign(self) -> bool:
        """Whether the stream, which has ended, had content but no event."""
        lines = self.beginning.splitlines()
        return not self._has_events and any(line.strip() and not line.startswith(b":") for line in lines)

    def feed(self, piece: bytes) -> Iterator[ReceivedEvent]:
        """Yield the events that end with `piece`."""
        if not self._has_events:
            self.beginning = (self.beginning + piece)[:BEGINNING_BYTES]
        if self._skips_line_feed and piece:
            piece = piece.removeprefix(b"\n")
        self._skips_line_feed = piece.endswith(b"\r")
        *lines, rest = _END_OF_LINE.split(piece)
        if lines and self._pieces:
            lines[0] = b"".join([*self._pieces, lines[0]])
            self._pieces.clear()
        if rest:
            self._pieces.append(rest)
        for line in lines:
            if line:
                self._note(line)
            elif self._data:
                yield self._event()
            else:
                self._name = ""

    def end(self) -> Iterator[ReceivedEvent]:
        """Yield the last event, if only its blank line is missing. The connection was not lost."""
        if self._pieces:
            self._note(b"".join(self._pieces))
        if self._data and _is_whole(event := self._event()):
            yield event

    def _note(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif field == b"event":
            self._name = value.removeprefix(b" ").decode("utf-8", "replace")

    def _event(self) -> ReceivedEvent:
        event = ReceivedEvent(self._name, b"\n".join(self._data).decode("utf-8", "replace"))
        self._name, self._data = "", []
        if event.data:
            self._has_events = True
            self.is_done = self.is_done or event.data.startswith("[DONE]")
        return event


def _is_whole(event: ReceivedEvent) -> bool:
    try:
        return event.data.startswith("[DONE]") or isinstance(json.loads(event.data), dict)
    except (ValueError, RecursionError):
        return False


NO_STREAMS = ("text/html", "application/xhtml+xml", "application/json")
"""All others are read as streams of events, since some servers have a wrong content type, or none."""


def content_type(headers: Mapping[str, str]) -> str:
    """Return the content type without its parameters; empty if there is none.

    >>> content_type({"content-type": "Application/JSON; charset=utf-8"})
    'application/json'
    """
    return headers.get("content-type", "").partition(";")[0].strip().lower()


class Transport:
    """Sends requests to one vendor."""

    def __init__(self, vendor: Vendor, make_client: MakeClient, *, silence_timeout: float, sends_key: bool) -> None:
        """Use a client that is created at the first request.

        `silence_timeout`: seconds that may pass before the first piece of an answer, and between two. Without
        `sends_key` no request has an `Authorization`, even if the SDK finds a key.
        """
        self.vendor = vendor
        self._make_client = make_client
        self._silence_timeout = silence_timeout
        self._sends_key = sends_key
        self._client: Any = None
        self._sdk: Any = None
        self._http: Any = None
        self.has_answered = False
        """There is an API at the vendor's address."""
        self._opening = asyncio.Lock()

    async def post(self, path: str, body: Mapping[str, object]) -> Any:
        """Return the response, once the vendor has begun to answer. Raises `ModelError`."""
        async with self._opening:
            if self._client is None:
                await asyncio.to_thread(self._open)
        timeout = self._http.Timeout(self._silence_timeout, connect=min(CONNECT_TIMEOUT, self._silence_timeout))
        headers = {} if self._sends_key else {"Authorization": self._sdk.Omit()}
        with self.translating_errors(body):
            stream = await self._client.post(
                path,
                cast_to=object,
                body=dict(body),
                options={"max_retries": 0, "timeout": timeout, "headers": headers},
                stream=True,
                stream_cls=self._sdk.AsyncStream[object],
            )
        return stream.response

    def _open(self) -> None:
        vendor = self.vendor
        try:
            self._sdk = importlib.import_module(vendor.package)
            self._http = importlib.import_module("httpx2")
            bounded_body = importlib.import_module("turnkeeper.activities.providers.bounded_body")
        except ImportError as error:
            # `not_found`, since "The model was not found: this worker lacks ..." leads to the right fix.
            install = f"pip install 'turnkeeper[{vendor.package}]'"
            raise ModelError("not_found", f"this worker lacks the package {vendor.package!r}: {install}") from error
        try:
            self._client = self._make_client(self._sdk, bounded_body.client_of(self._sdk))
        except ModelError:
            raise
        except self._sdk.APIError.__base__:  # OpenAI's SDK without a key
            raise self.vendor.no_key_error() from None
        except (ValueError, self._http.InvalidURL):
            raise self._misconfigured_error("check") from None

    def error(
        self, status: int, headers: Mapping[str, str], body: object, *, request_body: Mapping[str, object]
    ) -> ModelError:
        """Return the vendor's response to `request_body` as an error of ours."""
        return error_from(status, headers, body, vendor=self.vendor, now=datetime.now(UTC), request_body=request_body)

    @contextmanager
    def translating_errors(self, request_body: Mapping[str, object]) -> Iterator[None]:
        """Convert everything that the SDK raises for a vendor to a `ModelError`; `request_body` is the request's.

        Raised `from None`: the SDK's exceptions contain the vendor's body, which may repeat the request, and causes are
        written to Temporal's history and to logs.
        """
        sdk, http = self._sdk, self._http
        try:
            yield
        except sdk.APIStatusError as error:
            raise self.error(error.status_code, error.response.headers, error.body, request_body=request_body) from None
        except (sdk.APIConnectionError, http.TransportError) as error:
            raise self._connection_error(error.__cause__ if isinstance(error, sdk.APIError) else error) from None
        except sdk.APIError.__base__:  # credentials that could not be obtained
            raise self.vendor.no_key_error() from None
        except (http.RequestError, http.StreamError):  # a body that can't be decompressed
            raise self._compressed_error() from None

    def _connection_error(self, cause: BaseException | None) -> ModelError:
        """Return the error of a connection that failed or broke; `cause` is the HTTP library's error."""
        vendor, http = self.vendor, self._http
        if isinstance(cause, http.LocalProtocolError | http.UnsupportedProtocol):
            # The request can't be sent at all: a line break in a key, an address without `https://`.
            return self._misconfigured_error("it could not be written; check")
        if isinstance(cause, http.ConnectError | http.ProxyError | http.ConnectTimeout):
            return ModelError("connection", f"no connection to {vendor.title}", vendor=vendor.title)
        if isinstance(cause, http.TimeoutException):
            silence = f"{vendor.title} sent nothing for {self._silence_timeout:g} s"
            return ModelError("timeout", silence, vendor=vendor.title)
        if isinstance(cause, http.DecodingError):  # to OpenAI's SDK this is a broken connection
            return self._compressed_error()
        return self.broken_off_error()

    def _misconfigured_error(self, check: str) -> ModelError:
        message = f"{check} {self.vendor.key} and the address of {self.vendor.title}"
        return ModelError("bad_request", message, vendor=self.vendor.title)

    def _compressed_error(self) -> ModelError:
        """Return the error of an unrequested compression, which a retry would have too."""
        return self.unreadable_error("it is compressed, which was not asked for", should_retry=False)

    def broken_off_error(self, *, lasting: str = "") -> ModelError:
        """Return the error of an answer that broke off (AGT-3)."""
        name = self.vendor.title
        return ModelError("connection", f"{name}'s answer broke off before its end", vendor=name, lasting=lasting)

    def unreadable_error(self, reason: str, *, should_retry: bool | None = None) -> ModelError:
        """Return the error of an unreadable answer. A few retries may succeed, unless it says that none will."""
        name = self.vendor.title
        message = f"{name}'s answer could not be read: {reason}"
        return ModelError("provider_error", message, vendor=name, lasting=message, should_retry=should_retry)

    @contextmanager
    def naming_read_errors(self) -> Iterator[None]:
        """Convert what an event of an unexpected shape raises to a `ModelError`, and set the vendor of each error."""
        try:
            yield
        except ModelError as error:
            error.vendor = error.vendor or self.vendor.title
            raise
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise self.unreadable_error(f"an event has an unexpected shape ({type(error).__name__})") from None


class VendorStream:
    """One request, which is sent when its events are read, and the events that answer it."""

    def __init__(self, transport: Transport, path: str, body: Mapping[str, object]) -> None:
        self.transport = transport
        self._path = path
        self._body = body
        self._headers: Mapping[str, str] = {}
        self._is_done = False

    async def events(self) -> AsyncGenerator[Event, None]:
        """Send the request, and yield the events of the answer as they arrive. Raises `ModelError`.

        Closing the generator, or cancelling its reader, closes the connection at once.
        """
        response = await self.transport.post(self._path, self._body)
        try:
            self._headers = response.headers
            with self.transport.translating_errors(self._body), self._readable():
                await self._reject_other_than_events(response)
                reader = EventReader()
                async with aclosing(response.aiter_raw()) as pieces:
                    async for piece in pieces:
                        for received in reader.feed(piece):
                            if (event := self._event_in(received)) is not None:
                                yield event
                        if reader.is_done:
                            with suppress(TimeoutError):
                                async with asyncio.timeout(DRAIN_SECONDS):
                                    async for _ in pieces:
                                        pass
                            break
                for received in () if reader.is_done else reader.end():
                    if (event := self._event_in(received)) is not None:
                        yield event
            if reader.is_foreign:
                with suppress(ValueError, RecursionError):  # the vendor's own error may be its first line as JSON
                    first = json.loads(reader.beginning.strip().splitlines()[0])
                    if isinstance(first, dict) and first.get("error"):
                        raise self.failure_error(first)
                raise self.transport.unreadable_error("it is not a stream of events")
            self._is_done = reader.is_done
        finally:
            await response.aclose()

    @property
    def request_id(self) -> str | None:
        """The vendor's id of the request, once it has begun to answer."""
        return self._headers.get("request-id") or self._headers.get("x-request-id")

    def early_end_error(self) -> ModelError:
        """Return the error of a stream that has ended before the answer was complete (AGT-3)."""
        transport = self.transport
        if not self._is_done:
            return transport.broken_off_error(lasting=EARLY_END)
        name = transport.vendor.title
        return unclear_answer_error(
            f"{name} ended its answer without a reason to stop, so that it may be half of one", vendor=name
        )

    def failure_error(self, failure: object) -> ModelError:
        """Return the error of an answer that ends with the vendor's error."""
        return self.transport.error(200, self._headers, failure, request_body=self._body)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Convert what the SDK raises for bytes that are not events to a `ModelError`."""
        try:
            yield
        except (ValueError, RecursionError):  # not JSON, or nested too deeply
            raise self.transport.unreadable_error("it is not a stream of events") from None

    async def _reject_other_than_events(self, response: Any) -> None:
        """Raise `ModelError` for a page or an object with a good status, such as a proxy's page or a vendor's error."""
        kind, transport = content_type(response.headers), self.transport
        if kind == "application/json":
            await response.aread()
            body = response.json()
            if isinstance(body, dict) and body.get("error"):
                raise self.failure_error(body)
        if response.status_code == HTTPStatus.NO_CONTENT:  # complete, not broken off
            kind = "no content (HTTP 204)"
        elif kind not in NO_STREAMS:
            return
        reason = f"it sent {kind} in place of a stream of events; check the address of {transport.vendor.title}"
        # An address that has answered before may do so again. Otherwise it is the wrong one.
        raise transport.unreadable_error(reason, should_retry=None if transport.has_answered else False)

    def _event_in(self, received: ReceivedEvent) -> Event | None:
        """Return the event; `None` if it says nothing. Raises `ModelError` if it is the vendor's error."""
        if not received.data or received.data.startswith("[DONE]"):
            return None
        try:
            event = json.loads(received.data)
        except (ValueError, RecursionError):
            if received.name == "error":
                raise self.failure_error({"message": received.data}) from None
            raise
        if not isinstance(event, dict) or not is_storable(event):
            raise self.transport.unreadable_error("an event is not a proper JSON object")
        if "error" in (received.name, event.get("type")) or event.get("error"):
            raise self.failure_error(event)
        if "ping" in (received.name, event.get("type")):
            return None
        self.transport.has_answered = True
        return event
