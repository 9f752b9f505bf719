"""How soon people see what a model writes, by each carrier, and what that costs in history (AGT-5)."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from time import perf_counter
from uuid import uuid4

from temporalio.client import Client

from activities.providers.protocol import CallContext, Delta, Provider
from benchmarks.measurements import Row
from benchmarks.stage import BenchStage, OurSession
from models.model_call import ModelRequest, ModelResponse, RespondPart
from models.session import SessionInput
from models.settings import Settings
from stores.partials.carrier import Live, PartialCarrier
from stores.partials.chosen import chosen_carrier
from stores.partials.in_process import InProcessCarrier
from stores.stores import Stores
from tests.partials.redis_server import find_redis, running
from worker import build_toolbox, build_worker

ANSWERS, CHUNKS, CHUNK_SECONDS = 20, 60, 0.02
"""Answers measured with each carrier, chunks in each, and the pause after one: 50 a second."""

WORD = "word "
MOST_SECONDS = 0.5


@dataclass(frozen=True)
class Way:
    """A carrier: how a worker comes to one, and how a gateway does."""

    name: str
    of_worker: Callable[[Client], PartialCarrier]
    of_gateway: Callable[[Client], PartialCarrier]


@dataclass
class PacedModel:
    """A vendor that writes word by word, and remembers when each was written."""

    chunks: int
    written_at: list[float] = field(default_factory=list)

    async def stream(
        self, name: str, request: ModelRequest, context: CallContext
    ) -> AsyncGenerator[Delta | ModelResponse, None]:
        """Write `chunks` words, then the whole answer, which is always the same."""
        self.written_at = []
        for _ in range(self.chunks):
            self.written_at.append(perf_counter())
            yield Delta("respond", WORD)
            await asyncio.sleep(CHUNK_SECONDS)
        yield ModelResponse(parts=[RespondPart(kind="respond", text=WORD * CHUNKS)], model="paced")

    def resolve(self, model: str) -> tuple[Provider, str]:
        """Answer for every model."""
        return self, model


async def streaming(stage: BenchStage) -> list[Row]:
    """Measure each carrier with a worker of its own, and where that can be with another carrier on the other side."""
    rows: list[Row] = []
    with ExitStack() as servers:
        for way in _ways(stage.settings, servers):
            model = PacedModel(CHUNKS)
            async with _session(stage, way, model) as session, way.of_gateway(stage.client) as gateway:
                rows += _lag_rows(way.name, [await _lags(session, model, gateway) for _ in range(ANSWERS)])
                rows.append(await _history_row(way.name, session, model, gateway))
    return rows


def _ways(settings: Settings, servers: ExitStack) -> list[Way]:
    """Return every carrier there is on this machine."""
    shared = InProcessCarrier()
    heartbeats = chosen_carrier(settings)
    ways = [
        Way("heartbeats", heartbeats, heartbeats),
        Way("in process", lambda _: shared, lambda _: shared),
    ]
    if program := find_redis():
        server = servers.enter_context(running(program))
        redis = chosen_carrier(settings.model_copy(update={"redis_url": server.url}))
        ways.append(Way("redis", redis, redis))
    return ways


@asynccontextmanager
async def _session(stage: BenchStage, way: Way, model: PacedModel) -> AsyncIterator[OurSession]:
    """Have a session led by a worker whose vendor is `model`."""
    settings = stage.settings.model_copy(update={"task_queue": f"streaming-{uuid4()}", "shutdown_grace": 0.0})
    async with (
        Stores.of(settings) as stores,
        way.of_worker(stage.client) as partials,
        build_toolbox(settings) as tools,
        build_worker(stage.client, settings, providers=model, tools=tools, stores=stores, partials=partials),
    ):
        handle = await stage.client.start_workflow(
            "AgenticAIWorkflow", SessionInput(user="bench"), id=f"ours-{uuid4()}", task_queue=settings.task_queue
        )
        yield OurSession(stage.client, handle, stage.watches)


async def _lags(session: OurSession, model: PacedModel, gateway: PartialCarrier) -> list[float]:
    """Return of each chunk of an answer how long it took to arrive, in seconds; the last may come with the answer."""
    lags: list[float] = []
    async with gateway.following(session.handle.id) as live:
        watching = asyncio.create_task(_note_lags(live, model, lags))
        await session.round()
        watching.cancel()
    return lags


async def _note_lags(live: Live, model: PacedModel, lags: list[float]) -> None:
    version = 0
    while await live.beyond(version):
        version = live.version
        if live.latest:
            arrived, chunks = perf_counter(), live.latest.parts[0].end // len(WORD)
            lags += [arrived - written for written in model.written_at[len(lags) : chunks]]


def _lag_rows(name: str, answers: list[list[float]]) -> list[Row]:
    firsts, every = [lags[0] for lags in answers], [lag for lags in answers for lag in lags]
    return [
        _lag_row(f"first partial text after the vendor's first chunk, {name}", median(firsts), "worst", max(firsts)),
        _lag_row(f"any partial text after its chunk, {name}", median(every), "p95", quantiles(every, n=20)[-1]),
    ]


def _lag_row(what: str, middle: float, name: str, high: float) -> Row:
    measured = f"{middle * 1000:.1f} ms, {name} {high * 1000:.1f} ms"
    return Row(what, measured, "", "", f"≤ {MOST_SECONDS * 1000:.0f} ms", high <= MOST_SECONDS)


async def _history_row(name: str, session: OurSession, model: PacedModel, gateway: PartialCarrier) -> Row:
    """Compare the history of a turn whose answer comes in chunks with that of one which comes at once."""
    events: list[int] = []
    for model.chunks in (0, CHUNKS):
        before = await _history_length(session)
        async with gateway.following(session.handle.id):
            await session.round()
        events.append(await _history_length(session) - before)
    per_chunk = (events[1] - events[0]) / CHUNKS
    what = f"history events per streamed chunk, {name}"
    return Row(what, f"{per_chunk:g}", "", "", "0", per_chunk == 0)


async def _history_length(session: OurSession) -> int:
    return (await session.handle.describe()).history_length
