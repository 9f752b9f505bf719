r"""A vendor on loopback whose every byte a test controls (AGT-11).

A `ScriptedHttpServer` answers requests with the `Reply`s of its queue, in order; a request beyond them, and one
whose body its `check` refuses, fails the test when the server is left. `requests` are all that arrived, for exact
counts. A reply is written chunk by chunk and then ended as it says:

    Reply.stream([b"event: …\n\n", …])              a whole event stream
    reply.ending_after(2)                             … that ends cleanly after two chunks
    reply.cut_after(2)                                … that is reset after two chunks
    reply.silent_after(2)                             … after which nothing comes and the connection stays
    reply.slowly(piece=7)                             … whose bytes come in pieces of seven, each flushed by itself
    Reply.error(429, {...}, {"retry-after": "2"})     an error with a JSON body
    server.refusing()                                 nobody listens while it lasts

What an API's answers look like is said by its `VendorServer`: all have the same interface, so that one set of checks
serves all of them (`provider_kit.py`). A provider that doesn't use HTTP has a `FaultServer` that is no server.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from turnkeeper.activities.providers.provider import Provider

BOUND = 30.0
"""The longest wait of a test, in seconds."""

Fault = Literal[
    "rate_limited", "overloaded", "provider_error", "auth", "permission", "quota", "not_found", "bad_request",
    "context_too_long", "stale_reasoning"
]  # fmt: skip
"""Errors with which a vendor can reject a request, in its own format."""


@dataclass(frozen=True)
class Reply:
    """One answer to one request."""

    chunks: tuple[bytes, ...] = ()
    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("content-type", "text/event-stream; charset=utf-8"),)
    ending: Literal["whole", "cut", "silent"] = "whole"
    min_requests: int = 0
    """It is sent once the server has received this many requests."""
    gate: asyncio.Event | None = None
    """It is sent once this is set."""

    @classmethod
    def stream(cls, chunks: Iterable[bytes], headers: dict[str, str] | None = None) -> "Reply":
        return cls(chunks=tuple(chunks)).with_headers(headers or {})

    @classmethod
    def error(cls, status: int, body: object, headers: dict[str, str] | None = None) -> "Reply":
        """Return an answer that is no stream; `body` is sent as JSON, text as it is."""
        payload, kind = (body, "text/html") if isinstance(body, str) else (json.dumps(body), "application/json")
        return cls(chunks=(payload.encode(),), status=status).with_headers({"content-type": kind, **(headers or {})})

    def with_headers(self, headers: dict[str, str]) -> "Reply":
        return replace(self, headers=tuple({**dict(self.headers), **headers}.items()))

    def ending_after(self, chunks: int) -> "Reply":
        return replace(self, chunks=self.chunks[:chunks])

    def cut_after(self, chunks: int) -> "Reply":
        return replace(self, chunks=self.chunks[:chunks], ending="cut")

    def silent_after(self, chunks: int) -> "Reply":
        return replace(self, chunks=self.chunks[:chunks], ending="silent")

    def after_requests(self, count: int) -> "Reply":
        return replace(self, min_requests=count)

    def behind(self, gate: asyncio.Event) -> "Reply":
        return replace(self, gate=gate)

    def slowly(self, piece: int) -> "Reply":
        whole = b"".join(self.chunks)
        return replace(self, chunks=tuple(whole[at : at + piece] for at in range(0, len(whole), piece)))


@dataclass(frozen=True)
class Received:
    """A request that arrived; names of headers are in lower case."""

    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass
class ScriptedHttpServer:
    """The server; `async with` starts and ends it. With `otherwise`, requests beyond the queue are answered by that."""

    check: Callable[[Any], None] = lambda body: None
    queue: deque[Reply] = field(default_factory=deque)
    otherwise: Callable[[Received], Reply] | None = None
    requests: list[Received] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._port = 0
        self._connections: set[asyncio.Task[None]] = set()
        self._news = asyncio.Condition()
        self.connections_made = 0
        self.silences = 0
        """The number of replies that have reached their silence."""
        self.left = 0
        """The number of these that the client has disconnected from since."""

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def replies(self, *replies: Reply) -> None:
        """Queue replies."""
        self.queue.extend(replies)

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(self, failure: type[BaseException] | None, *_: object) -> None:
        await self._deafen()
        if failure is None:
            assert not self.problems, "; ".join(self.problems)

    @asynccontextmanager
    async def refusing(self) -> AsyncIterator[None]:
        """Refuse connections while it lasts; the port stays this server's own."""
        await self._deafen()
        try:
            yield
        finally:
            await self._listen()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until a condition of this server holds."""
        async with asyncio.timeout(BOUND), self._news:
            await self._news.wait_for(is_so)

    # ---- the wire

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port, reuse_address=True)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _deafen(self) -> None:
        assert self._server
        self._server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections_made += 1
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (received := await _received(reader)) is not None:
                reply = self._reply_to(received)
                await self._tell()
                await self.until(lambda: len(self.requests) >= reply.min_requests)  # noqa: B023  # awaited here
                if reply.gate:
                    await asyncio.wait_for(reply.gate.wait(), BOUND)
                await _write(writer, reply)
                if reply.ending == "silent":
                    await self._keep_silent(reader)
                if reply.ending != "whole":
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left
        finally:
            writer.transport.abort()

    def _reply_to(self, received: Received) -> Reply:
        self.requests.append(received)
        try:
            self.check(received.body)
        except (AssertionError, LookupError, TypeError, ValueError) as error:
            self.problems.append(f"request {len(self.requests)}: {error}")
            return Reply.error(400, {"error": {"type": "invalid_request_error", "message": "refused by the test"}})
        if self.queue:
            return self.queue.popleft()
        if self.otherwise:
            return self.otherwise(received)
        self.problems.append(f"request {len(self.requests)} was not expected")
        return Reply.error(418, {"error": {"message": "not expected by the test"}})

    async def _keep_silent(self, reader: asyncio.StreamReader) -> None:
        self.silences += 1
        await self._tell()
        await reader.read()
        self.left += 1
        await self._tell()

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


async def _received(reader: asyncio.StreamReader) -> Received | None:
    """Read one request; None once the client has closed the connection, or is no vendor's."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    if not first.startswith("POST "):
        return None  # another test's client, which waits for a server of its own on this port
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Received(
        path=first.split(" ")[1], headers=headers, raw=await reader.readexactly(int(headers.get("content-length", 0)))
    )


