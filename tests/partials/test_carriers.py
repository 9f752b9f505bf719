"""Partial output on its way from a model that is still writing to who follows it: AGT-5, by every carrier."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from activities.providers.protocol import Delta
from stores.partials.carrier import PartialCarrier
from stores.partials.heartbeats import HeartbeatCarrier
from stores.partials.in_process import InProcessCarrier
from tests.harness import Gate, Stage, says, stage


@pytest.fixture(params=["heartbeats", "in process"])
async def carrier(request: pytest.FixtureRequest, temporal: Client) -> AsyncIterator[PartialCarrier]:
    made = {"heartbeats": lambda: HeartbeatCarrier(temporal), "in process": InProcessCarrier}[request.param]()
    async with made as opened:
        yield opened


@pytest.fixture
async def on(temporal: Client, carrier: PartialCarrier) -> AsyncIterator[Stage]:
    async with stage(temporal, partials=carrier) as staged:
        yield staged


async def test_agt_5_text_thinking_and_calls_are_seen_while_the_model_is_still_writing(on: Stage) -> None:
    gate = Gate(is_open=False)
    on.vendor.script = [
        [Delta("think", "Hm"), Delta("think", "."), Delta("respond", "Hel"), Delta("call", "look"), gate, says("Hello")]
    ]
    session = await on.start()
    async with on.partials.following(session.handle.id) as live:
        await session.prompt(id="a", text="hi")
        while not (live.latest and len(live.latest.parts) == 3):
            assert await live.beyond(live.version)
    gate.open()
    await session.idle(turns=1)
