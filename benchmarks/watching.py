"""How soon 200 watchers of one session see an answer, beside one (API-3, OPS-11).

An answer is complete when Temporal has the result of its model call. It is visible when its last bytes have arrived at
a client.
"""

import asyncio
from time import time

from temporalio.api.enums.v1 import EventType

from benchmarks.environment import BOUND, BenchEnvironment, OurSession, bench_environment
from benchmarks.http_client import EventStream
from benchmarks.results import Row, ms, p95, row
from turnkeeper.models.transcript.conversation import ConversationUpdate

WATCHERS = 200
SAMPLES = 30
WARM_UP = 3


async def watching() -> list[Row]:
    """Measure how soon one and many watchers see an answer, in turn."""
    async with bench_environment(gateways=1) as environment:
        sessions = [await environment.session("tool") for _ in range(2)]
        alone = [await _stream(environment, sessions[0])]
        together = [await _stream(environment, sessions[1]) for _ in range(WATCHERS)]
        one, many = list[float](), list[float]()
        for sample in range(WARM_UP + SAMPLES):
            lags = [await _lags(sessions[0], alone), await _lags(sessions[1], together)]
            if sample >= WARM_UP:
                one += lags[0]
                many += lags[1]
        for stream in (*alone, *together):
            stream.close()
    what = f"answer visible to {WATCHERS} watchers, p95, to one watcher's"
    return [row(what, ms(p95(many)), ms(p95(one)), p95(many) / p95(one), at_most=2.0)]


async def _stream(environment: BenchEnvironment, session: OurSession) -> EventStream:
    update = await session.handle.query("get_conversation_updates", result_type=ConversationUpdate)
    return await EventStream.of(environment.gateway_ports[0], session.handle.id, after=f"{update.revision}.")


async def _lags(session: OurSession, streams: list[EventStream]) -> list[float]:
    """Return, for each watcher, the seconds from an answer's completion until it was visible.

    Empty if the session has started a new run meanwhile.
    """
    session.rounds += 1
    message_id = f"m{session.rounds}"

    async def until_visible(stream: EventStream) -> float:
        await stream.until_complete(message_id)
        return time()

    arrivals = asyncio.gather(*map(until_visible, streams))
    await session.send("What is it?")
    arrival_times = await asyncio.wait_for(arrivals, BOUND)
    history = await session.handle.fetch_history()
    results = [event for event in history.events if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED]
    if not results:
        return []
    completed_at = results[-1].event_time.ToNanoseconds() / 1e9
    return [arrived_at - completed_at for arrived_at in arrival_times]