async def _write(writer: asyncio.StreamWriter, reply: Reply) -> None:
    lines = [f"HTTP/1.1 {reply.status} Told", *(f"{name}: {value}" for name, value in reply.headers)]
    writer.write("\r\n".join([*lines, "transfer-encoding: chunked", "", ""]).encode("latin-1"))
    for chunk in filter(None, reply.chunks):  # an empty one would end the body
        writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        await writer.drain()
    if reply.ending == "whole":
        writer.write(b"0\r\n\r\n")
    await writer.drain()


# ---- what all APIs have in common


def sse(event: dict[str, Any]) -> bytes:
    """Write an event by its type, as Anthropic and the Responses API do."""
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


@dataclass(frozen=True)
class Call:
    """A tool call of an answer; `args` as text is sent as it is, JSON or not."""

    id: str
    name: str
    args: dict[str, Any] | str = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """An answer of a model, in no vendor's format: a `FaultServer` renders it. Usage as vendors bill it, in tokens.

    `stop`: by default what follows from the calls. `cached` and `cache_write` are parts of `input`, `reasoning` of
    `output`.
    """

    text: str = ""
    think: str = ""
    calls: Sequence[Call] = ()
    stop: Literal["end_turn", "tool_calls", "max_tokens", "refusal", "context_too_long"] | None = None
    input: int = 100
    output: int = 20
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0

    @property
    def ends_by(self) -> str:
        return self.stop or ("tool_calls" if self.calls else "end_turn")


class FaultServer(ABC):
    """What a provider under test asks, and what that answers. `async with` starts and ends it."""

    model: str
    """The session's model name for this server, as `provider:name`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: Any) -> None:
        return None

    @abstractmethod
    def provider(self, *, silence_timeout: float = BOUND) -> Provider:
        """Return a new provider that asks this server."""

    @abstractmethod
    def script(self, *replies: Any) -> None:
        """Queue what is answered: an `Answer`, or what `fault` and `cut` return."""

    @abstractmethod
    def fault(self, fault: Fault, headers: dict[str, str] | None = None) -> Any:
        """Refuse a request as the vendor does, with its status, its body and these headers."""

    @abstractmethod
    def cut(self, answer: Answer) -> Any:
        """Begin an answer, and lose the connection in the middle."""


class VendorServer(FaultServer):
    """One API of one vendor on loopback."""

    def __init__(self) -> None:
        self.server = ScriptedHttpServer(check=self.check)

    @property
    def base_url(self) -> str:
        """The vendor's address for the provider."""
        return self.server.base_url

    @property
    def requests(self) -> list[Received]:
        return self.server.requests

    def script(self, *replies: Answer | Reply) -> None:
        self.server.replies(*(reply if isinstance(reply, Reply) else self.reply(reply) for reply in replies))

    def refuse_always(self, reply: Reply) -> None:
        """Answer every further request by `reply`, whatever is left out of it."""
        self.server.otherwise = lambda received: reply

    def cut(self, answer: Answer) -> Reply:
        whole = self.reply(answer)
        return whole.cut_after(len(whole.chunks) * 2 // 3)

    async def __aenter__(self) -> Self:
        await self.server.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self.server.__aexit__(*failure)

    @abstractmethod
    def check(self, body: Any) -> None:
        """Raise unless `body` is a request that the vendor allows; its SDK's own types are the best rule."""

    @abstractmethod
    def system_of(self, body: Any) -> str:
        """Return the system prompt of a request; empty without one."""

    @abstractmethod
    def call_ids_of(self, body: Any) -> list[str]:
        """Return the ids of the tool calls of a request, in its order."""

    @abstractmethod
    def result_ids_of(self, body: Any) -> list[str]:
        """Return the ids of the calls that the results of a request answer, in its order."""

    @abstractmethod
    def reply(self, answer: Answer) -> Reply:
        """Render `answer` as the vendor streams it: one chunk for each event, the last one ends the answer."""

    @abstractmethod
    def fault(self, fault: Fault, headers: dict[str, str] | None = None) -> Reply:
        """Refuse a request as the vendor does, with its status, its body and these headers."""

    @abstractmethod
    def fault_within(self, fault: Fault) -> Reply:
        """Begin an answer, and break it off with an error event of the vendor's."""
