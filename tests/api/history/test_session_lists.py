"""Lists come from our own index: order, previews, costs, tenants; Temporal repairs it (API-1)."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import uuid4

import pytest
from httpx import AsyncClient
from temporalio.client import Client

from tests.api.conftest import gateway
from tests.api.history.test_archive import deleted
from tests.harness import Environment, asks, broken, heal, says
from tests.waiting import until
from turnkeeper.api.callers import Caller
from turnkeeper.api.history.index_repair import IndexRepair
from turnkeeper.api.temporal.lists.visibility import VisibleSession, find_visible
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.stores.database.database import Database
from turnkeeper.stores.session_index import SessionIndex


async def listed(http: AsyncClient, **params: str) -> list[dict[str, Any]]:
    answer = await http.get("/workflow", params=params)
    assert answer.status_code == 200, answer.text
    sessions: list[dict[str, Any]] = answer.json()["sessions"]
    return sessions


async def until_listed(http: AsyncClient, *, preview: str | None = None, **params: str) -> dict[str, Any]:
    """Return the first session of a list, once there is one; with `preview`, once that is its preview."""

    async def first() -> dict[str, Any] | None:
        sessions = await listed(http, **params)
        return sessions[0] if sessions and preview in (None, sessions[0]["preview"]) else None

    return await until(first)


async def test_api_1_a_session_is_listed_at_once_and_each_turn_brings_preview_and_activity(
    http: AsyncClient, env: Environment
) -> None:
    user = f"u-{uuid4().hex[:12]}"
    first, second = [
        (await http.post("/workflow", json={"user": user, "title": title})).json()["workflow_id"]
        for title in ("Rome", "Oslo")
    ]
    assert [one["workflow_id"] for one in await listed(http, user=user)] == [second, first]
    for text in ("the first question", "what about the weather?"):
        answer = await http.post(f"/workflow/{first}/prompt?wait=60", json={"message": text})
        assert answer.status_code == 200
    row = await until_listed(http, preview="what about the weather?", user=user)
    assert (row["workflow_id"], row["title"], row["turn_count"], row["status"]) == (first, "Rome", 2, "open")
    assert row["last_activity_at"] > row["started_at"]
    assert row["closed_at"] is row["parent"] is None
    for text in ("WEATHER", "rome", first[4:]):
        assert [one["workflow_id"] for one in await listed(http, q=text, user=user)] == [first], text
    assert await listed(http, q="the first question", user=user) == []


async def test_api_1_a_session_that_has_ended_is_listed_as_such_with_and_without_turns(
    http: AsyncClient, env: Environment
) -> None:
    user = f"u-{uuid4().hex[:12]}"
    with_turn, empty = await env.start(SessionInput(user=user)), await env.start(SessionInput(user=user))
    await with_turn.prompt("hello")
    await with_turn.idle(turns=1)
    for session in (with_turn, empty):
        await session.handle.signal("end_chat", "done")
        await session.handle.result()

    async def both() -> list[dict[str, Any]] | None:
        rows = await listed(http, user=user, status="ended")
        return rows if len(rows) == 2 else None

    rows = {row["workflow_id"]: row for row in await until(both)}
    assert rows[with_turn.handle.id]["preview"] == "hello"
    assert rows[empty.handle.id]["preview"] is None
    assert all(row["closed_at"] for row in rows.values())
    assert await listed(http, user=user, status="open") == []


async def test_api_1_what_waits_for_an_approval_is_listed_as_that(http: AsyncClient, env: Environment) -> None:
    user = f"u-{uuid4().hex[:12]}"
    await env.start(SessionInput(user=user))
    session = await env.start(SessionInput(user=user, tool_policy={"pay": "ask"}))
    env.vendor.script = [asks(("pay", {"amount": 7})), says("paid")]
    await session.prompt("pay 7")
    (pending,) = await session.awaited_approvals()
    row = await until_listed(http, preview="pay 7", user=user, status="awaiting_approval")
    assert (row["workflow_id"], row["preview"], row["status"]) == (session.handle.id, "pay 7", "awaiting_approval")
    assert session.handle.id in [one["workflow_id"] for one in await listed(http, user=user, status="open")]
    await session.decide(pending, "approve")
    await session.idle(turns=1)

    async def none_waits() -> bool:
        return await listed(http, user=user, status="awaiting_approval") == []

    await until(none_waits)


async def test_api_1_a_termination_that_nobody_has_written_down_is_listed(http: AsyncClient, env: Environment) -> None:
    user = f"u-{uuid4().hex[:12]}"
    session_id = (await http.post("/workflow", json={"user": user})).json()["workflow_id"]
    await env.client.get_workflow_handle(session_id).terminate()

    async def is_terminated() -> bool:
        return [row["status"] for row in await listed(http, user=user)] == ["terminated"]

    await until(is_terminated)
    assert (await until_listed(http, user=user, status="terminated"))["workflow_id"] == session_id


async def test_api_1_a_session_with_the_id_of_one_that_has_ended_is_listed_as_open(
    http: AsyncClient, env: Environment
) -> None:
    user, session_id = f"u-{uuid4().hex[:12]}", f"again-{uuid4()}"
    ended = await env.start(SessionInput(user=user), id=session_id)
    await ended.prompt("hello")
    await ended.idle(turns=1)
    await ended.handle.terminate()
    await until_listed(http, user=user, status="terminated")
    session = await env.start(SessionInput(user=user), id=session_id)
    await session.prompt("hello again")
    await session.idle(turns=1)
    row = await until_listed(http, preview="hello again", user=user)
    assert (row["status"], row["closed_at"]) == ("open", None)


async def test_api_1_without_the_archive_temporals_own_list_is_shown(http: AsyncClient, env: Environment) -> None:
    user = f"u-{uuid4().hex[:12]}"
    session = await env.start(SessionInput(user=user, title="Rome"))
    await session.prompt("hello")
    await session.idle(turns=1)
    await until_listed(http, preview="hello", user=user)
    file = broken(env)
    row = await until_listed(http, user=user)
    assert (row["workflow_id"], row["title"], row["preview"]) == (session.handle.id, "Rome", None)
    await session.prompt("no turn waits for the index")
    await session.idle(turns=2)
    heal(file)
    await session.prompt("the next turn repairs it")
    await session.idle(turns=3)
    assert (await until_listed(http, preview="the next turn repairs it", user=user))["turn_count"] == 3


async def test_api_4_a_list_has_the_sessions_of_its_callers_tenant_only(temporal: Client, env: Environment) -> None:
    user = f"u-{uuid4().hex[:12]}"
    own_id = f"s-{uuid4()}"
    session = await env.start(SessionInput(user=user, title="secret"), id=f"acme:{own_id}")
    await session.prompt("hello")
    await session.idle(turns=1)
    async with client_of(temporal, env, tenant="acme") as colleague:
        row = await until_listed(colleague, preview="hello", user=user)
        assert row["workflow_id"] == own_id
    for tenant in ("", "acm", "other"):
        async with client_of(temporal, env, tenant=tenant) as stranger:
            for params in ({"user": user}, {"q": "secret"}, {"q": own_id}, {"status": "open", "user": user}):
                assert await listed(stranger, **params) == []


def client_of(temporal: Client, env: Environment, *, tenant: str) -> AbstractAsyncContextManager[AsyncClient]:
    """Return a client whose calls are an admin's of that tenant."""
    caller = Caller("key:1", tenant, None, "admin")
    return gateway(temporal, env.task_queue, env.settings.state_dir, partials=env.partials, caller=caller)


