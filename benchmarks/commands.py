"""What a prompt costs over HTTP beside a bare signal by the SDK's client, to the same sessions (API-1, OPS-11)."""

import asyncio
from collections.abc import Awaitable, Callable
from statistics import median
from time import perf_counter

from benchmarks.environment import BenchEnvironment, GatewaySession, bench_environment, interleaved
from benchmarks.results import Row, ms, row

PROMPT_SAMPLES = 40
CLIENTS, PROMPTS_EACH, RATE_SAMPLES = 64, 4, 3

MODEL = "offline:script/answer"

TEXT = "what is it?"

Send = Callable[[GatewaySession], Awaitable[None]]


async def commands() -> list[Row]:
    """Send prompts on what `make run` runs: to an idle session, and by 64 clients, each to a session of its own."""
    async with bench_environment(in_memory=False, gateways=1) as environment:
        signal, post = await _idle(environment)
        signals, posts = await _rates(environment)
    what = f"prompts a second, {CLIENTS} clients at once"
    return [
        row("POST /prompt, idle, p50", ms(post), ms(signal), post / signal, at_most=1.5),
        row(what, f"{posts:.0f}", f"{signals:.0f}", posts / signals, at_least=0.6),
    ]


async def _signal(session: GatewaySession) -> None:
    session.rounds += 1
    await session.send(TEXT)


async def _post(session: GatewaySession) -> None:
    await session.prompt(TEXT)


async def _idle(environment: BenchEnvironment) -> list[float]:
    """Return the median seconds of each way to send a prompt to a session that has nothing to do."""
    session = await environment.gateway_session(MODEL, is_watched=False)

    async def seconds(send: Send) -> float:
        started_at = perf_counter()
        await send(session)
        elapsed = perf_counter() - started_at
        await session.until_idle()
        return elapsed

    samples = await interleaved(PROMPT_SAMPLES, lambda: seconds(_signal), lambda: seconds(_post))
    return [median(values) for values in samples]


async def _rates(environment: BenchEnvironment) -> list[float]:
    """Return the prompts a second of 64 clients for each way to send them."""
    sessions = [await environment.gateway_session(MODEL, is_watched=False) for _ in range(CLIENTS)]

    async def rate(send: Send) -> float:
        async def client(session: GatewaySession) -> None:
            for _ in range(PROMPTS_EACH):
                await send(session)

        started_at = perf_counter()
        await asyncio.gather(*map(client, sessions))
        seconds = perf_counter() - started_at
        for session in sessions:
            await session.until_idle()
        return CLIENTS * PROMPTS_EACH / seconds

    samples = await interleaved(RATE_SAMPLES, lambda: rate(_signal), lambda: rate(_post))
    return [median(values) for values in samples]
