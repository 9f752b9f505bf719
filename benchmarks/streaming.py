"""How soon a client sees partial output with each carrier, and what that costs in history (AGT-5).

The Python client follows the gateway's event stream from before the prompt. The measured time includes the worker's
pauses, the carrier, the gateway's feed and HTTP. Worker, gateway and client share one process, clock and event loop.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from time import perf_counter
from uuid import uuid4

from temporalio.client import Client, WorkflowHandle

from benchmarks.environment import BOUND, BenchEnvironment, gateway
from benchmarks.measurements import Row
from tests.stores.partials.redis_server import find_redis, running
from turnkeeper.activities.providers.protocol import CallInfo, Delta
from turnkeeper.activities.providers.provider import Provider
from turnkeeper.activities.toolbox.toolbox import build_toolbox
from turnkeeper.api.app import create_app
from turnkeeper.clients.python.events import Event, PartialEvent, UpdateEvent
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ConversationUpdate
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse, RespondPart
from turnkeeper.models.transcript.partial_output import PartialGrowth
from turnkeeper.stores.partials.carrier import PartialCarrier
from turnkeeper.stores.partials.factory import carrier_factory
from turnkeeper.stores.partials.in_process import InProcessCarrier
from turnkeeper.stores.stores import Stores
from turnkeeper.worker import build_worker

ANSWERS, CHUNKS, CHUNK_SECONDS = 20, 60, 0.02
"""Answers for each carrier, chunks of each answer, and the pause after each chunk."""

SILENCES = [0.3 + 0.4 * answer / ANSWERS for answer in range(ANSWERS)]
"""The time before each answer's first chunk; it varies, to meet a periodic reader at every phase."""

WORD = "word "
MAX_SECONDS = 0.5


@dataclass(frozen=True)
class CarrierSetup:
    """A carrier, which worker and gateway create in the same way."""

    name: str
    carrier: Callable[[Client], PartialCarrier]


@dataclass
class PacedModel:
    """A model that writes word by word after a silence, and records when it wrote each."""

    chunks: int = CHUNKS
    silence: float = 0.0
    written_at: list[float] = field(default_factory=list)

    async def stream(
        self, name: str, request: ModelRequest, info: CallInfo
    ) -> AsyncGenerator[Delta | ModelResponse, None]:
        """Write `chunks` words, then the whole answer, which is always the same."""
        self.written_at = []
        await asyncio.sleep(self.silence)
        for _ in range(self.chunks):
            self.written_at.append(perf_counter())
            yield Delta("respond", WORD)
            await asyncio.sleep(CHUNK_SECONDS)
        yield ModelResponse(parts=[RespondPart(kind="respond", text=WORD * CHUNKS)], model="paced")

    def resolve(self, model: str) -> tuple[Provider, str]:
        """Return this model for every name."""
        return self, model


@dataclass
class WatchedSession:
    """A session that a client watches over HTTP, from before its first prompt."""

    handle: WorkflowHandle[object, object]
    client: GatewayClient
    events: AsyncGenerator[Event, None]
    rounds: int = 0

    async def round(self) -> AsyncIterator[tuple[float, int]]:
        """Send a prompt; yield pairs of a time and how many characters are visible then, last the whole answer."""
        self.rounds += 1
        turn, visible = f"m{self.rounds}", 0
        async with asyncio.timeout(BOUND):
            await self.client.prompt(self.handle.id, "What is it?", message_id=turn)
            async for event in self.events:
                if isinstance(event, PartialEvent) and event.partial.message_id == turn:
                    visible = _chars_after(event.partial, visible)
                    yield perf_counter(), visible
                if isinstance(event, UpdateEvent) and _is_complete(turn, event.update):
                    yield perf_counter(), len(WORD) * CHUNKS
                    return


def _chars_after(growth: PartialGrowth, visible: int) -> int:
    """Return how many characters of the answer are visible after `growth`."""
    return (0 if growth.fresh else visible) + sum(part.omitted + len(part.text) for part in growth.parts)


def _is_complete(turn: str, update: ConversationUpdate) -> bool:
    messages = [*update.new_messages, *update.updated_messages]
    return any(message.id == turn and message.is_complete for message in messages)


