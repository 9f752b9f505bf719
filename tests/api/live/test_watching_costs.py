"""The cost of watching and polling: API-3."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.client import Client
from temporalio.service import WorkflowService

from tests.api.conftest import SessionRequests, served
from tests.api.live.test_events import started
from tests.api.live.watching import Watcher, idle_after
from tests.harness import BOUND, Environment, asks, environment, patient, says
from tests.waiting import until
from turnkeeper.api.temporal import watch
from turnkeeper.api.temporal.session_reader import REJECTED_UPDATE
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.partials.factory import InProcessCarrier
from turnkeeper.stores.waiting import VersionCounter
from turnkeeper.workflows import activity_options


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=BOUND, limits=httpx.Limits(max_connections=500)) as client:
        yield client


@pytest.fixture(autouse=True)
def _no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions are not idle for long enough to copy their turns to the archive, which would be a change too."""
    monkeypatch.setattr(activity_options, "IDLE_PAUSE", timedelta(days=1))


async def polled(http: httpx.AsyncClient, session: str, **cursor: object) -> dict:
    return (await http.get(f"/workflow/{session}/conversation", params=cursor)).json()["conversation_update"]


async def workflow_tasks(client: Client, session: str) -> int:
    history = await client.get_workflow_handle(session).fetch_history()
    return sum(event.HasField("workflow_task_scheduled_event_attributes") for event in history.events)


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> VersionCounter:
    """How often a session's history was read to follow it."""
    polls, poll = VersionCounter(), WorkflowService.get_workflow_execution_history

    async def counted(service: WorkflowService, request: GetWorkflowExecutionHistoryRequest, **more: Any) -> Any:
        if request.wait_new_event:
            polls.advance()
        return await poll(service, request, **more)

    monkeypatch.setattr(WorkflowService, "get_workflow_execution_history", counted)
    return polls


