"""All followers of a session's partial output share one connection to it, which ends with the last follower: AGT-5."""

import asyncio
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from tests.harness import BOUND, Gate, environment, says
from tests.stores.partials.test_carriers import seen
from tests.waiting import run_other_tasks
from turnkeeper.activities.providers.protocol import Delta
from turnkeeper.models.transcript.partial_output import PartialOutput, PartialPart
from turnkeeper.stores.partials.carrier import FollowedSessions, LiveSnapshot
from turnkeeper.stores.partials.factory import HeartbeatCarrier


def snapshot(text: str, *, attempt: int = 1) -> PartialOutput:
    parts = [PartialPart(kind="respond", text=text)]
    return PartialOutput(message_id="a", turn=1, step=1, request=1, attempt=attempt, parts=parts)


class Ways:
    """Records which sessions are followed, and when that ends."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ended = asyncio.Queue[str]()

    async def keep_new(self, workflow_id: str, live: LiveSnapshot) -> None:
        self.started.append(workflow_id)
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.put_nowait(workflow_id)


async def test_agt_5_all_followers_of_a_session_share_one_reader_that_ends_with_the_last() -> None:
    ways = Ways()
    followed = FollowedSessions(ways.keep_new)
    async with followed.following("s") as one:
        async with followed.following("s") as other, followed.following("t"):
            await run_other_tasks()
            assert one is other
            assert ways.started == ["s", "t"]
        assert await asyncio.wait_for(ways.ended.get(), BOUND) == "t"
        assert followed.get("s") is one
    assert await asyncio.wait_for(ways.ended.get(), BOUND) == "s"
    assert followed.get("s") is None


async def test_agt_5_closing_ends_every_reader_before_it_returns() -> None:
    ways = Ways()
    followed = FollowedSessions(ways.keep_new)
    async with followed.following("s"):
        await run_other_tasks()
        await followed.close()
        assert ways.ended.get_nowait() == "s"


async def test_agt_5_a_slow_follower_gets_the_newest_snapshot_only() -> None:
    live = LiveSnapshot()
    for text in ("a", "ab", "abc"):
        live.update(snapshot(text))
    assert await live.wait_beyond(0)
    assert (live.version, live.latest) == (3, snapshot("abc"))


async def test_agt_5_duplicate_and_late_snapshots_wake_no_follower() -> None:
    live = LiveSnapshot()
    live.update(snapshot("ab", attempt=2))
    for late in (snapshot("ab", attempt=2), snapshot("a", attempt=2), snapshot("longer, and older", attempt=1)):
        live.update(late)
    assert not await live.wait_beyond(1, until=asyncio.get_running_loop().time())
    assert live.latest == snapshot("ab", attempt=2)


async def test_agt_5_a_failed_read_of_heartbeats_is_retried_and_never_raised(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.stores.partials.factory.RETRY_SECONDS", 0.01)
    failures = [
        RPCError("busy", RPCStatusCode.RESOURCE_EXHAUSTED, b""),
        RPCError("no such workflow", RPCStatusCode.NOT_FOUND, b""),
        RuntimeError("never connected"),
        TimeoutError(),
        ValueError("of another version"),
    ]
    carrier, gate = HeartbeatCarrier(temporal), Gate(is_open=False)
    look = carrier._read

    async def failing(*arguments: Any) -> object:
        if failures:
            raise failures.pop(0)
        return await look(*arguments)

    monkeypatch.setattr(carrier, "_read", failing)
    async with environment(temporal, partials=carrier) as env:
        env.vendor.script = [[Delta("respond", "Hel"), gate, says("Hello")]]
        session = await env.start()
        async with carrier, carrier.following(session.handle.id) as live:
            await session.prompt("hi")
            await seen(live, lambda partial: True)
        assert failures == []
        gate.open()
        await session.idle(turns=1)


async def test_agt_5_an_abandoned_attempt_does_not_replace_the_newer_one(temporal: Client) -> None:
    carrier, given_up, newer = (
        HeartbeatCarrier(temporal),
        snapshot("old and longer", attempt=1),
        snapshot("new", attempt=2),
    )
    beats = list[object]()
    attempt = ActivityEnvironment()
    attempt.on_heartbeat = lambda *details: beats.extend(details)
    for output in (newer, given_up):
        attempt.run(carrier.publish, "s", output)
    assert carrier.heartbeat_details("s") == (newer,)
    carrier.end("s", given_up)
    assert carrier.heartbeat_details("s") == (newer,)
    assert beats == [newer, given_up], "each attempt beats for itself: so the older one learns that it was given up"


async def test_agt_5_an_unexpected_error_does_not_end_the_following(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("turnkeeper.stores.partials.carrier.RETRY_SECONDS", 0.0)
    failures = [KeyError("an encoding of somebody's"), KeyError("again")]

    async def keep_new(workflow_id: str, live: LiveSnapshot) -> None:
        if failures:
            raise failures.pop()
        live.update(snapshot("Hel"))

    async with FollowedSessions(keep_new).following("s") as live:
        await seen(live, lambda partial: partial == snapshot("Hel"))
    (message,) = [record.getMessage() for record in caplog.records]
    assert "KeyError" in message
    assert "somebody" not in message


async def test_agt_5_heartbeats_are_not_read_for_sessions_without_followers(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    carrier, gate, looks = HeartbeatCarrier(temporal), Gate(is_open=False), list[str]()
    look = carrier._read

    async def counting(*arguments: Any) -> object:
        looks.append(arguments[0])
        return await look(*arguments)

    monkeypatch.setattr(carrier, "_read", counting)
    async with environment(temporal, partials=carrier) as env:
        env.vendor.script = [[Delta("respond", "Hel"), gate, says("Hello")]]
        watched, unwatched = await env.start(), await env.start()
        async with carrier, carrier.following(watched.handle.id) as live:
            await watched.prompt("hi")
            await seen(live, lambda partial: True)
        before = len(looks)
        gate.open()
        await watched.idle(turns=1)
        await unwatched.prompt("hi")
        await unwatched.idle(turns=1)
    assert set(looks) == {watched.handle.id}
    assert len(looks) == before
