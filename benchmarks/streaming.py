"""A model that streams as vendors do, beside the vendor's own SDK in a bare loop (AGT-5, OPS-11).

The fake vendor of `vendor.py` answers both over HTTP. A client follows the gateway's event stream from before the
prompt, on what `make run` runs: a server with a file, a worker and a gateway, without Redis.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from statistics import median
from time import monotonic
from uuid import uuid4

from benchmarks.direct import Answer, DirectLoop, direct_loop
from benchmarks.environment import (
    ARCHIVED_SECONDS,
    BOUND,
    BenchEnvironment,
    GatewaySession,
    bench_environment,
    interleaved,
)
from benchmarks.results import Row, ms, p95, row, within
from benchmarks.vendor import CHUNKS_A_SECOND, written_at
from turnkeeper.clients.python.conversation import Event, PartialEvent, UpdateEvent
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.ops.local.processes import LOOPBACK

SHORT_CHUNKS, SHORT_ANSWERS = 15, 30
"""Answers of which only the beginning counts."""

AT_ONCE = 4
"""Whole answers at the same time, each with a watcher."""

SESSIONS, CPU_SECONDS, CPU_SAMPLES = 32, 5, 3


def model(seconds: float) -> str:
    """Return the vendor's model that writes for `seconds`."""
    return f"text-{round(seconds * CHUNKS_A_SECOND)}"


@dataclass
class WatchedSession:
    """A session that a client watches over HTTP, from before its first prompt."""

    session_id: str
    client: GatewayClient
    events: AsyncGenerator[Event, None]
    rounds: int = 0

    async def answer(self) -> Answer:
        """Send a prompt and return its answer as the watcher saw it."""
        self.rounds += 1
        message_id, visible, sizes = f"m{self.rounds}", 0, list[tuple[float, int]]()
        started_at = monotonic()
        async with asyncio.timeout(BOUND):
            await self.client.prompt(self.session_id, "What is it?", message_id=message_id)
            async for event in self.events:
                if isinstance(event, PartialEvent) and event.partial.message_id == message_id:
                    grown = sum(part.omitted + len(part.text) for part in event.partial.parts)
                    visible = grown if event.partial.fresh else visible + grown
                    sizes.append((monotonic(), visible))
                if isinstance(event, UpdateEvent):
                    for turn in (*event.update.new_messages, *event.update.updated_messages):
                        if turn.id == message_id and turn.is_complete:
                            ended_at, text = monotonic(), turn.agent_message or ""
                            sizes.append((ended_at, len(text)))
                            first = next(at for at, size in sizes if size)
                            return Answer(first - started_at, ended_at - started_at, _lags(text, sizes))
        raise AssertionError("the stream has ended")


def _lags(text: str, sizes: list[tuple[float, int]]) -> list[float]:
    """Return the seconds from each chunk of `text` until it was visible; `sizes`: characters by time."""
    ends = [end - 1 for end in accumulate(len(word) + 1 for word in text.split())]
    seen_at = (next(at for at, size in sizes if size >= end) for end in ends)
    return [seen - at for seen, at in zip(seen_at, written_at(text), strict=True)]


async def streaming() -> list[Row]:
    """Measure the first text, all text, whole turns and the CPU time of a chunk."""
    async with bench_environment(in_memory=False, gateways=1) as environment, AsyncExitStack() as stack:
        direct = await stack.enter_async_context(direct_loop(environment.vendor_port))
        client = await stack.enter_async_context(GatewayClient(f"http://{LOOPBACK}:{environment.gateway_ports[0]}"))

        async def watched(name: str) -> WatchedSession:
            started = await client.start(f"ours-{uuid4()}", model=f"openai-chat:{name}")
            events = await stack.enter_async_context(aclosing(client.events(started.workflow_id)))
            await asyncio.wait_for(anext(events), BOUND)
            return WatchedSession(started.workflow_id, client, events)

        rows = await _first_text(await watched(f"text-{SHORT_CHUNKS}"), direct)
        for seconds in (5, 10):
            rows += await _whole_answers([await watched(model(seconds)) for _ in range(AT_ONCE)], direct, seconds)
        return [*rows, *await _cpu_of_chunks(environment, direct)]


