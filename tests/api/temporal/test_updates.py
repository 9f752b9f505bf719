"""Updates that Temporal gives up before a session has seen them (API-2)."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from httpx import AsyncClient, Response
from temporalio.api.workflowservice.v1 import RespondWorkflowTaskCompletedRequest
from temporalio.client import Client

from tests.api.conftest import SessionRequests
from tests.api.live.test_events import started
from tests.api.temporal.test_committed_states import gateway_alone, polled_workflow_task
from tests.harness import BOUND, environment, patient
from turnkeeper.stores.partials.factory import InProcessCarrier


@dataclass
class Change:
    """A change of a session without workers: the test polls the workflow task with its update."""

    http: AsyncClient
    session: str
    queue: str
    partials: InProcessCarrier
    response: "asyncio.Task[Response]"


@pytest.fixture
async def change(temporal: Client, tmp_path: Path, session_requests: SessionRequests) -> AsyncIterator[Change]:
    partials = InProcessCarrier()
    async with gateway_alone(temporal, tmp_path, session_requests, partials, timeouts=patient(BOUND)) as (http, queue):
        async with environment(temporal, task_queue=queue, partials=partials) as env:
            session = await started(http, "hi")
            await env.adopt(temporal.get_workflow_handle(session)).idle(turns=1)
        response = asyncio.create_task(http.patch(f"/workflow/{session}", json={"title": "Oslo"}))
        yield Change(http, session, queue, partials, response)


async def test_api_2_an_update_that_a_worker_ignored_is_sent_again(temporal: Client, change: Change) -> None:
    task = await polled_workflow_task(temporal, change.queue)
    assert task.messages
    unanswered = RespondWorkflowTaskCompletedRequest(namespace=temporal.namespace, task_token=task.task_token)
    await temporal.workflow_service.respond_workflow_task_completed(unanswered)
    async with environment(temporal, task_queue=change.queue, partials=change.partials):
        assert (await change.response).status_code == 202
        assert (await change.http.get(f"/workflow/{change.session}")).json()["title"] == "Oslo"


async def test_api_2_an_update_of_a_session_that_closes_at_the_same_time_is_a_409(
    temporal: Client, change: Change
) -> None:
    await polled_workflow_task(temporal, change.queue)
    await temporal.get_workflow_handle(change.session).terminate()
    answer = await change.response
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:turnkeeper:problem:session-ended")
