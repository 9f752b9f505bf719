"""Clients of the gateway see only states that Temporal has committed (SES-12); struggling sessions are spared (API-3).

A worker can answer a query from a workflow task that it never completes. Here the test itself is a worker: it takes a
session's workflow task from the queue and does nothing, while the query goes to a real worker together with the
history, in which that task has begun.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollWorkflowTaskQueueRequest,
    PollWorkflowTaskQueueResponse,
    QueryWorkflowRequest,
)
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.service import RPCError, RPCStatusCode

from tests.api.conftest import SessionRequests, served
from tests.api.live.test_events import started
from tests.api.live.watching import Watcher, full_state, idle_after
from tests.conftest import QUICK, server_with
from tests.harness import (
    BOUND,
    FAILING_TASK_SECONDS,
    DrivenSession,
    Environment,
    environment,
    fail_workflow_tasks,
    patient,
    product,
)
from tests.waiting import until
from turnkeeper.api.temporal import commits
from turnkeeper.api.temporal.commits import CommitChecker, WorkflowTasks, newest_tasks
from turnkeeper.api.temporal.temporal_calls import STUCK_ATTEMPTS
from turnkeeper.api.temporal.watch import WatchRegistry
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ConversationState
from turnkeeper.models.wire import AsOf, WorkflowTaskStart
from turnkeeper.stores.partials.factory import InProcessCarrier

OBSERVED_SECONDS = 6.0


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=BOUND) as client:
        yield client


async def polled_workflow_task(client: Client, task_queue: str) -> PollWorkflowTaskQueueResponse:
    """Take the next workflow task, or query, that no worker has taken; it is never answered."""
    return await client.workflow_service.poll_workflow_task_queue(
        PollWorkflowTaskQueueRequest(
            namespace=client.namespace, task_queue=TaskQueue(name=task_queue), identity="a worker that does nothing"
        ),
        timeout=timedelta(seconds=BOUND),
    )


@asynccontextmanager
async def gateway_alone(
    temporal: Client,
    folder: Path,
    session_requests: SessionRequests,
    partials: InProcessCarrier,
    *,
    timeouts: Timeouts | None = None,
) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """A gateway whose workers come and go as the test likes; its URL's client, and the task queue."""
    queue = f"q-{uuid4()}"
    client = Client(**{**temporal.config(), "interceptors": [session_requests]})
    settings = Settings(task_queue=queue, state_dir=folder, task_timeout=2)
    async with (
        served(client, settings, partials=partials, timeouts=timeouts) as url,
        httpx.AsyncClient(base_url=url, timeout=BOUND) as http,
    ):
        yield http, queue


# ---- committed states

RACES = 40
"""Sessions tried, since Temporal hands out a waiting query and a workflow task in either order, from two partitions."""

GIVEN_UP_SECONDS = 6.0
"""Longer than a lost task's timeout. Where Temporal gave a query up together with the task, it is waited for this long.
"""


async def test_ses_12_the_state_of_a_workflow_task_that_never_completed_is_not_returned(
    temporal_with_partitions: Client,
    tmp_path: Path,
    session_requests: SessionRequests,
) -> None:
    temporal, partials, timeouts = temporal_with_partitions, InProcessCarrier(), patient(GIVEN_UP_SECONDS)
    async with gateway_alone(temporal, tmp_path, session_requests, partials, timeouts=timeouts) as (http, queue):
        for _ in range(RACES):
            async with environment(temporal, task_queue=queue, partials=partials) as env:
                session = await started(http, "hi")
                await env.adopt(temporal.get_workflow_handle(session)).idle(turns=1)
            session_requests.clear()
            reading = asyncio.create_task(http.get(f"/workflow/{session}/conversation"))
            if await task_is_lost_after_the_query(temporal, session, queue, session_requests):
                async with environment(temporal, task_queue=queue, partials=partials) as env:
                    env.vendor.gate.close()
                    answer = await reading
                    was_asked_again = len(session_requests.queries) > 1
                    env.vendor.gate.open()
                    await env.adopt(temporal.get_workflow_handle(session)).idle(turns=2)
                    began = {turn["id"]: turn["timestamp"] for turn in await full_state(http, session)}
                if answer.status_code == 504:
                    continue  # Temporal gave the query up together with the task
                messages = answer.json()["conversation_update"]["new_messages"]
                assert all(turn["timestamp"] == began[turn["id"]] for turn in messages)
                if was_asked_again:
                    return
            reading.cancel()
    raise AssertionError("no query was answered from a task that was lost")


