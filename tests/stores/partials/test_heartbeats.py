"""How many heartbeats a turn costs (OPS-8)."""

from collections import defaultdict
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client

from tests.harness import BOUND, Gate, asks, environment, says
from tests.waiting import until
from turnkeeper.activities.activity_context import HEARTBEAT_SECONDS
from turnkeeper.activities.providers.protocol import Delta
from turnkeeper.models.transcript.model_call import Spent
from turnkeeper.stores.partials.factory import HeartbeatCarrier
from turnkeeper.workflows.activity_options import HEARTBEAT_TIMEOUT

WRITING = [Delta("think", "I look."), Delta("call", "look")]


@pytest.fixture
def heartbeats(monkeypatch: pytest.MonkeyPatch) -> defaultdict[str, list[Any]]:
    """Record the details of each heartbeat, by task queue: other tests share a worker of this process."""
    recorded: defaultdict[str, list[Any]] = defaultdict(list)
    heartbeat = activity.heartbeat

    def record(*details: Any) -> None:
        recorded[activity.info().task_queue].append(details)
        heartbeat(*details)

    monkeypatch.setattr(activity, "heartbeat", record)
    return recorded


async def test_ops_8_a_turn_of_quick_answers_and_tools_sends_no_heartbeat(
    temporal: Client, heartbeats: defaultdict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow the machine is that the test runs on: what is quick is quicker than `BOUND` here."""
    monkeypatch.setattr(HeartbeatCarrier, "first_pause", BOUND)
    monkeypatch.setattr("turnkeeper.activities.activity_context.HEARTBEAT_SECONDS", BOUND)
    async with environment(temporal, partials=HeartbeatCarrier(temporal)) as env:
        env.vendor.script = [[*WRITING, asks(("look", {}))] for _ in range(3)]
        env.vendor.script.append([Delta("respond", "Seen."), says("Seen.")])
        session = await env.start()
        await session.prompt("look three times")
        (turn,) = await session.idle(turns=1)
    assert (turn.agent_message, len(env.tools.calls)) == ("Seen.", 3)
    assert heartbeats[env.task_queue] == []


async def test_agt_5_by_setting_answers_are_sent_with_heartbeats(
    temporal: Client, heartbeats: defaultdict[str, list[Any]]
) -> None:
    gate = Gate(is_open=False)
    async with environment(temporal, partials=HeartbeatCarrier(temporal)) as env:
        env.vendor.script = [[*WRITING, gate, says("Hello")]]
        session = await env.start()
        await session.prompt("hi")
        await gate.until_arrived(1)

        async def first() -> Any:
            return next(iter(heartbeats[env.task_queue]), None)

        (snapshot,) = await until(first)
        gate.open()
        await session.idle(turns=1)
    assert [(part.kind, part.text) for part in snapshot.parts] == [("think", "I look."), ("call", "look")]


async def test_ops_8_a_call_of_ten_seconds_sends_three_heartbeats_without_text(
    temporal: Client, heartbeats: defaultdict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a tenth of the time, counted by the number of heartbeats and not by the clock."""
    monkeypatch.setattr("turnkeeper.activities.activity_context.HEARTBEAT_SECONDS", HEARTBEAT_SECONDS / 10)
    gate = Gate(is_open=False)
    async with environment(temporal) as env:
        env.vendor.script = [[*WRITING, gate, says("Hello")]]
        session = await env.start()
        async with env.partials.following(session.handle.id) as live:
            await session.prompt("hi")
            await live.wait_beyond(0)

            async def three() -> bool:
                return len(heartbeats[env.task_queue]) >= 3

            await until(three)
            gate.open()
        await session.idle(turns=1)
    assert all(isinstance(detail, Spent | None) for details in heartbeats[env.task_queue] for detail in details)
    assert (10 // HEARTBEAT_SECONDS, HEARTBEAT_TIMEOUT.total_seconds()) == (3, 8)
