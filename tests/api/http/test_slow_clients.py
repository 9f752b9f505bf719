"""Clients that never finish a request can't keep a connection for long (API-4)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from temporalio.client import Client

from tests.api.conftest import served
from tests.harness import BOUND, TASK_SECONDS, Environment
from tests.waiting import until
from turnkeeper.api.http.server import DEFAULT_BOUNDS, MAX_HEAD_BYTES, BoundedConfig, ConnectionBounds
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.settings.settings import Settings

QUICK = ConnectionBounds(head_seconds=1, body_seconds=1, max_connections=500)

HALF_A_HEAD = b"GET /workflow HTTP/1.1\r\nHost: localhost\r\nAccept: "
HALF_A_BODY = (
    b"POST /workflow HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b'Content-Length: 1000\r\n\r\n{"title": "'
)
HALF_A_CHUNK = (
    b"POST /workflow HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"ti'
)
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass
class Connection:
    """A client that sends exactly these bytes, one at a time if the test wants that."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def rest(self) -> bytes:
        """Return what comes until the other side closes the connection."""
        try:
            async with asyncio.timeout(BOUND):
                return await self.reader.read()
        except ConnectionError:
            return b""

    async def answer(self) -> tuple[int, dict[str, object]]:
        """Return status and body of one answer with a content-length."""
        async with asyncio.timeout(BOUND):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].split("\r\n")[0])
            return int(head.split()[1]), json.loads(await self.reader.readexactly(length))

    async def drip(self, data: bytes) -> bytes:
        """Send a byte now and then until the other side closes the connection; return what it sent."""
        reading = asyncio.ensure_future(self.rest())
        for byte in data:
            self.send(bytes([byte]))
            if (await asyncio.wait({reading}, timeout=0.05))[0]:
                return await reading
        raise AssertionError("the connection is still open")


@asynccontextmanager
async def connected(url: str, count: int = 1) -> AsyncIterator[list[Connection]]:
    where = urlsplit(url)
    connections = [Connection(*await asyncio.open_connection(where.hostname, where.port)) for _ in range(count)]
    try:
        yield connections
    finally:
        for connection in connections:
            connection.writer.transport.abort()


@pytest.fixture
async def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A gateway with short timeouts; its requests need no Temporal."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    async with served(None, Settings(state_dir=tmp_path), bounds=QUICK) as url:
        yield url


@pytest.fixture
async def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A gateway with the default settings; its requests need no Temporal."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    async with served(None, Settings(state_dir=tmp_path)) as url:
        yield url