async def test_ses_12_events_that_no_workflow_task_has_processed_are_not_returned(
    temporal: Client, tmp_path: Path, session_requests: SessionRequests
) -> None:
    """A worker that replays a session for a query applies them, as if the last task had processed them."""
    partials = InProcessCarrier()
    async with gateway_alone(temporal, tmp_path, session_requests, partials) as (http, queue):
        for _ in range(RACES):
            async with environment(temporal, task_queue=queue, partials=partials) as env:
                session = await started(http, "hi")
                await env.adopt(temporal.get_workflow_handle(session)).idle(turns=1)
            session_requests.clear()
            reading = asyncio.create_task(http.get(f"/workflow/{session}/conversation"))
            await signal_after_the_query(temporal, session, session_requests)
            async with environment(temporal, task_queue=queue, partials=partials) as env:
                answer = await reading
                was_asked_again = len(session_requests.queries) > 1
                await env.adopt(temporal.get_workflow_handle(session)).idle(turns=2)
                began = {turn["id"]: turn["timestamp"] for turn in await full_state(http, session)}
            if answer.status_code == 504:
                continue  # Temporal gave the query up
            messages = answer.json()["conversation_update"]["new_messages"]
            assert all(turn["timestamp"] == began[turn["id"]] for turn in messages)
            if was_asked_again:
                return
    raise AssertionError("no query was answered with events that no task had taken")


async def signal_after_the_query(temporal: Client, session: str, session_requests: SessionRequests) -> None:
    """Send a prompt while the query waits for a worker."""
    async with asyncio.timeout(BOUND):
        await session_requests.anything.wait()
    handle = temporal.get_workflow_handle(session)
    for _ in range(3):  # what was sent before these has arrived
        await handle.describe()
    await handle.signal("prompt", {"id": "p2", "text": "more"})


async def task_is_lost_after_the_query(
    temporal: Client, session: str, queue: str, session_requests: SessionRequests
) -> bool:
    """Cause a workflow task while the query waits for a worker, and poll it.

    Returns:
        Whether the query still waits: not if it came first, or came with the task and is lost with it.
    """
    await signal_after_the_query(temporal, session, session_requests)
    is_first = True
    while True:
        task = await polled_workflow_task(temporal, queue)
        if task.workflow_execution.workflow_id == session:
            if not task.query.query_type:
                return is_first and not task.queries
            is_first = False


async def test_ses_12_only_the_completed_attempt_of_a_workflow_task_is_committed(temporal: Client) -> None:
    queue, watches = f"q-{uuid4()}", WatchRegistry(temporal, patient())
    handle = await temporal.start_workflow(
        "AgenticAIWorkflow",
        SessionInput(),
        id=f"s-{uuid4()}",
        task_queue=queue,
        task_timeout=timedelta(seconds=1),
    )
    # The second attempt never appears in the history.
    lost = [(await polled_workflow_task(temporal, queue)).history.events[-1].event_time for _ in range(2)]
    async with environment(temporal, task_queue=queue) as env, asyncio.timeout(BOUND):
        session = env.adopt(handle)
        async with watches.watching(handle.id) as watch:
            await watch.wait_beyond(0)
        committed = await stamp(session)
        for is_watched in (False, True):
            async with watches.watching(handle.id) if is_watched else nullcontext():
                checker = CommitChecker(temporal, watches.live_tasks)
                for started in lost:
                    as_of = committed.model_copy(
                        update={"task": WorkflowTaskStart(started_at=started.ToDatetime(tzinfo=UTC))}
                    )
                    assert not await checker.is_committed(handle.id, as_of)
                assert await checker.is_committed(handle.id, committed)
    await watches.close()