async def streaming(environment: BenchEnvironment) -> list[Row]:
    """Measure every carrier on this machine, each with its own worker and gateway."""
    rows: list[Row] = []
    with ExitStack() as servers:
        for setup in _setups(environment.settings, servers):
            model = PacedModel()
            async with _watched_session(environment, setup, model) as session:
                rows += _lag_rows(setup.name, [await _lags(session, model, silence) for silence in SILENCES])
                rows.append(await _history_row(setup.name, session, model))
    return rows


def _setups(settings: Settings, servers: ExitStack) -> list[CarrierSetup]:
    """Return every carrier that this machine has."""
    shared = InProcessCarrier()
    setups = [
        CarrierSetup("sockets", carrier_factory(settings)),
        CarrierSetup("heartbeats", carrier_factory(settings.model_copy(update={"partials": "heartbeats"}))),
        CarrierSetup("in process", lambda _: shared),
    ]
    if program := find_redis():
        server = servers.enter_context(running(program))
        redis_settings = settings.model_copy(update={"redis_url": server.url})
        setups.append(CarrierSetup("redis", carrier_factory(redis_settings)))
    return setups


@asynccontextmanager
async def _watched_session(
    environment: BenchEnvironment, setup: CarrierSetup, model: PacedModel
) -> AsyncIterator[WatchedSession]:
    """Run a worker with `model` and a gateway, and start a session with a client."""
    settings = environment.settings.model_copy(update={"task_queue": f"streaming-{uuid4()}", "shutdown_grace": 0.0})
    async with (
        Stores.of(settings) as stores,
        setup.carrier(environment.client) as worker_carrier,
        setup.carrier(environment.client) as gateway_carrier,
        build_toolbox(settings) as tools,
        build_worker(
            environment.client, settings, providers=model, tools=tools, stores=stores, partials=worker_carrier
        ),
        gateway(create_app(settings, client=environment.client, partials=gateway_carrier)) as url,
        GatewayClient(url) as client,
    ):
        handle = await environment.client.start_workflow(
            "AgenticAIWorkflow", SessionInput(user="bench"), id=f"ours-{uuid4()}", task_queue=settings.task_queue
        )
        async with aclosing(client.events(handle.id)) as events:
            await asyncio.wait_for(anext(events), BOUND)
            yield WatchedSession(handle, client, events)


async def _lags(session: WatchedSession, model: PacedModel, silence: float) -> list[float]:
    """Return the seconds from each chunk of an answer until the client saw it."""
    lags: list[float] = []
    model.silence = silence
    async for seen_at, chars in session.round():
        lags += [seen_at - written_at for written_at in model.written_at[len(lags) : chars // len(WORD)]]
    if len(lags) != CHUNKS:
        raise AssertionError(f"{len(lags)} of {CHUNKS} chunks were written")
    return lags


def _lag_rows(name: str, answers: list[list[float]]) -> list[Row]:
    firsts, every = [lags[0] for lags in answers], [lag for lags in answers for lag in lags]
    return [
        _lag_row(f"first partial text at a watcher after the vendor's first chunk, {name}", firsts, "worst", max),
        _lag_row(f"any text at a watcher after its chunk, {name}", every, "p95", _p95),
    ]


def _lag_row(what: str, lags: list[float], name: str, high: Callable[[list[float]], float]) -> Row:
    measured = f"{median(lags) * 1000:.1f} ms, {name} {high(lags) * 1000:.1f} ms"
    return Row(what, measured, "", "", f"≤ {MAX_SECONDS * 1000:.0f} ms", high(lags) <= MAX_SECONDS)


def _p95(lags: list[float]) -> float:
    return quantiles(lags, n=20)[-1]


async def _history_row(name: str, session: WatchedSession, model: PacedModel) -> Row:
    """Compare the history of an answer in chunks with that of an answer without chunks."""
    events: list[int] = []
    for model.chunks in (0, CHUNKS):
        before = await _history_length(session)
        async for _ in session.round():
            pass
        events.append(await _history_length(session) - before)
    per_chunk = (events[1] - events[0]) / CHUNKS
    what = f"history events per streamed chunk, {name}"
    return Row(what, f"{per_chunk:g}", "", "", "0", per_chunk == 0)


async def _history_length(session: WatchedSession) -> int:
    return (await session.handle.describe()).history_length
