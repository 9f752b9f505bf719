"""What watching a session costs, and how soon who watches sees an answer (API-3, OPS-11).

The gateway runs in a process of its own, as `turnkeeper api` does, and is read over plain sockets, so that two hundred
clients cost little more than what is sent to them. An answer is complete when Temporal has the result of the model call
that wrote it; it is visible when the bytes that say so have arrived at a client.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, time
from typing import Any

import httpx
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, Interceptor, OutboundInterceptor, QueryWorkflowInput, StartWorkflowUpdateInput

from benchmarks.measurements import Row, row
from benchmarks.stage import BenchStage, OurSession
from turnkeeper.api.app import create_app
from turnkeeper.models.session.session import UpdatesRequest
from turnkeeper.models.transcript.conversation import ConversationUpdate
from turnkeeper.ops.local.ports import LOOPBACK, usable_port
from turnkeeper.ops.local.processes import Program
from turnkeeper.ops.local.supervisor import own_command

WATCHERS = 200
SAMPLES = 30
WARM_UP = 3
IDLE_SECONDS = 60.0
POLL_SECONDS = 3.0
BOUND = 30.0

COMPLETE = b'"is_complete":true'


async def watching(stage: BenchStage) -> list[Row]:
    """Measure how soon an answer is visible, to one and to many, what polling gives, and what idle watchers cost."""
    async with (
        _gateway(stage) as port,
        httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}", timeout=2 * BOUND) as http,
    ):
        session = await stage.session("tool")
        await session.round()
        waiting = [lag for _ in range(SAMPLES) for lag in await _lags(session, lambda: _wait(http, session))]
        one, many = await _one_and_many(stage, port)
        alone, together = await _polls_a_second(port, session, 1), await _polls_a_second(port, session, WATCHERS)
    queries, tasks = await _idle_minute(stage)
    return [
        _within("answer to a waiting client, p50", median(waiting), at_most=0.05),
        _within("answer to a watcher, p50", median(one), at_most=0.05),
        row(
            f"answer visible to {WATCHERS} watchers, p95, to one watcher's",
            _ms(_p95(many)),
            _ms(_p95(one)),
            _p95(many) / _p95(one),
            at_most=2.0,
        ),
        row(
            f"polls a second of {WATCHERS} clients of one session to one's",
            f"{together:.0f}",
            f"{alone:.0f}",
            together / alone,
            at_least=0.9,
        ),
        Row("queries and updates of an idle watcher in a minute", str(queries), "", "", "0", queries == 0),
        Row("workflow tasks of an idle watched session in a minute", str(tasks), "", "", "0", tasks == 0),
    ]


def _within(what: str, seconds: float, *, at_most: float) -> Row:
    return Row(what, _ms(seconds), "", "", f"≤ {_ms(at_most)}", seconds <= at_most)


@asynccontextmanager
async def _gateway(stage: BenchStage) -> AsyncIterator[int]:
    """Run the gateway on a free port, which is given."""
    port = usable_port(0, LOOPBACK)
    with TemporaryDirectory() as folder:
        own = {
            "TEMPORAL_ADDRESS": stage.client.service_client.config.target_host,
            "TURNKEEPER_STATE_DIR": str(stage.settings.state_dir),
            "TURNKEEPER_API_PORT": str(port),
        }
        command = own_command("api")
        program = Program(command, log=Path(folder) / "gateway.log", env={**os.environ, **own})
        await program.start()
        try:
            async with asyncio.timeout(BOUND):
                while not await _answers(port):  # noqa: ASYNC110  # another process has no event for it
                    await asyncio.sleep(0.05)
            yield port
        finally:
            await program.stop(seconds=BOUND)


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return False
    writer.close()
    return True


# ---- how soon an answer is visible

Seen = Awaitable[list[float]]
"""Becomes when each of those who watch has seen the answer, by the clock on the wall."""


async def _lags(session: OurSession, begin: Callable[[], Awaitable[Seen]]) -> list[float]:
    """Return, of each who watches, the seconds from an answer's completion until it was seen.

    None where the session has begun a new run meanwhile.
    """
    seen = await begin()
    session.rounds += 1
    # Nobody else may ask: Temporal lets the second of two queries at once wait, for up to a second.
    await session.handle.signal("prompt", {"id": f"m{session.rounds}", "text": "What is it?"})
    at = await asyncio.wait_for(seen, BOUND)
    completed_at = await _completed_at(session)
    return [] if completed_at is None else [moment - completed_at for moment in at]


async def _completed_at(session: OurSession) -> float | None:
    """Return when Temporal had the last result of an activity; `None` where a new run has begun since."""
    history = await session.handle.fetch_history()
    results = [event for event in history.events if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED]
    return results[-1].event_time.ToNanoseconds() / 1e9 if results else None


async def _cursor(session: OurSession) -> UpdatesRequest:
    """Return the place of a client that knows everything."""
    update = await session.handle.query("get_conversation_updates", result_type=ConversationUpdate)
    return UpdatesRequest(last_seen_message_id=f"m{session.rounds}", since_revision=update.revision)


async def _wait(http: httpx.AsyncClient, session: OurSession) -> Seen:
    """Begin to wait as a client does that asks with `wait`, again and again."""
    cursor = await _cursor(session)

    async def answered() -> list[float]:
        known = cursor
        while True:
            path = f"/workflow/{session.handle.id}/conversation"
            answer = await http.get(path, params={**known.model_dump(exclude_none=True), "wait": BOUND})
            seen_at = time()
            if COMPLETE in answer.content:
                return [seen_at]
            update = answer.json()["conversation_update"]
            known = UpdatesRequest(
                last_seen_message_id=update["last_seen_message_id"], since_revision=update["revision"]
            )

    return asyncio.create_task(answered())


@asynccontextmanager
async def _watchers(port: int, session: OurSession, count: int) -> AsyncIterator[Callable[[], Awaitable[Seen]]]:
    """Have so many watch the session's events and stay; what is given begins to look for the next answer."""
    cursor = await _cursor(session)
    request = (
        f"GET /workflow/{session.handle.id}/events HTTP/1.1\r\nHost: {LOOPBACK}\r\n"
        f"Last-Event-ID: {cursor.since_revision}.{cursor.last_seen_message_id}\r\n\r\n"
    ).encode()
    streams = [await asyncio.open_connection(LOOPBACK, port, limit=2**20) for _ in range(count)]
    for _, writer in streams:
        writer.write(request)
    await asyncio.gather(*(reader.readuntil(b"event: update") for reader, _ in streams))

    async def answered(reader: asyncio.StreamReader) -> float:
        await reader.readuntil(COMPLETE)
        return time()

    async def begin() -> Seen:
        return asyncio.gather(*(answered(reader) for reader, _ in streams))

    yield begin
    for _, writer in streams:
        writer.close()


