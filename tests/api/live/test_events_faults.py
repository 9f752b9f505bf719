"""Watching while something is killed, cut off, slow or many: API-1, API-3."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from temporalio.client import Client

from tests.api.conftest import SessionRequests, served
from tests.api.live.test_events import started
from tests.api.live.watching import Watcher, idle_after
from tests.api.relay import Relay
from tests.api.waits import until_not
from tests.faults.scripted import next_worker, plan_of, start
from tests.faults.test_worker_kills import doomed_worker
from tests.harness import (
    BOUND,
    FAILING_TASK_SECONDS,
    Environment,
    Gate,
    environment,
    fail_workflow_tasks,
    product,
    says,
)
from tests.ops.local.test_cli import Command
from tests.restart_ports import restart_port
from tests.waiting import until
from turnkeeper.activities.providers.protocol import Delta
from turnkeeper.api.live.feed import _Watcher
from turnkeeper.api.problems import problem
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.messages import UpdatesRequest
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.blobs import Blobs
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.partials.factory import InProcessCarrier
from turnkeeper.stores.temporal.payload_converter import DATA_CONVERTER


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(url) as client:
        yield client


def client_of(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=BOUND, limits=httpx.Limits(max_connections=500))


# ---- workers


async def test_api_1_a_stream_stays_open_while_a_worker_is_killed_and_replaced(
    temporal: Client, tmp_path: Path
) -> None:
    words = " ".join(f"word{number}" for number in range(20))
    driven, settings = await start(temporal, tmp_path, [{"text": words, "chunk_delay": 0.1}])
    await driven.prompt(id="p1", text="count")
    async with served(temporal, Settings(**settings)) as url, client_of(url) as http:
        watcher = Watcher(http, driven.handle.id)
        plan = plan_of(temporal, settings, pauses_at="model call 1 has written 10", pause="forever")
        async with doomed_worker(plan) as doomed:
            await driven.state()  # asks until the worker has started
            async with watcher.stream() as events:
                await watcher.until_in(events, lambda so_far: "word9" in "".join(so_far.partial_texts))
                doomed.process.kill()
                assert await doomed.exit_code() == -signal.SIGKILL
                async with next_worker(temporal, settings):
                    await watcher.until_in(events, idle_after(1))
    assert watcher.answers == [words]
    assert [growth.attempt for growth in watcher.partial if growth.fresh] == [1, 2]


async def test_api_1_without_a_worker_new_streams_get_a_504_and_open_ones_stay_open(
    temporal: Client, tmp_path: Path
) -> None:
    queue, partials = f"q-{uuid4()}", InProcessCarrier()
    settings = Settings(task_queue=queue, state_dir=tmp_path)
    async with served(temporal, settings, partials=partials, timeouts=product()) as url, client_of(url) as http:
        async with environment(temporal, task_queue=queue, partials=partials):
            watcher = Watcher(http, await started(http, "hi"))
            stream = watcher.stream()
            events = await stream.__aenter__()
            await watcher.until_in(events, idle_after(1))
        # Its worker has stopped; a prompt is still accepted, and wakes the watch.
        await http.post(f"/workflow/{watcher.session}/prompt", json={"message": "more", "id": "p2"})
        events_url = f"/workflow/{watcher.session}/events"
        assert (await http.get(events_url, headers={"Last-Event-ID": watcher.last_event_id})).status_code == 504
        await watcher.until_in(events, lambda so_far: so_far.trouble == "No worker")
        async with environment(temporal, task_queue=queue, partials=partials):
            await watcher.until_in(events, idle_after(2))
            await stream.__aexit__(None, None, None)
    assert watcher.answers == ["echo: hi", "echo: more"]


def test_api_2_a_busy_worker_is_not_reported_as_missing() -> None:
    silence, watcher = problem("no-worker", session_id="s").problem, _Watcher(WorkflowId("s"), UpdatesRequest())
    for _ in range(5):  # each time it did not answer, it was doing something else
        assert watcher.next_problem(silence, has_sign_of_life=True) is None
    assert watcher.next_problem(silence, has_sign_of_life=False) is None
    assert watcher.next_problem(silence, has_sign_of_life=True) is None
    assert watcher.next_problem(silence, has_sign_of_life=False) is None
    assert watcher.next_problem(silence, has_sign_of_life=False) is not None
    assert watcher.next_problem(silence, has_sign_of_life=False) is None, "once"


async def test_api_2_a_stream_reports_a_stuck_session_and_continues_after_the_fix(
    http: httpx.AsyncClient, env: Environment, product_bounds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await env.start(task_seconds=FAILING_TASK_SECONDS)
    watcher = Watcher(http, session.handle.id)
    async with watcher.stream() as events:
        await anext(events)
        with monkeypatch.context() as patched:
            fail_workflow_tasks(patched)
            await http.post(f"/workflow/{watcher.session}/prompt", json={"message": "hi", "id": "p1"})
            await watcher.until_in(events, lambda so_far: so_far.trouble == "Session stuck")
        await watcher.until_in(events, idle_after(1))
    problems = [event for event in watcher.events if event.event == "problem"]
    assert len({event.data["title"] for event in problems}) == len(problems)
    assert all(event.id is None for event in problems)


# ---- Temporal


async def test_api_1_a_stream_survives_an_outage_of_temporal(
    temporal: Client, env: Environment, tmp_path: Path
) -> None:
    async with Relay(temporal.service_client.config.target_host) as relay:
        client = await Client.connect(relay.address, data_converter=DATA_CONVERTER)
        settings = Settings(task_queue=env.task_queue, state_dir=tmp_path)
        async with served(client, settings, partials=env.partials, timeouts=product()) as url, client_of(url) as http:
            watcher = Watcher(http, await started(http, "hi"))
            async with watcher.stream() as events:
                await watcher.until_in(events, idle_after(1))
                await relay.cut()
                down = await http.get(f"/workflow/{watcher.session}/events")
                assert (down.status_code, down.json()["title"]) == (503, "Temporal unreachable")
                polled = await http.get(f"/workflow/{watcher.session}/conversation")
                assert polled.status_code == 503
                await env.adopt(temporal.get_workflow_handle(watcher.session)).prompt(id="p2", text="meanwhile")
                await relay.heal()
                await watcher.until_in(events, idle_after(2))
    assert watcher.answers == ["echo: hi", "echo: meanwhile"]


async def test_api_2_a_connection_that_hangs_is_reported_to_streams_and_polls(
    temporal: Client, env: Environment, tmp_path: Path
) -> None:
    """R7: a stream was silent for a minute, and polls were answered from the cache for 16 s."""
    async with Relay(temporal.service_client.config.target_host) as relay:
        client = await Client.connect(relay.address, data_converter=DATA_CONVERTER)
        settings = Settings(task_queue=env.task_queue, state_dir=tmp_path)
        async with served(client, settings, partials=env.partials, timeouts=product()) as url, client_of(url) as http:
            watcher = Watcher(http, await started(http, "hi"))
            path = f"/workflow/{watcher.session}/conversation"
            async with watcher.stream() as events:
                await watcher.until_in(events, idle_after(1))
                news = f"{path}?wait=60&since_revision={watcher.last.revision}"
                waiting = asyncio.create_task(http.get(news))
                assert (await http.get(path)).status_code == 200
                relay.freeze()
                await watcher.until_in(events, lambda so_far: so_far.trouble == "Temporal unreachable")
                for answer in (await waiting, await http.get(path), await http.get(news)):
                    assert (answer.status_code, answer.json()["title"]) == (503, "Temporal unreachable")
                relay.thaw()
                await watcher.until_in(events, idle_after(1))
                assert (await until_not(503, partial(http.get, path))).status_code == 200
    assert [event.event for event in watcher.events].count("problem") == 1


# ---- the store of large texts

LARGE = "w" * 20_000


class Switch:
    """Turns the store of large texts off and on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        get, self.is_off = Blobs.get, False

        async def get_if_on(blobs: Blobs, *args: Any) -> dict[str, str]:
            if self.is_off:
                raise StoreUnavailableError("The store did not answer.")
            return await get(blobs, *args)

        monkeypatch.setattr(Blobs, "get", get_if_on)