@pytest.fixture
async def index(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SessionIndex]:
    """An index that is empty, as after an update."""
    database = Database.of_file(tmp_path_factory.mktemp("index") / "archive.db")
    yield SessionIndex(database)
    await database.close()


async def test_api_1_the_first_comparison_fills_an_empty_index_and_later_ones_go_on_from_it(
    env: Environment, temporal: Client, index: SessionIndex
) -> None:
    open_one, ended = await env.start(), await env.start()
    await ended.handle.terminate()

    async def are_indexed() -> bool:
        await index.note_compared("nothing", open_one_started)
        repair = IndexRepair(temporal, index)
        await repair.compare()
        rows = [await index.find(session.handle.id) for session in (open_one, ended)]
        return [row and row.status for row in rows] == ["open", "terminated"]

    open_one_started = (await open_one.handle.describe()).start_time
    await until(are_indexed)
    row = await index.find(open_one.handle.id)
    assert row is not None
    assert (row.started_at, row.revision) == (open_one_started, 0)
    compared_until = await index.compared_until(temporal.namespace)
    assert compared_until is not None
    assert compared_until > open_one_started


async def test_api_1_a_session_that_is_deleted_during_a_comparison_is_not_listed_again(
    http: AsyncClient, env: Environment, temporal: Client, index: SessionIndex
) -> None:
    async def visible() -> VisibleSession | None:
        return (await find_visible(temporal, [session_id])).get(session_id)

    session_id = WorkflowId(f"reused-{uuid4()}")
    repair = IndexRepair(temporal, index)
    assert (await http.post("/workflow", json={"id": session_id, "title": "A treasure"})).status_code == 201
    before = await until(visible)
    await deleted(http, session_id)
    await repair._store([before])
    assert await index.find(session_id) is None

    # Another session with its id is another session.
    assert (await http.post("/workflow", json={"id": session_id, "title": "Oslo"})).status_code == 201
    await repair._store([await until(visible)])
    row = await index.find(session_id)
    assert row is not None
    assert row.title == "Oslo"