async def _one_and_many(stage: BenchStage, port: int) -> tuple[list[float], list[float]]:
    """Return the lags of a single watcher, and of many, in samples taken in turn."""
    sessions = [await stage.session("tool") for _ in range(2)]
    for session in sessions:
        await session.round()
    async with _watchers(port, sessions[0], 1) as alone, _watchers(port, sessions[1], WATCHERS) as together:
        one, many = list[float](), list[float]()
        for sample in range(WARM_UP + SAMPLES):
            lags = [await _lags(sessions[0], alone), await _lags(sessions[1], together)]
            if sample >= WARM_UP:
                one += lags[0]
                many += lags[1]
    return one, many


# ---- polling


async def _polls_a_second(port: int, session: OurSession, clients: int) -> float:
    """Return how often all of `clients` together are answered that there is nothing new."""
    cursor = await _cursor(session)
    query = f"last_seen_message_id={cursor.last_seen_message_id}&since_revision={cursor.since_revision}"
    request = f"GET /workflow/{session.handle.id}/conversation?{query} HTTP/1.1\r\nHost: {LOOPBACK}\r\n\r\n".encode()
    connections = [await asyncio.open_connection(LOOPBACK, port) for _ in range(clients)]
    until, polls = perf_counter() + POLL_SECONDS, 0

    async def poll(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal polls
        while perf_counter() < until:
            writer.write(request)
            headers = await reader.readuntil(b"\r\n\r\n")
            assert headers.startswith(b"HTTP/1.1 200"), headers
            await reader.readexactly(int(headers.lower().partition(b"content-length: ")[2].partition(b"\r")[0]))
            polls += 1
        writer.close()

    await asyncio.gather(*(poll(*connection) for connection in connections))
    return polls / POLL_SECONDS


# ---- idle watchers


class _Asked(Interceptor):
    """Counts what is asked of sessions."""

    def __init__(self) -> None:
        self.count = 0

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002  # the SDK's name
        return _Counting(next, self)


class _Counting(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor, asked: _Asked) -> None:  # noqa: A002  # the SDK's name
        super().__init__(next)
        self._asked = asked

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:  # noqa: A002  # the SDK's name
        self._asked.count += 1
        return await super().query_workflow(input)

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> Any:  # noqa: A002  # the SDK's name
        self._asked.count += 1
        return await super().start_workflow_update(input)


async def _idle_minute(stage: BenchStage) -> tuple[int, int]:
    """Return what a session that is watched for a minute is asked, and how many workflow tasks it has in that time."""
    asked = _Asked()
    app = create_app(stage.settings, client=Client(**{**stage.client.config(), "interceptors": [asked]}))
    session = await stage.session("tool")
    await session.round()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app.router.lifespan_context(app))
        feed = app.state.services.feed
        events = await stack.enter_async_context(aclosing(feed.events(session.handle.id, UpdatesRequest())))
        await anext(events)
        watching_on = asyncio.ensure_future(anext(events))
        await asyncio.sleep(1)  # the watch finds what has happened before it began
        asked.count, before = 0, await _workflow_tasks(session)
        await asyncio.sleep(IDLE_SECONDS)
        count, tasks = asked.count, await _workflow_tasks(session) - before
        watching_on.cancel()
        await asyncio.gather(watching_on, return_exceptions=True)
    return count, tasks


async def _workflow_tasks(session: OurSession) -> int:
    history = await session.handle.fetch_history()
    return sum(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED for event in history.events)


def _p95(samples: list[float]) -> float:
    return quantiles(samples, n=20)[-1]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
