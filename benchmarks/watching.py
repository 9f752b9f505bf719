"""What watching a session costs, and how soon watchers see an answer (API-3, OPS-11).

The gateway runs in its own process and is read over plain sockets, so that 200 clients cost little more than the bytes
that they receive. An answer is complete when Temporal has the result of its model call. It is visible when its last
bytes have arrived at a client.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from statistics import median, quantiles
from time import perf_counter, time
from typing import Any

import httpx
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, Interceptor, OutboundInterceptor, QueryWorkflowInput, StartWorkflowUpdateInput

from benchmarks.environment import BenchEnvironment, OurSession, gateway_process
from benchmarks.measurements import Row, row
from turnkeeper.api.app import create_app
from turnkeeper.models.session.messages import UpdatesRequest
from turnkeeper.models.transcript.conversation import ConversationUpdate
from turnkeeper.ops.local.ports import LOOPBACK

WATCHERS = 200
SAMPLES = 30
WARM_UP = 3
IDLE_SECONDS = 60.0
POLL_SECONDS = 3.0
BOUND = 30.0

COMPLETE = b'"is_complete":true'


async def watching(environment: BenchEnvironment) -> list[Row]:
    """Measure how soon one and many watchers see an answer, the rate of polls, and the cost of idle watchers."""
    async with (
        gateway_process(environment) as port,
        httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}", timeout=2 * BOUND) as http,
    ):
        session = await environment.session("tool")
        await session.round()
        waiting = [lag for _ in range(SAMPLES) for lag in await _lags(session, lambda: _wait(http, session))]
        one, many = await _one_and_many(environment, port)
        alone, together = await _polls_a_second(port, session, 1), await _polls_a_second(port, session, WATCHERS)
    queries, tasks = await _idle_minute(environment)
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


# ---- how soon an answer is visible

ArrivalTimes = Awaitable[list[float]]
"""When each watcher has seen the answer, as wall-clock time."""


async def _lags(session: OurSession, watch: Callable[[], Awaitable[ArrivalTimes]]) -> list[float]:
    """Return, for each watcher, the seconds from an answer's completion until it was visible.

    Empty if the session has started a new run meanwhile.
    """
    arrivals = await watch()
    session.rounds += 1
    # No query here: Temporal delays the second of two concurrent queries for up to a second.
    await session.handle.signal("prompt", {"id": f"m{session.rounds}", "text": "What is it?"})
    arrival_times = await asyncio.wait_for(arrivals, BOUND)
    completed_at = await _completed_at(session)
    return [] if completed_at is None else [arrived_at - completed_at for arrived_at in arrival_times]


async def _completed_at(session: OurSession) -> float | None:
    """Return when Temporal had the last result of an activity; None if a new run has started since."""
    history = await session.handle.fetch_history()
    results = [event for event in history.events if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED]
    return results[-1].event_time.ToNanoseconds() / 1e9 if results else None


async def _cursor(session: OurSession) -> UpdatesRequest:
    """Return the cursor of a client that is up to date."""
    update = await session.handle.query("get_conversation_updates", result_type=ConversationUpdate)
    return UpdatesRequest(last_seen_message_id=f"m{session.rounds}", since_revision=update.revision)


async def _wait(http: httpx.AsyncClient, session: OurSession) -> ArrivalTimes:
    """Start a client that long-polls with `wait`."""
    cursor = await _cursor(session)

    async def until_answered() -> list[float]:
        current = cursor
        while True:
            path = f"/workflow/{session.handle.id}/conversation"
            response = await http.get(path, params={**current.model_dump(exclude_none=True), "wait": BOUND})
            arrived_at = time()
            if COMPLETE in response.content:
                return [arrived_at]
            update = response.json()["conversation_update"]
            current = UpdatesRequest(
                last_seen_message_id=update["last_seen_message_id"], since_revision=update["revision"]
            )

    return asyncio.create_task(until_answered())


@asynccontextmanager
async def _watchers(port: int, session: OurSession, count: int) -> AsyncIterator[Callable[[], Awaitable[ArrivalTimes]]]:
    """Connect `count` watchers to the session's events; yields a function that awaits the next answer."""
    cursor = await _cursor(session)
    request = (
        f"GET /workflow/{session.handle.id}/events HTTP/1.1\r\nHost: {LOOPBACK}\r\n"
        f"Last-Event-ID: {cursor.since_revision}.{cursor.last_seen_message_id}\r\n\r\n"
    ).encode()
    streams = [await asyncio.open_connection(LOOPBACK, port, limit=2**20) for _ in range(count)]
    for _, writer in streams:
        writer.write(request)
    await asyncio.gather(*(reader.readuntil(b"event: update") for reader, _ in streams))

    async def until_answered(reader: asyncio.StreamReader) -> float:
        await reader.readuntil(COMPLETE)
        return time()

    async def watch() -> ArrivalTimes:
        return asyncio.gather(*(until_answered(reader) for reader, _ in streams))

    yield watch
    for _, writer in streams:
        writer.close()


async def _one_and_many(environment: BenchEnvironment, port: int) -> tuple[list[float], list[float]]:
    """Return the lags of a single watcher and of many, measured in turn."""
    sessions = [await environment.session("tool") for _ in range(2)]
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
    """Return how many polls without news `clients` clients make in a second, together."""
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


class _CallCounter(Interceptor):
    """Counts queries and updates."""

    def __init__(self) -> None:
        self.count = 0

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002  # the SDK's name
        return _CountingInterceptor(next, self)


class _CountingInterceptor(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor, counter: _CallCounter) -> None:  # noqa: A002  # the SDK's name
        super().__init__(next)
        self._counter = counter

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:  # noqa: A002  # the SDK's name
        self._counter.count += 1
        return await super().query_workflow(input)

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> Any:  # noqa: A002  # the SDK's name
        self._counter.count += 1
        return await super().start_workflow_update(input)


async def _idle_minute(environment: BenchEnvironment) -> tuple[int, int]:
    """Return the queries and updates, and the workflow tasks, of an idle session that is watched for a minute."""
    counter = _CallCounter()
    app = create_app(environment.settings, client=Client(**{**environment.client.config(), "interceptors": [counter]}))
    session = await environment.session("tool")
    await session.round()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app.router.lifespan_context(app))
        feed = app.state.services.feed
        events = await stack.enter_async_context(aclosing(feed.events(session.handle.id, UpdatesRequest())))
        await anext(events)
        next_event = asyncio.ensure_future(anext(events))
        await asyncio.sleep(1)  # the watch first reads earlier events
        counter.count, before = 0, await _workflow_tasks(session)
        await asyncio.sleep(IDLE_SECONDS)
        count, tasks = counter.count, await _workflow_tasks(session) - before
        next_event.cancel()
        await asyncio.gather(next_event, return_exceptions=True)
    return count, tasks


async def _workflow_tasks(session: OurSession) -> int:
    history = await session.handle.fetch_history()
    return sum(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED for event in history.events)


def _p95(samples: list[float]) -> float:
    return quantiles(samples, n=20)[-1]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