async def test_api_1_an_answer_sent_as_an_excerpt_is_sent_in_full_once_it_is_readable(
    http: httpx.AsyncClient, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.vendor.script = [says(LARGE), says("short")]
    store = Switch(monkeypatch)
    store.is_off = True
    session = await started(http)
    staying, away = Watcher(http, session), Watcher(http, session)
    async with staying.stream() as events:
        await http.post(f"/workflow/{session}/prompt", json={"message": "write", "id": "p1"})
        await staying.until_in(events, idle_after(1))
        await away.until(idle_after(1))
        await http.post(f"/workflow/{session}/prompt", json={"message": "more", "id": "p2"})
        await staying.until_in(events, idle_after(2))
        assert "characters left out" in staying.answers[0]
        store.is_off = False
        await staying.until_in(events, lambda so_far: so_far.answers == [LARGE, "short"])
    assert staying.events[-1].data["new_messages"] == []
    async with away.stream() as events:
        assert [turn["agent_message"] for turn in (await anext(events)).data["updated_messages"]] == [LARGE]


async def test_api_1_the_stream_of_an_ended_session_ends_with_its_full_answers(
    http: httpx.AsyncClient, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.vendor.script = [says(LARGE)]
    store = Switch(monkeypatch)
    store.is_off = True
    watcher = Watcher(http, await started(http, "write"))
    async with watcher.stream() as events:
        await watcher.until_in(events, idle_after(1))
        await http.post(f"/workflow/{watcher.session}/end")
        await watcher.until_in(events, lambda so_far: so_far.last.status == "ended")
        store.is_off = False
        async with asyncio.timeout(BOUND):
            async for _ in events:
                pass
    assert watcher.answers == [LARGE]


# ---- the gateway itself


@asynccontextmanager
async def gateway_process(temporal: Client, task_queue: str, folder: Path, port: int) -> AsyncIterator[Command]:
    """Run `turnkeeper api` as a program."""
    command = await Command.start(
        "api",
        TEMPORAL_ADDRESS=temporal.service_client.config.target_host,
        TURNKEEPER_TASK_QUEUE=task_queue,
        TURNKEEPER_STATE_DIR=str(folder),
        TURNKEEPER_API_PORT=str(port),
    )
    try:
        await command.until_said("Uvicorn running")
        yield command
    finally:
        if command.is_running:
            command.signal(signal.SIGKILL)
            await command.ended()


async def test_api_1_clients_resume_without_gaps_after_a_gateway_is_killed_in_mid_answer(
    temporal: Client, tmp_path: Path
) -> None:
    port, rest = restart_port(), Gate(is_open=False)
    async with environment(temporal, state_dir=tmp_path) as env, client_of(f"http://127.0.0.1:{port}") as http:
        env.vendor.script = [says("first"), [Delta("respond", "Hel"), Delta("respond", "lo"), rest, says("Hello")]]
        async with gateway_process(temporal, env.task_queue, tmp_path, port) as gateway:
            watcher = Watcher(http, await started(http, "one"))
            await watcher.until(idle_after(1))
            async with watcher.stream() as events:
                await http.post(f"/workflow/{watcher.session}/prompt", json={"message": "two", "id": "p2"})
                await watcher.until_in(events, lambda so_far: so_far.partial_texts == ["Hello"])
                gateway.signal(signal.SIGKILL)
                with pytest.raises(httpx.RemoteProtocolError):
                    await watcher.until_in(events, idle_after(2))
        async with gateway_process(temporal, env.task_queue, tmp_path, port), watcher.stream() as events:
            watcher.writing = {}
            await watcher.until_in(events, lambda so_far: so_far.partial_texts == ["Hello"])
            rest.open()
            await watcher.until_in(events, idle_after(2))
    assert watcher.answers == ["first", "Hello"]


async def test_api_3_a_gateway_ends_a_hundred_streams_at_once_at_sigterm(temporal: Client, tmp_path: Path) -> None:
    port = restart_port()
    async with (
        environment(temporal) as env,
        gateway_process(temporal, env.task_queue, tmp_path, port) as gateway,
        client_of(f"http://127.0.0.1:{port}") as http,
    ):
        session = await started(http, "hi")
        await Watcher(http, session).until(idle_after(1))
        watchers = [Watcher(http, session) for _ in range(100)]
        ends = [asyncio.create_task(watcher.to_the_end()) for watcher in watchers]
        await until(lambda: all(watcher.events for watcher in watchers))
        gateway.signal(signal.SIGTERM)
        # No stream was cut off: a stream that still runs when the gateway's patience is over ends with an error here.
        await asyncio.gather(*ends)
        code, _ = await gateway.ended()
    assert code == 0


# ---- the slow and the many


SEND_BUFFER_BYTES = 4_200_000
"""More than the kernel buffers for a client that does not read: then the gateway waits for the client."""


@contextmanager
def deaf_client(url: str, session: str) -> Iterator[None]:
    """Request the session's events, and read none."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        deaf.sendall(f"GET /workflow/{session}/events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        yield


async def test_api_3_a_client_that_stops_reading_delays_no_others_and_is_disconnected(
    http: httpx.AsyncClient,
    url: str,
    env: Environment,
    timeouts: Timeouts,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(timeouts, "stalled", 2 * BOUND)
    caplog.set_level("INFO", logger="turnkeeper.api.http.server")
    env.vendor.answer = lambda _: says(os.urandom(200_000).hex())
    session = await started(http)
    turns = SEND_BUFFER_BYTES // 400_000 + 3  # the last ones while the client is waited for
    quick = Watcher(http, session)
    async with quick.stream() as events:
        with deaf_client(url, session):
            for turn in range(1, turns + 1):
                await http.post(f"/workflow/{session}/prompt", json={"message": "more"})
                await quick.until_in(events, idle_after(turn))
        monkeypatch.setattr(timeouts, "stalled", 0.5)
        with deaf_client(url, session):
            await until(lambda: "read nothing for 0.5 s" in caplog.text)
    assert len(quick.answers) == turns
    assert all(len(answer) == 400_000 for answer in quick.answers)


async def test_api_3_a_hundred_watchers_cost_as_many_queries_as_one(
    http: httpx.AsyncClient, session_requests: SessionRequests, env: Environment
) -> None:
    env.vendor.gate.close()
    session = await started(http, "hi")
    await env.vendor.gate.until_arrived(1)
    watchers = [Watcher(http, session) for _ in range(100)]
    ends = [asyncio.create_task(watcher.until(idle_after(1))) for watcher in watchers]
    await until(lambda: all(watcher.events for watcher in watchers))
    session_requests.clear()
    env.vendor.gate.open()
    await asyncio.gather(*ends)
    assert {tuple(watcher.answers) for watcher in watchers} == {("echo: hi",)}
    # As many as there were workflow tasks, and not a hundred times that.
    assert len(session_requests.queries) <= 10


# ---- partial output over sockets, whatever becomes of gateways and folders


async def test_agt_5_two_gateways_show_the_same_answer_and_so_does_one_that_restarts(temporal: Client) -> None:
    more, rest = Gate(is_open=False), Gate(is_open=False)
    async with environment(temporal) as env:
        env.vendor.script = [[Delta("respond", "Hel"), more, Delta("respond", "lo"), rest, says("Hello!")]]
        settings = Settings(task_queue=env.task_queue, state_dir=env.settings.state_dir)
        async with served(temporal, settings) as lasting_url, client_of(lasting_url) as http:
            session = await started(http, "hi")
            lasting = Watcher(http, session)
            async with lasting.stream() as events:
                async with served(temporal, settings) as url, client_of(url) as other_http:
                    ending = await Watcher(other_http, session).until(lambda so_far: so_far.partial_texts == ["Hel"])
                await lasting.until_in(events, lambda so_far: so_far.partial_texts == ["Hel"])
                more.open()
                await lasting.until_in(events, lambda so_far: so_far.partial_texts == ["Hello"])
                async with served(temporal, settings) as url, client_of(url) as other_http:
                    again = Watcher(other_http, session)
                    again.last_event_id, again.copy, again.last = ending.last_event_id, ending.copy, ending.last
                    async with again.stream() as events_again:
                        await again.until_in(events_again, lambda so_far: so_far.partial_texts == ["Hello"])
                        assert again.partial[0].fresh
                        rest.open()
                        await again.until_in(events_again, idle_after(1))
                await lasting.until_in(events, idle_after(1))
            for watcher in (lasting, again):
                assert (watcher.answers, watcher.partial_texts) == (["Hello!"], [])


async def test_agt_5_without_a_shared_folder_only_the_whole_answer_is_shown(temporal: Client, tmp_path: Path) -> None:
    gate = Gate(is_open=False)
    async with environment(temporal) as env:
        env.vendor.script = [[Delta("respond", "Hel"), gate, says("Hello")]]
        settings = Settings(task_queue=env.task_queue, state_dir=tmp_path)
        async with served(temporal, settings) as url, client_of(url) as http:
            session = await started(http, "hi")
            await gate.until_arrived(1)
            async with http.stream("GET", f"/workflow/{session}/events") as answer:
                comment = await anext(answer.aiter_lines())
            assert comment.startswith(": no partial output: no worker has a socket in the gateway's state_dir;")
            assert str(tmp_path) not in comment
            watcher = Watcher(http, session)
            async with watcher.stream() as events:
                await anext(events)
                gate.open()
                await watcher.until_in(events, idle_after(1))
            assert (watcher.answers, watcher.partial) == (["Hello"], [])