async def _first_text(session: WatchedSession, direct: DirectLoop) -> list[Row]:
    ours, theirs = list[Answer](), list[Answer]()
    await session.answer()  # the first one of each loads something
    await direct.answers(model(0))
    for _ in range(SHORT_ANSWERS):
        ours.append(await session.answer())
        theirs += (await direct.answers(f"text-{SHORT_CHUNKS}"))[0]
    lags, floor_lags = ([answer.lags[0] for answer in answers] for answers in (ours, theirs))
    firsts, floor_firsts = ([answer.first for answer in answers] for answers in (ours, theirs))
    rows = list[Row]()
    for name, statistic, at_most in (("p50", median, 25), ("p95", p95, 60)):
        rows += [
            _over(
                f"first text at a watcher after the vendor's first chunk, {name}", lags, floor_lags, statistic, at_most
            ),
            _over(f"first text at a watcher after its prompt, {name}", firsts, floor_firsts, statistic, at_most),
        ]
    return rows


def _over(
    what: str, ours: list[float], theirs: list[float], statistic: Callable[[list[float]], float], at_most: float
) -> Row:
    """Return the line of how much later ours is than that of the SDK in a loop; the two columns have both times."""
    own, floor = statistic(ours) * 1000, statistic(theirs) * 1000
    return Row(
        what,
        f"{own - floor:+.1f} ms: {own:.1f} ms",
        f"{floor:.1f} ms",
        "",
        f"≤ +{at_most:g} ms",
        own - floor <= at_most,
    )


async def _whole_answers(sessions: list[WatchedSession], direct: DirectLoop, seconds: int) -> list[Row]:
    """Measure answers of `seconds`, ours and theirs at the same time."""
    ours, (theirs, _) = await asyncio.gather(
        asyncio.gather(*(session.answer() for session in sessions)), direct.answers(model(seconds), AT_ONCE)
    )
    lags = [lag for answer in ours for lag in answer.lags[1:]]
    whole, floor = (median(answer.whole for answer in answers) for answers in (ours, theirs))
    what = f"latest text at a watcher after its chunk, answers of {seconds} s"
    note = f"p50 {ms(median(lags))}, p95 {ms(p95(lags))}"
    return [
        within(what, max(lags) * 1000, 100, unit="ms", digits=1, note=note),
        row(
            f"whole turn with an answer of {seconds} s", f"{whole:.3f} s", f"{floor:.3f} s", whole / floor, at_most=1.03
        ),
    ]


async def _cpu_of_chunks(environment: BenchEnvironment, direct: DirectLoop) -> list[Row]:
    """Compare the CPU time of 32 streamed answers, less that of as many answers at once, with the SDK's."""
    chunks = CPU_SECONDS * CHUNKS_A_SECOND * SESSIONS

    async def of_crowd(sessions: list[GatewaySession], pause: float) -> float:
        if pause:
            await asyncio.sleep(ARCHIVED_SECONDS)
        before = environment.cpu_seconds()
        await asyncio.gather(*(session.prompt() for session in sessions))
        await asyncio.sleep(pause)
        await asyncio.gather(*(session.until_idle(pause=0.2) for session in sessions))
        return environment.cpu_seconds() - before

    async def of_sdk(name: str) -> float:
        return (await direct.answers(name, SESSIONS))[1]

    measurements = list[Callable[[], Awaitable[float]]]()
    for is_watched in (True, False):
        for name, pause in ((model(CPU_SECONDS), CPU_SECONDS), (model(0), 0)):
            crowd = [
                await environment.gateway_session(f"openai-chat:{name}", is_watched=is_watched) for _ in range(SESSIONS)
            ]
            measurements.append(partial(of_crowd, crowd, pause))
    measurements += [partial(of_sdk, model(CPU_SECONDS)), partial(of_sdk, model(0))]
    samples = await interleaved(CPU_SAMPLES, *measurements)
    watched, unwatched, sdk = (
        median(streamed - whole for streamed, whole in zip(*samples[place : place + 2], strict=True)) / chunks * 1e6
        for place in (0, 2, 4)
    )
    what = f"CPU time of a streamed chunk, all processes, {SESSIONS} sessions"
    return [
        row(f"{what}, watched", f"{watched:.0f} µs", f"{sdk:.0f} µs", watched / sdk, at_most=1.3),
        row(f"{what}, unwatched", f"{unwatched:.0f} µs", f"{sdk:.0f} µs", unwatched / sdk, at_most=1.1),
    ]