# ---- which task an answer names


async def stamp(session: DrivenSession) -> AsOf:
    as_of = (await session.handle.query("get_conversation_state", result_type=ConversationState)).as_of
    assert as_of is not None
    return as_of


async def completed_tasks(session: DrivenSession) -> dict[str, list[datetime]]:
    """Return when the completed workflow tasks of each run began."""
    tasks: dict[str, list[datetime]] = {}
    for history in await session.histories():
        events = {event.event_id: event for event in history.events}
        starts = [
            events[event.workflow_task_completed_event_attributes.started_event_id].event_time.ToDatetime(tzinfo=UTC)
            for event in history.events
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
        ]
        tasks[history.run_id or ""] = starts
    return tasks


async def test_ses_12_a_query_result_names_the_last_workflow_task_with_a_change(temporal: Client) -> None:
    async with environment(temporal, limits={"max_history_events": 50}) as env:
        session = await env.start(SessionInput())
        seen = [await stamp(session)]
        for number in range(1, 9):
            await session.prompt(id=f"p{number}", text="hi")
            await session.idle(turns=number)
            before = await stamp(session)
            # The workflow tasks of rejected updates leave no trace, and change nothing.
            with pytest.raises(WorkflowUpdateFailedError):
                await session.update("cancel_turn", {})
            assert await stamp(session) == before
            seen.append(before)
    async with environment(temporal, task_queue=env.task_queue):
        assert (await stamp(session)).task == seen[-1].task  # replayed by a worker that never had the session
        tasks = await completed_tasks(session)
    assert len({as_of.run_id for as_of in seen}) > 1
    assert all(task.started_at in tasks[as_of.run_id] for as_of in seen for task in as_of.tasks)
    assert seen[-1].task.started_at == tasks[seen[-1].run_id][-1]


async def test_ses_12_no_response_contains_the_workflow_task_of_a_query_result(
    http: httpx.AsyncClient, env: Environment, api_document: Any
) -> None:
    session = await started(http, "hi")
    await Watcher(http, session).until(idle_after(1))
    paths = ["", "/conversation", "/conversation/full", "/queue", "/approvals", "/context", "/context?format=replay"]
    for path in paths:
        answer = await http.get(f"/workflow/{session}{path}")
        assert answer.status_code == 200
        assert "as_of" not in answer.text
    assert "as_of" not in json.dumps(api_document)


