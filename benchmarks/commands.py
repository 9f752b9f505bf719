"""What starting a session and sending a prompt costs beside Temporal's own calls (API-1, OPS-11).

The gateway runs in its own process; the floor is a start or a signal by the SDK's client, for the same workflow with
the same work.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from statistics import median
from time import perf_counter
from uuid import uuid4

from httpx import codes
from temporalio.service import RPCError

from benchmarks.environment import BOUND, BenchEnvironment, OurSession, gateway_process, interleaved, stack_environment
from benchmarks.http_client import HttpClient, http_client
from benchmarks.measurements import Row, row
from turnkeeper.models.session.messages import SessionInput

STARTS, STARTS_AT_ONCE, START_SAMPLES = 96, 16, 5
PROMPT_SAMPLES = 40
CLIENTS, PROMPTS_EACH, RATE_SAMPLES = 64, 4, 3

POLL_SECONDS = 0.02

MODEL = "offline:script/answer"

TEXT = "what is it?"


async def commands() -> list[Row]:
    """Measure starts and prompts on what `make run` runs, with everybody in a process of their own."""
    async with stack_environment() as environment, gateway_process(environment) as port:
        with http_client(port, at_once=CLIENTS) as http:
            return [*await _starts(environment, http), *await _prompts(environment, http)]


async def _starts(environment: BenchEnvironment, http: HttpClient) -> list[Row]:
    """Start sessions, 16 at once."""

    async def bare() -> str:
        start, session_id = SessionInput(model=MODEL), str(uuid4())
        queue = environment.settings.task_queue
        await environment.client.start_workflow("AgenticAIWorkflow", start, id=session_id, task_queue=queue)
        return session_id

    async def ours() -> str:
        status, answer = await http.post("/workflow", {"model": MODEL})
        assert status == codes.CREATED, answer
        return str(answer["workflow_id"])

    samples = await interleaved(
        START_SAMPLES, lambda: _start_rate(environment, bare), lambda: _start_rate(environment, ours)
    )
    floor, rate = map(median, samples)
    what = f"sessions started a second, {STARTS_AT_ONCE} at once: time of one to a bare start's"
    return [row(what, f"{rate:.0f}", f"{floor:.0f}", floor / rate, at_most=1.5)]


async def _prompts(environment: BenchEnvironment, http: HttpClient) -> list[Row]:
    """Send prompts: one by one to an idle session, and by 64 clients at once, each to a session of its own."""
    idle, rates = await _idle(environment, http), await _rates(environment, http)
    (signal, post), (signals, posts) = idle, rates
    return [
        row("POST /prompt, idle, p50", _ms(post), _ms(signal), post / signal, at_most=1.5),
        row(f"prompts a second, {CLIENTS} clients", f"{posts:.0f}", f"{signals:.0f}", posts / signals, at_least=0.6),
    ]


async def _start_rate(environment: BenchEnvironment, start: Callable[[], Awaitable[str]]) -> float:
    """Return the starts a second; afterwards all sessions are idle."""
    slots, session_ids = asyncio.Semaphore(STARTS_AT_ONCE), list[str]()

    async def start_one() -> None:
        async with slots:
            session_ids.append(await start())

    started_at = perf_counter()
    await asyncio.gather(*(start_one() for _ in range(STARTS)))
    seconds = perf_counter() - started_at
    for session_id in session_ids:
        await environment.client.get_workflow_handle(session_id).query("get_queue")
    return STARTS / seconds


Send = Callable[[OurSession, str], Awaitable[None]]


def _ways(http: HttpClient) -> Sequence[Send]:
    """Return the two ways to send a prompt: a bare signal, and a request."""

    async def signal(session: OurSession, message_id: str) -> None:
        await session.handle.signal("prompt", {"id": message_id, "text": TEXT})

    async def post(session: OurSession, message_id: str) -> None:
        body = {"message": TEXT, "id": message_id}
        while True:
            status, answer = await http.post(f"/workflow/{session.handle.id}/prompt", body)
            if status != codes.SERVICE_UNAVAILABLE:  # a busy machine; clients repeat the request
                break
        assert status == codes.ACCEPTED, answer

    return signal, post


async def _send(session: OurSession, send: Send) -> None:
    session.rounds += 1
    await send(session, f"m{session.rounds}")


async def _until_idle(session: OurSession) -> None:
    """Wait until the last prompt is answered. A query that fails, since the worker is busy, is repeated."""
    async with asyncio.timeout(BOUND):
        while True:
            with suppress(RPCError):
                if await session.is_done():
                    return
            await asyncio.sleep(POLL_SECONDS)


async def _idle(environment: BenchEnvironment, http: HttpClient) -> list[float]:
    """Return the median seconds of each way to send a prompt to a session that has nothing to do."""
    session = await environment.session("answer")

    async def seconds(send: Send) -> float:
        started_at = perf_counter()
        await _send(session, send)
        elapsed = perf_counter() - started_at
        await _until_idle(session)
        return elapsed

    ways = [partial(seconds, send) for send in _ways(http)]
    return [median(values) for values in await interleaved(PROMPT_SAMPLES, *ways)]


async def _rates(environment: BenchEnvironment, http: HttpClient) -> list[float]:
    """Return the prompts a second of 64 clients for each way to send them."""
    sessions = [await environment.session("answer") for _ in range(CLIENTS)]

    async def rate(send: Send) -> float:
        async def client(session: OurSession) -> None:
            for _ in range(PROMPTS_EACH):
                await _send(session, send)

        started_at = perf_counter()
        await asyncio.gather(*map(client, sessions))
        seconds = perf_counter() - started_at
        for session in sessions:
            await _until_idle(session)
        return CLIENTS * PROMPTS_EACH / seconds

    ways = [partial(rate, send) for send in _ways(http)]
    return [median(values) for values in await interleaved(RATE_SAMPLES, *ways)]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