async def test_api_3_idle_watchers_cost_no_query_and_no_workflow_task(
    http: httpx.AsyncClient,
    session_requests: SessionRequests,
    env: Environment,
    timeouts: Timeouts,
    polls: VersionCounter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Long polls end and begin anew, as they do every half a minute.
    monkeypatch.setattr(timeouts, "watch_poll", 0.2)
    session = await started(http, "hi")
    watchers = [Watcher(http, session) for _ in range(20)]
    await asyncio.gather(*(watcher.until(idle_after(1)) for watcher in watchers))
    streams = [watcher.stream() for watcher in watchers]
    for stream in streams:
        await anext(await stream.__aenter__())
    tasks = await workflow_tasks(env.client, session)
    session_requests.clear()
    async with asyncio.timeout(BOUND):
        await polls.wait_beyond(polls.version + 5)
    assert (session_requests.queries, session_requests.updates) == ([], [])
    assert await workflow_tasks(env.client, session) == tasks
    for stream in streams:
        await stream.__aexit__(None, None, None)


async def test_api_3_repeated_polls_query_a_session_only_after_a_change(
    http: httpx.AsyncClient, session_requests: SessionRequests, env: Environment
) -> None:
    session = await started(http, "hi")
    watcher = await Watcher(http, session).until(idle_after(1))
    cursor = {"last_seen_message_id": watcher.last.last_seen_message_id, "since_revision": watcher.last.revision}
    for _ in range(3):
        await polled(http, session, **cursor)
    session_requests.clear()
    answers = await asyncio.gather(*(polled(http, session, **cursor) for _ in range(60)))
    assert {answer["revision"] for answer in answers} == {watcher.last.revision}
    assert session_requests.queries == []
    await env.adopt(env.client.get_workflow_handle(session)).prompt(id="p2", text="more")

    async def is_idle_again() -> bool:
        return (await polled(http, session, **cursor))["status"] == "idle" and len(session_requests.queries) > 0

    await until(is_idle_again)
    assert [turn["id"] for turn in (await polled(http, session, **cursor))["new_messages"]] == ["p2"]


async def test_api_3_the_history_of_an_ended_session_is_not_read_again_and_again(
    http: httpx.AsyncClient, polls: VersionCounter, env: Environment
) -> None:
    session = await started(http, "hi")
    await Watcher(http, session).until(idle_after(1))
    await http.post(f"/workflow/{session}/end")
    await env.client.get_workflow_handle(session).result()

    async def is_forgotten() -> bool:  # the watch of the open session has seen its end
        await polled(http, session, since_revision=0)
        version = polls.version
        await polled(http, session, since_revision=0)
        return polls.version == version

    await until(is_forgotten)
    version = polls.version
    for _ in range(3):
        ended = await polled(http, session)
        cursor = {"last_seen_message_id": ended["last_seen_message_id"], "since_revision": ended["revision"]}
        assert (await polled(http, session, **cursor, wait=0.1))["status"] == "ended"
        await Watcher(http, session).until(lambda watcher: watcher.last.status == "ended")
    assert polls.version == version


async def test_api_3_a_session_that_takes_the_id_of_an_ended_one_is_followed(
    http: httpx.AsyncClient, polls: VersionCounter, env: Environment
) -> None:
    session = await started(http, "hi")
    await Watcher(http, session).until(idle_after(1))
    await http.post(f"/workflow/{session}/end")
    await env.client.get_workflow_handle(session).result()
    ended = await polled(http, session, since_revision=0)
    cursor = {"last_seen_message_id": ended["last_seen_message_id"], "since_revision": ended["revision"]}
    assert (await polled(http, session, **cursor))["status"] == "ended"
    await http.delete(f"/workflow/{session}")

    async def is_free() -> bool:
        return (await http.post("/workflow", json={"id": session})).status_code == 201

    await until(is_free)
    async with asyncio.TaskGroup() as group:
        watcher = group.create_task(Watcher(http, session).until(idle_after(1)))
        await env.adopt(env.client.get_workflow_handle(session)).prompt(id="again", text="more")
    assert [turn.id for turn in watcher.result().copy.turns] == ["again"]


async def test_api_3_a_poll_at_the_cursor_of_an_open_stream_needs_no_query(
    http: httpx.AsyncClient, session_requests: SessionRequests
) -> None:
    watcher = Watcher(http, await started(http, "hi"))
    async with watcher.stream() as events:
        await watcher.until_in(events, idle_after(1))
        assert watcher.last is not None
        session_requests.clear()
        cursor = {"last_seen_message_id": watcher.last.last_seen_message_id, "since_revision": watcher.last.revision}
        answer = await polled(http, watcher.session, **cursor)
    assert session_requests.queries == []
    assert (answer["revision"], answer["new_messages"], answer["reset"]) == (watcher.last.revision, [], False)


async def test_api_3_a_running_turn_is_read_at_its_start_and_end_and_rarely_in_between(
    http: httpx.AsyncClient, session_requests: SessionRequests, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "READ_PAUSE_SECONDS", 10 * BOUND)
    watcher = Watcher(http, await started(http, "hi"))
    async with watcher.stream() as events:
        await watcher.until_in(events, idle_after(1))
        session_requests.clear()
        env.vendor.script = [*env.vendor.script, *[asks(("look", {"n": n})) for n in range(15)], says("seen")]
        await http.post(f"/workflow/{watcher.session}/prompt", json={"message": "look"})
        await watcher.until_in(events, idle_after(2))
    assert watcher.answers[-1] == "seen"
    assert len(session_requests.queries) <= 4, "before the turn, at its beginning and at its end, and once its queue"


async def test_api_3_a_client_reads_its_own_writes_while_others_poll(http: httpx.AsyncClient, env: Environment) -> None:
    env.vendor.gate.close()
    session = await started(http, "slow")
    await env.vendor.gate.until_arrived(1)
    async with Watcher(http, session).stream() as events:
        await anext(events)
        for number in range(10):
            await http.post(f"/workflow/{session}/prompt", json={"message": "more", "id": f"p{number}"})
            assert (await polled(http, session))["queue_length"] == number + 1
        for number in range(10):
            await http.delete(f"/workflow/{session}/queue/p{number}")
            assert (await polled(http, session))["queue_length"] == 9 - number


async def test_api_3_a_watched_session_is_woken_once_after_a_worker_restart(
    temporal: Client, session_requests: SessionRequests, tmp_path: Path
) -> None:
    queue, partials = f"q-{tmp_path.name}", InProcessCarrier()
    client = Client(**{**temporal.config(), "interceptors": [session_requests]})
    settings = Settings(task_queue=queue, state_dir=tmp_path)
    async with (
        served(client, settings, partials=partials, timeouts=patient()) as url,
        httpx.AsyncClient(base_url=url, timeout=BOUND) as http,
    ):
        async with environment(temporal, task_queue=queue, partials=partials):
            session = await started(http, "hi")
            await Watcher(http, session).until(idle_after(1))
        before = await temporal.get_workflow_handle(session).fetch_history()
        async with environment(temporal, task_queue=queue, partials=partials):
            watchers = [Watcher(http, session), Watcher(http, session)]
            for number, watcher in enumerate(watchers):
                watcher.last_event_id = f"{number}."  # a cursor of its own, and so a query
            async with watchers[0].stream() as one, watchers[1].stream() as other:
                await asyncio.gather(anext(one), anext(other))
                await until(lambda: session_requests.updates != [])
                for number in range(2, 7):
                    await polled(http, session, since_revision=number)
            assert session_requests.updates == [REJECTED_UPDATE]
    after = await temporal.get_workflow_handle(session).fetch_history()
    assert len(after.events) == len(before.events)
