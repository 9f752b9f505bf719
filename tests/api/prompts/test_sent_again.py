"""Prompts whose ids are sent again, and what is promised and said of them: SES-6."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from httpx import AsyncClient, Response
from temporalio.client import Client

from tests.api.conftest import gateway
from tests.api.http.test_bad_input import problem_of
from tests.api.waits import until_not
from tests.harness import DrivenSession, Environment, environment, product
from tests.waiting import until
from turnkeeper.models.session.queue.prompt_queue import FATES_AT_ONCE
from turnkeeper.models.session.queue.prompts import Fate, FateName
from turnkeeper.models.session.queue.recent_fates import REMEMBERED_FATES

MORE = 10
"""Prompts that wait beyond the limit of a session."""


@pytest.fixture
async def second_gateway(temporal: Client, tmp_path: Path) -> AsyncIterator[AsyncClient]:
    """Another gateway beside `http_alone`, which knows nothing of what that one has sent."""
    async with gateway(temporal, f"nobody-{tmp_path.name}", tmp_path) as client:
        yield client


async def send(http: AsyncClient, session: str, message_id: str, **headers: str) -> Response:
    body = {"message": "hi", "id": message_id}
    return await http.post(f"/workflow/{session}/prompt", json=body, headers=headers)


async def started(http: AsyncClient, *, max_queued_prompts: int) -> str:
    session = f"a-{uuid4()}"
    answer = await http.post("/workflow", json={"id": session, "limits": {"max_queued_prompts": max_queued_prompts}})
    assert answer.status_code == 201
    return session


async def put_fate(env: Environment, session: str, message_id: str, fate: FateName) -> None:
    """Let the archive have a fate that the session has forgotten."""
    await env.stores.prompts.put_fates(session, [Fate(id=message_id, fate=fate, at=datetime.now(UTC))])


# ---- what became of it


async def test_ses_6_an_old_rejection_is_not_told_while_only_the_session_knows_what_came_of_the_second_try(
    temporal: Client, tmp_path: Path
) -> None:
    queue = f"nobody-{tmp_path.name}"
    async with gateway(temporal, queue, tmp_path, timeouts=product()) as http:
        session = await started(http, max_queued_prompts=10)
        async with environment(temporal, task_queue=queue, state_dir=tmp_path) as env:
            await put_fate(env, session, "p1", "rejected")
            await put_fate(env, session, "never-again", "rejected")
            answer = await http.get(f"/workflow/{session}/queue/never-again")
            assert (answer.status_code, answer.json()["fate"]) == (200, "rejected")
            assert (await send(http, session, "p1")).status_code == 202
            await env.adopt(temporal.get_workflow_handle(session)).idle(turns=1)
        for message_id in ("p1", "never-again"):
            # The archive of a busy machine may take too long.
            answer = await until_not(503, partial(http.get, f"/workflow/{session}/queue/{message_id}"))
            assert (answer.status_code, problem_of(answer)) == (504, "no-worker")
        async with environment(temporal, task_queue=queue, state_dir=tmp_path) as env:
            await env.adopt(temporal.get_workflow_handle(session)).idle(turns=1)
            answer = await http.get(f"/workflow/{session}/queue/p1")
            assert (answer.status_code, answer.json()["fate"]) == (200, "started")


# ---- what is promised


@pytest.mark.parametrize("max_queued_prompts", [1, 100])
async def test_ses_6_without_a_worker_a_terminated_session_promises_nothing_of_what_it_never_took(
    http_alone: AsyncClient, second_gateway: AsyncClient, temporal: Client, max_queued_prompts: int
) -> None:
    session = await started(http_alone, max_queued_prompts=max_queued_prompts)
    assert (await send(http_alone, session, "p1")).status_code == 202
    await temporal.get_workflow_handle(session).terminate("by the operator")
    for message_id in ("p1", "other"):
        answer = await send(second_gateway, session, message_id)
        assert (answer.status_code, problem_of(answer)) == (409, "session-ended")


async def test_ses_6_a_terminated_session_promises_nothing_of_what_waited_in_it(
    http: AsyncClient, env: Environment
) -> None:
    session = await started(http, max_queued_prompts=2)
    env.vendor.gate.close()
    await send(http, session, "running")
    await env.vendor.gate.until_arrived(1)
    assert await waiting(http, session) == []
    for message_id in ("p1", "p2"):
        assert (await send(http, session, message_id)).status_code == 202
    assert await waiting(http, session) == ["p1", "p2"]
    await env.client.get_workflow_handle(session).terminate("by the operator")
    for message_id in ("p1", "other"):
        answer = await send(http, session, message_id)
        assert (answer.status_code, problem_of(answer)) == (409, "session-ended")


async def test_ses_6_a_full_queue_promises_nothing_of_what_the_session_rejected_or_gave_back_long_ago(
    http: AsyncClient, env: Environment
) -> None:
    session = await started(http, max_queued_prompts=1)
    driven = env.adopt(env.client.get_workflow_handle(session))
    env.vendor.gate.close()
    await send(http, session, "running")
    await env.vendor.gate.until_arrived(1)
    assert await waiting(http, session) == []
    assert (await send(http, session, "withdrawn")).status_code == 202
    assert (await http.delete(f"/workflow/{session}/queue/withdrawn")).status_code == 204
    assert await waiting(http, session) == []
    # Another gateway fills the queue, which this one can't know yet.
    await burst(driven, [f"w{number}" for number in range(MORE)])
    assert (await send(http, session, "accepted", prefer="respond-async")).status_code == 202
    await driven.prompt({"id": "rejected", "text": " "})
    await burst(driven, [f"r{number}" for number in range(REMEMBERED_FATES + FATES_AT_ONCE)], text=" ")
    await until_archived(env, session, "withdrawn", "rejected")
    assert len(await waiting(http, session)) == MORE + 1
    again = await send(http, session, "rejected")
    assert (again.status_code, problem_of(again)) == (429, "queue-full")
    again = await send(http, session, "withdrawn")
    assert (again.status_code, problem_of(again)) == (409, "not-waiting")
    assert (await send(http, session, "running")).status_code == 202  # it was taken up
    env.vendor.gate.open()
    await driven.idle(turns=2 + MORE)
    assert await waiting(http, session) == []
    assert (await send(http, session, "rejected")).status_code == 202
    assert (await driven.idle(turns=3 + MORE))[-1].id == "rejected"


async def waiting(http: AsyncClient, session: str) -> list[str]:
    """Let the gateway read the queue; the ids of what waits."""
    answer = await http.get(f"/workflow/{session}/queue")
    assert answer.status_code == 200
    return [prompt["id"] for prompt in answer.json()["waiting"]]


async def burst(session: DrivenSession, ids: Iterable[str], *, text: str = "hi") -> None:
    """Send prompts past the gateway."""
    slots = asyncio.Semaphore(40)

    async def one(message_id: str) -> None:
        async with slots:
            await session.prompt(id=message_id, text=text)

    await asyncio.gather(*(one(message_id) for message_id in ids))


async def until_archived(env: Environment, session: str, *ids: str) -> None:
    """Wait until the archive has the fates of these prompts, and the session no longer."""
    driven = DrivenSession(env.client, env.client.get_workflow_handle(session))

    async def is_archived(message_id: str) -> bool:
        return await env.stores.prompts.fate_of(session, message_id) and not await driven.fate(message_id)

    for message_id in ids:
        await until(partial(is_archived, message_id))
