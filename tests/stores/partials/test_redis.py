"""Redis comes and goes while it carries partial output: AGT-5, OPS-4."""

import asyncio
import logging

import pytest
from temporalio.client import Client

from tests.harness import BOUND, Gate, environment, says
from tests.stores.partials.redis_server import RedisServer
from tests.stores.partials.test_carriers import seen
from tests.waiting import until
from turnkeeper.activities.providers.protocol import Delta
from turnkeeper.models.settings.settings import Settings, SettingsError
from turnkeeper.models.transcript.partial_output import PartialOutput, PartialPart, PartialTag
from turnkeeper.stores.partials.factory import carrier_factory
from turnkeeper.stores.partials.over_redis import RedisCarrier


def carrier_at(server: RedisServer, *, task_queue: str = "q") -> RedisCarrier:
    return RedisCarrier(server.url, namespace="default", task_queue=task_queue)


def snapshot(text: str, *, request: int = 1, attempt: int = 1) -> PartialOutput:
    parts = [PartialPart(kind="respond", text=text)]
    return PartialOutput(message_id="a", turn=1, step=1, request=request, attempt=attempt, parts=parts)


async def test_agt_5_a_kill_of_redis_during_an_answer_does_not_affect_the_answer(
    temporal: Client, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "turnkeeper.stores.partials")
    first, second, third = (Gate(is_open=False) for _ in range(3))
    answer = [Delta("respond", "one"), first, Delta("respond", " two"), second, Delta("respond", " three"), third]
    async with environment(temporal, redis_url=redis_server.url) as env:
        env.vendor.script = [[*answer, says("one two three")], [*answer[:2], says("and on")]]
        session = await env.start()
        async with env.partials.following(session.handle.id) as live:
            await session.prompt("hi")
            await seen(live, lambda partial: partial.parts[0].text == "one")
            redis_server.kill()
            first.open()
            await second.until_arrived(1)
            redis_server.start()
            await seen(live, lambda partial: partial.parts[0].text == "one two")
            second.open()
            await seen(live, lambda partial: partial.parts[0].text == "one two three")
            redis_server.kill()
            third.open()
            (turn,) = await session.idle(turns=1)
            assert turn.agent_message == "one two three"
            redis_server.start()
            first.close()
            await session.prompt("again")
            await seen(live, lambda partial: partial.turn == 2)
        first.open()
        await session.idle(turns=2)
    messages = [record.getMessage() for record in caplog.records if "partial output" in record.getMessage()]
    assert 2 <= len(messages) <= 8, "each outage is told once by who sends and who follows, and so is its end"
    assert redis_server.url.split("@")[0][9:] not in str(messages)


async def test_agt_5_a_late_snapshot_of_an_older_attempt_does_not_replace_a_newer_one(
    redis_server: RedisServer,
) -> None:
    async with carrier_at(redis_server) as given_up, carrier_at(redis_server) as worker:
        worker.publish("s", snapshot("new", attempt=2))
        async with worker.following("s") as live:
            await seen(live, lambda partial: partial.attempt == 2)
        given_up.publish("s", snapshot("old and longer", attempt=1))
        given_up.end("other", snapshot("", attempt=1))
        given_up.publish("done", snapshot("sent after it"))
        async with given_up.following("done") as live:
            await seen(live, lambda partial: partial.attempt == 1)
        async with carrier_at(redis_server) as gateway, gateway.following("s") as live:
            assert (await seen(live, lambda partial: True)).parts[0].text == "new"
        given_up.end("s", snapshot("old and longer", attempt=1))
        async with carrier_at(redis_server) as gateway, gateway.following("s") as live:
            assert (await seen(live, lambda partial: True)).parts[0].text == "new"


async def test_agt_5_two_installations_can_share_a_server(redis_server: RedisServer) -> None:
    async with (
        carrier_at(redis_server, task_queue="a") as one,
        carrier_at(redis_server, task_queue="b") as other,
        one.following("s") as ours,
        other.following("s") as theirs,
    ):
        one.publish("s", snapshot("ours"))
        other.publish("s", snapshot("theirs"))
        assert (await seen(ours, lambda partial: True)).parts[0].text == "ours"
        assert (await seen(theirs, lambda partial: True)).parts[0].text == "theirs"


async def test_agt_5_a_session_that_reuses_the_id_of_a_deleted_one_is_shown(redis_server: RedisServer) -> None:
    async with carrier_at(redis_server) as killed, killed.following("s") as live:
        killed.publish("s", snapshot("of many turns", request=9))
        await seen(live, lambda partial: True)
    async with carrier_at(redis_server) as worker, carrier_at(redis_server) as gateway:
        await gateway.forget("s")
        async with gateway.following("s") as live:
            worker.publish("s", snapshot("of the first", request=1))
            assert (await seen(live, lambda partial: True)).parts[0].text == "of the first"


async def test_agt_5_a_session_is_forgotten_even_if_redis_is_down(redis_server: RedisServer) -> None:
    async with carrier_at(redis_server) as gateway:
        redis_server.kill()
        await gateway.forget("s")


async def test_agt_5_the_output_of_a_dead_worker_expires(redis_server: RedisServer) -> None:
    async with carrier_at(redis_server) as worker, worker.following("s") as live:
        worker.publish("s", snapshot("left"))
        await seen(live, lambda partial: True)
        (key,) = await worker._redis.keys("turnkeeper:*")
        assert 0 < await worker._redis.ttl(key) <= 600


async def test_agt_5_output_that_cannot_be_sent_is_skipped_and_the_rest_is_sent(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with carrier_at(redis_server) as worker, worker.following("s") as live:
        send, has_failed = worker._send, asyncio.Event()

        async def failing(batch: dict[str, PartialOutput | PartialTag]) -> None:
            if not has_failed.is_set():
                has_failed.set()
                raise KeyError("what the model wrote")
            await send(batch)

        monkeypatch.setattr(worker, "_send", failing)
        worker.publish("s", snapshot("Hel"))
        await asyncio.wait_for(has_failed.wait(), BOUND)
        worker.publish("s", snapshot("Hello"))
        await seen(live, lambda partial: partial == snapshot("Hello"))
    assert "KeyError" in caplog.text
    assert "what the model wrote" not in caplog.text


async def test_agt_5_a_follower_that_leaves_closes_its_connection(redis_server: RedisServer) -> None:
    async with carrier_at(redis_server) as gateway:
        worker = carrier_at(redis_server)
        async with gateway.following("s") as live:
            worker.publish("s", snapshot("x"))
            await seen(live, lambda partial: True)
            assert await worker._redis.pubsub_numsub(_key(worker)) == [(_key(worker).encode(), 1)]

        async def is_left() -> bool:
            return await worker._redis.pubsub_numsub(_key(worker)) == [(_key(worker).encode(), 0)]

        await until(is_left)
        await worker.__aexit__()


def _key(carrier: RedisCarrier) -> str:
    return carrier._prefix + "s"


def test_ops_4_without_the_package_the_setting_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "redis.asyncio", None)
    monkeypatch.delitem(__import__("sys").modules, "turnkeeper.stores.partials.over_redis", raising=False)
    with pytest.raises(SettingsError) as refused:
        carrier_factory(Settings(redis_url="redis://127.0.0.1"))
    assert str(refused.value) == "redis_url: Redis needs the package redis: install turnkeeper[redis]."