def problem(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    assert b"connection: close" in head.lower()
    return str(json.loads(body)["type"]).removeprefix("urn:turnkeeper:problem:")


RESET = "reset"


def problem_or_reset(answer: bytes) -> str:
    """Name the response: bytes sent during a close reset the connection, and the response may be lost with it."""
    return problem(answer) if answer else RESET


async def test_api_4_300_connections_with_half_a_request_are_all_closed_in_time(
    impatient: str,
) -> None:
    """Before, all were open after 41 s."""
    halves = [b"", HALF_A_HEAD, HALF_A_BODY, HALF_A_CHUNK]
    async with connected(impatient, 300) as connections:
        for number, connection in enumerate(connections):
            connection.send(halves[number % 4])
        answers = await asyncio.gather(*(connection.rest() for connection in connections))
        assert set(answers[::4]) == {b""}
        for kind in (1, 2, 3):
            # On a busy machine some are closed before they have sent anything.
            assert (
                "request-timeout"
                in {problem_or_reset(answer) for answer in answers[kind::4]}
                <= {"request-timeout", RESET}
            )
        async with httpx.AsyncClient(base_url=impatient) as http:
            assert (await http.get("/healthz")).status_code == 200


@pytest.mark.parametrize("request_start", [HALF_A_HEAD, HALF_A_BODY])
async def test_api_4_a_slow_trickle_of_bytes_does_not_extend_the_request_timeout(
    impatient: str, request_start: bytes
) -> None:
    async with connected(impatient) as (connection,):
        connection.send(request_start)
        assert problem_or_reset(await connection.drip(b"x" * 500)) in ("request-timeout", RESET)


async def test_api_4_the_request_timeout_also_applies_to_later_requests_on_a_connection(impatient: str) -> None:
    async with connected(impatient) as (connection,):
        connection.send(WHOLE)
        assert (await connection.answer())[0] == 200
        connection.send(HALF_A_HEAD)
        assert problem(await connection.rest()) == "request-timeout"


async def test_api_4_a_request_in_pieces_is_answered_and_the_connection_stays_open(patient: str) -> None:
    body = json.dumps({"description": "Go.", "constraints": ["x" * 200_000]}).encode()
    head = "POST /tasks/preview HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    async with connected(patient) as (connection,):
        for _ in range(3):
            connection.send(head.encode())
            await connection.writer.drain()
            connection.send(f"{len(body)}\r\n\r\n".encode() + body[:100_000])
            await connection.writer.drain()
            connection.send(body[100_000:])
            status, answer = await connection.answer()
            assert (status, answer["type"]) == (422, "urn:turnkeeper:problem:invalid")


UNREAD = {
    404: b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\n",
    403: b"POST /workflow HTTP/1.1\r\nHost: localhost\r\nOrigin: https://elsewhere.example\r\n",
    405: b"PUT /workflow HTTP/1.1\r\nHost: localhost\r\n",
}
"""Requests that are answered before their body is read."""

LATE_BODIES = (50_000, 300_000, 900_000)


@pytest.mark.parametrize("size", LATE_BODIES)
@pytest.mark.parametrize("expected", UNREAD)
async def test_api_4_a_body_after_its_response_is_dropped_and_the_connection_stays_open(
    patient: str, expected: int, size: int
) -> None:
    async with connected(patient) as (connection,):
        for _ in range(2):
            connection.send(UNREAD[expected] + b"Content-Length: %d\r\n\r\n" % size)
            assert (await connection.answer())[0] == expected
            for start in range(0, size, 50_000):
                connection.send(b"x" * min(50_000, size - start))
                await connection.writer.drain()
            connection.send(WHOLE)
            assert (await connection.answer())[0] == 200


@pytest.mark.parametrize("size", LATE_BODIES)
@pytest.mark.parametrize("expected", UNREAD)
async def test_api_4_a_client_that_sends_everything_before_reading_gets_its_response(
    patient: str, expected: int, size: int
) -> None:
    async with connected(patient) as (connection,):
        connection.send(UNREAD[expected] + b"Content-Length: %d\r\n\r\n" % size + b"x" * size + WHOLE)
        await connection.writer.drain()
        assert (await connection.answer())[0] == expected
        assert (await connection.answer())[0] == 200


@pytest.mark.parametrize("size", LATE_BODIES)
async def test_api_4_a_late_chunked_body_is_dropped_and_the_connection_stays_open(patient: str, size: int) -> None:
    async with connected(patient) as (connection,):
        connection.send(UNREAD[404] + b"Transfer-Encoding: chunked\r\n\r\n")
        assert (await connection.answer())[0] == 404
        for _ in range(size // 50_000):
            connection.send(b"%x\r\n%s\r\n" % (50_000, b"x" * 50_000))
            await connection.writer.drain()
        connection.send(b"0\r\n\r\n" + WHOLE)
        assert (await connection.answer())[0] == 200


@pytest.mark.parametrize("expected", UNREAD)
async def test_api_4_half_a_body_after_its_response_closes_the_connection(impatient: str, expected: int) -> None:
    async with connected(impatient) as (connection,):
        connection.send(UNREAD[expected] + b"Content-Length: 1000\r\n\r\n")
        assert (await connection.answer())[0] == expected
        connection.send(b"half")
        assert await connection.rest() == b""


async def test_api_4_a_malformed_body_after_its_response_closes_the_connection(patient: str) -> None:
    async with connected(patient) as (connection,):
        connection.send(UNREAD[404] + b"Transfer-Encoding: chunked\r\n\r\n")
        assert (await connection.answer())[0] == 404
        connection.send(b"no size\r\n")
        assert await connection.rest() == b""


async def test_api_4_a_connection_is_idle_after_a_late_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    hasty = Timeouts(keep_alive=0.1)
    async with served(None, Settings(state_dir=tmp_path), timeouts=hasty) as url, connected(url, 2) as connections:
        for connection in connections:
            connection.send(UNREAD[404] + b"Content-Length: 5\r\n\r\nlate")
            assert (await connection.answer())[0] == 404
        idle, busy = connections
        idle.send(b"!")
        # It takes a while until Temporal counts as unreachable: the request is not cut off before that.
        busy.send(b"!" + WHOLE.replace(b"/healthz", b"/workflow/s1/conversation"))
        assert (await busy.answer())[0] == 503
        assert await idle.rest() == b""


async def test_api_4_requests_sent_at_once_on_one_connection_are_all_answered(patient: str) -> None:
    async with connected(patient) as (connection,):
        connection.send(WHOLE * 5)
        assert [(await connection.answer())[0] for _ in range(5)] == [200] * 5


async def test_api_4_an_endless_request_head_is_rejected(impatient: str) -> None:
    async with connected(impatient) as (connection,):
        connection.send(HALF_A_HEAD + b"x" * MAX_HEAD_BYTES)
        assert problem_or_reset(await connection.rest()) in ("head-too-large", RESET)


@dataclass
class CrowdedServer:
    """A server that accepts few connections."""

    url: str = ""
    pending: int = 0
    """Requests for `/wait` that are not answered yet."""
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def crowded(connections: int) -> AsyncIterator[CrowdedServer]:
    crowd = CrowdedServer()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/wait":
            crowd.pending += 1
            await crowd.may_answer.wait()
        await JSONResponse({})(scope, receive, send)

    bounds = ConnectionBounds(head_seconds=BOUND, body_seconds=BOUND, max_connections=connections)
    config = BoundedConfig(answer, bounds, port=0, log_config=None, lifespan="off", timeout_keep_alive=int(BOUND))
    server = uvicorn.Server(config)
    # Signals stay pytest's.
    serving = asyncio.create_task(server._serve())
    await until(lambda: server.started)
    try:
        crowd.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        yield crowd
    finally:
        crowd.may_answer.set()
        server.should_exit = True
        await serving


@pytest.mark.parametrize("waiting", [b"", WHOLE, HALF_A_HEAD, WHOLE + HALF_A_HEAD, HALF_A_BODY], ids=range(5))
async def test_api_4_connections_waiting_for_their_clients_do_not_block_new_ones(waiting: bytes) -> None:
    async with crowded(5) as crowd, connected(crowd.url, 5) as strangers, AsyncExitStack() as more:
        for connection in strangers:
            connection.send(waiting)
            if waiting.startswith(WHOLE):
                assert (await connection.answer())[0] == 200
        for _ in range(10):
            (client,) = await more.enter_async_context(connected(crowd.url))
            client.send(WHOLE)
            assert (await client.answer())[0] == 200


async def test_api_4_idle_connections_are_closed_before_ones_with_an_incoming_request() -> None:
    async with crowded(2) as crowd, connected(crowd.url, 2) as (uploading, idle):
        uploading.send(HALF_A_BODY)
        idle.send(WHOLE)
        assert (await idle.answer())[0] == 200
        async with connected(crowd.url) as (client,):
            assert await idle.rest() == b""
            client.send(WHOLE)
            assert (await client.answer())[0] == 200
            uploading.send(b"x" * 990)
            assert (await uploading.answer())[0] == 200


async def test_api_4_one_connection_too_many_is_rejected_and_all_others_are_served() -> None:
    async with crowded(3) as crowd, connected(crowd.url, 3) as connections:
        for connection in connections:
            connection.send(WHOLE.replace(b"/healthz", b"/wait"))
        await until(lambda: crowd.pending == 3)
        async with connected(crowd.url) as (fourth,):
            assert problem(await fourth.rest()) == "too-many-connections"
        crowd.may_answer.set()
        for connection in connections:
            assert (await connection.answer())[0] == 200
        async with connected(crowd.url) as (fourth,):
            fourth.send(WHOLE)
            assert (await fourth.answer())[0] == 200


async def test_api_4_long_polls_and_event_streams_may_outlast_the_request_timeout(
    temporal: Client, env: Environment
) -> None:
    settings = Settings(task_queue=env.task_queue, state_dir=env.settings.state_dir, task_timeout=TASK_SECONDS)
    session = await env.start()
    await session.prompt(id="p1", text="hello")
    (turn,) = await session.idle(turns=1)
    async with (
        served(temporal, settings, partials=env.partials, bounds=QUICK) as url,
        httpx.AsyncClient(base_url=url, timeout=BOUND) as http,
        http.stream("GET", f"/workflow/{session.handle.id}/events") as events,
    ):
        lines = events.aiter_lines()
        cursor = {"last_seen_message_id": "p1", "since_revision": (await session.state()).revision}
        polled = await http.get(f"/workflow/{session.handle.id}/conversation", params={**cursor, "wait": 3})
        assert polled.status_code == 200
        assert polled.elapsed.total_seconds() > 2 * QUICK.head_seconds
        await session.prompt(id="p2", text="and now?")
        async with asyncio.timeout(BOUND):
            async for line in lines:
                if "echo: and now?" in line:
                    break
    assert turn.agent_message == "echo: hello"


def test_api_4_the_connection_limits_are_settings_with_the_documented_defaults() -> None:
    assert ConnectionBounds.of(Settings()) == DEFAULT_BOUNDS
    settings = Settings(api_head_timeout=1, api_body_timeout=2, api_max_connections=3)
    assert ConnectionBounds.of(settings) == ConnectionBounds(1, 2, 3)