async def test_api_3_the_history_of_an_idle_session_is_read_once(
    http: httpx.AsyncClient, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []

    async def recorded_tasks(client: Client, workflow_id: str, **more: Any) -> WorkflowTasks:
        reads.append(workflow_id)
        return await newest_tasks(client, workflow_id, **more)

    monkeypatch.setattr(commits, "newest_tasks", recorded_tasks)
    session = await started(http, "hi")
    await env.adopt(env.client.get_workflow_handle(session)).idle(turns=1)
    for _ in range(5):
        assert (await http.get(f"/workflow/{session}/queue")).status_code == 200
    assert reads == [session]


# ---- sessions that struggle


async def test_api_2_a_session_is_stuck_if_its_workflow_task_keeps_timing_out(
    temporal: Client, tmp_path: Path, session_requests: SessionRequests
) -> None:
    partials, timeouts = InProcessCarrier(), product()
    async with gateway_alone(temporal, tmp_path, session_requests, partials, timeouts=timeouts) as (http, queue):
        session = await started(http)
        driven = DrivenSession(temporal, temporal.get_workflow_handle(session))
        async with asyncio.timeout(2 * BOUND):
            for number in range(STUCK_ATTEMPTS):
                await polled_workflow_task(temporal, queue)
                # After a signal Temporal counts the attempts from one.
                await driven.prompt(id=f"p{number}", text="hi")
            answer = await http.get(f"/workflow/{session}")
            while answer.status_code != 200 or answer.json()["status"] != "stuck":
                answer = await http.get(f"/workflow/{session}")
        assert (await http.get(f"/workflow/{session}/conversation")).json()["title"] == "Session stuck"


async def test_api_3_a_failing_session_is_queried_rarely_and_right_after_its_next_task(
    http: httpx.AsyncClient,
    session_requests: SessionRequests,
    env: Environment,
    product_bounds: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = await env.start(task_seconds=FAILING_TASK_SECONDS)
    await session.prompt("hi")
    watcher = Watcher(http, session.handle.id)
    async with watcher.stream() as events:
        await watcher.until_in(events, idle_after(1))
        with monkeypatch.context() as patched:
            fail_workflow_tasks(patched)
            await http.post(f"/workflow/{watcher.session}/prompt", json={"message": "more", "id": "p2"})
            session_requests.clear()
            answers: list[int] = []
            with suppress(TimeoutError):  # a bounded observation
                async with asyncio.timeout(OBSERVED_SECONDS):
                    while True:
                        polls = (http.get(f"/workflow/{watcher.session}/conversation") for _ in range(5))
                        answers += [answer.status_code for answer in await asyncio.gather(*polls)]
            assert set(answers) == {504}
            # Pauses of 3 s once the gateway has seen a task fail, each after one query.
            assert len(session_requests.queries) <= 4
        await watcher.until_in(events, idle_after(2))


async def test_api_3_a_full_query_buffer_does_not_fail_a_read(
    tmp_path: Path, session_requests: SessionRequests
) -> None:
    partials = InProcessCarrier()
    async with (
        server_with({**QUICK, "history.MaxBufferedQueryCount": "1"}) as temporal,
        gateway_alone(temporal, tmp_path, session_requests, partials) as (http, queue),
    ):
        session = await started(http)
        await polled_workflow_task(temporal, queue)
        # Temporal holds one query of this session until its workflow task is done, and rejects all others.
        holding = asyncio.create_task(hold_the_buffer(temporal, session))
        await until(partial(is_buffer_full, temporal, session))
        async with asyncio.timeout(BOUND):
            reading = asyncio.create_task(http.get(f"/workflow/{session}/conversation"))
            await session_requests.anything.wait()
            refusals = 0
            while refusals < 5:
                refusals += await is_buffer_full(temporal, session)
            assert not reading.done(), "the gateway was refused as well, and tries again"
            async with environment(temporal, task_queue=queue, partials=partials):
                assert (await reading).status_code == 200
        holding.cancel()


def queue_query(temporal: Client, session: str) -> QueryWorkflowRequest:
    return QueryWorkflowRequest(
        namespace=temporal.namespace,
        execution=WorkflowExecution(workflow_id=session),
        query=WorkflowQuery(query_type="get_queue"),
    )


async def hold_the_buffer(temporal: Client, session: str) -> None:
    """Send a query that stays in the buffer, again if another one was there."""
    while True:
        with suppress(RPCError):
            request = queue_query(temporal, session)
            await temporal.workflow_service.query_workflow(request, timeout=timedelta(seconds=BOUND))


async def is_buffer_full(temporal: Client, session: str) -> bool:
    """Query with a short timeout: only a full buffer rejects it."""
    try:
        request = queue_query(temporal, session)
        await temporal.workflow_service.query_workflow(request, timeout=timedelta(seconds=0.1))
    except RPCError as error:
        return error.status == RPCStatusCode.RESOURCE_EXHAUSTED
    return False
