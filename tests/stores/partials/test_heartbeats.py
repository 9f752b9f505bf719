"""How many heartbeats a turn costs (OPS-8)."""

from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client

from tests.harness import BOUND, Gate, asks, environment, says
from tests.waiting import until
from turnkeeper.activities.providers.protocol import Delta
from turnkeeper.stores.partials.heartbeats import HeartbeatCarrier

WRITING = [Delta("think", "I look."), Delta("call", "look")]


@pytest.fixture
def heartbeats(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the details of each heartbeat that the worker sends."""
    recorded: list[Any] = []
    heartbeat = activity.heartbeat

    def record(*details: Any) -> None:
        recorded.append(details)
        heartbeat(*details)

    monkeypatch.setattr(activity, "heartbeat", record)
    return recorded


async def test_ops_8_a_turn_of_quick_answers_and_tools_sends_no_heartbeat(
    temporal: Client, heartbeats: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow the machine is that the test runs on: what is quick is quicker than `BOUND` here."""
    monkeypatch.setattr(HeartbeatCarrier, "first_pause", BOUND)
    monkeypatch.setattr("turnkeeper.activities.call_model.HEARTBEAT_SECONDS", BOUND)
    async with environment(temporal) as env:
        env.vendor.script = [[*WRITING, asks(("look", {}))] for _ in range(3)]
        env.vendor.script.append([Delta("respond", "Seen."), says("Seen.")])
        session = await env.start()
        await session.prompt("look three times")
        (turn,) = await session.idle(turns=1)
    assert (turn.agent_message, len(env.tools.calls)) == ("Seen.", 3)
    assert heartbeats == []


async def test_ops_8_an_answer_that_takes_longer_is_sent_with_a_heartbeat(
    temporal: Client, heartbeats: list[Any]
) -> None:
    gate = Gate(is_open=False)
    async with environment(temporal) as env:
        env.vendor.script = [[*WRITING, gate, says("Hello")]]
        session = await env.start()
        await session.prompt("hi")
        await gate.until_arrived(1)

        async def first() -> Any:
            return heartbeats[0] if heartbeats else None

        (snapshot,) = await until(first)
        gate.open()
        await session.idle(turns=1)
    assert [(part.kind, part.text) for part in snapshot.parts] == [("think", "I look."), ("call", "look")]
