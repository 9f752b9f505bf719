"""Lists come from our own index: order, previews, costs, tenants; Temporal repairs it (API-1)."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from httpx import AsyncClient
from temporalio.api.common.v1 import Payload
from temporalio.client import (
    Client,
    DescribeWorkflowInput,
    Interceptor,
    OutboundInterceptor,
    WorkflowExecutionDescription,
)
from temporalio.common import RawValue, SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from tests.api.conftest import gateway
from tests.api.history.test_archive import deleted
from tests.api.http.test_bad_input import problem_of
from tests.harness import Environment, asks, broken, heal, patient, says
from tests.waiting import until
from turnkeeper.api.callers import Caller
from turnkeeper.api.history.visible_sessions import changed_since, retained
from turnkeeper.api.problems import ProblemError
from turnkeeper.features.listing import lists
from turnkeeper.features.listing.lists import IndexRepair
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.stores.database.database import Database
from turnkeeper.stores.session_index import IndexedSession, IndexQuery, SessionIndex
from turnkeeper.stores.temporal import search_attributes


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


async def test_api_1_a_session_is_listed_at_once_and_each_turn_updates_its_preview(
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


async def test_api_1_an_ended_session_is_listed_as_ended_with_and_without_turns(
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


async def test_api_1_a_session_that_awaits_approval_is_listed_as_such(http: AsyncClient, env: Environment) -> None:
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


async def test_api_1_a_termination_that_was_not_recorded_is_listed(http: AsyncClient, env: Environment) -> None:
    user = f"u-{uuid4().hex[:12]}"
    session_id = (await http.post("/workflow", json={"user": user})).json()["workflow_id"]
    await env.client.get_workflow_handle(session_id).terminate()

    async def is_terminated() -> bool:
        await IndexRepair(env.client, env.stores.index, patient()).compare()
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

    async def is_terminated() -> bool:
        await IndexRepair(env.client, env.stores.index, patient()).compare()
        return bool(await listed(http, user=user, status="terminated"))

    await until(is_terminated)
    session = await env.start(SessionInput(user=user), id=session_id)
    await session.prompt("hello again")
    await session.idle(turns=1)
    row = await until_listed(http, preview="hello again", user=user)
    assert (row["status"], row["closed_at"]) == ("open", None)


async def test_api_1_without_the_archive_a_list_says_so_and_the_next_turn_completes_it(
    http: AsyncClient, env: Environment
) -> None:
    user = f"u-{uuid4().hex[:12]}"
    session = await env.start(SessionInput(user=user, title="Rome"))
    await session.prompt("hello")
    await session.idle(turns=1)
    await until_listed(http, preview="hello", user=user)
    file = broken(env)
    for path in ("/workflow", "/tasks"):
        answer = await http.get(path)
        assert (answer.status_code, problem_of(answer)) == (503, "archive-unavailable")
        assert answer.headers["retry-after"]
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


async def test_api_1_the_first_comparison_fills_an_empty_index_and_later_ones_continue(
    env: Environment, temporal: Client, index: SessionIndex
) -> None:
    open_one, ended = await env.start(), await env.start()
    await ended.handle.terminate()

    async def are_indexed() -> bool:
        await index.note_compared("nothing", open_one_started)
        repair = IndexRepair(temporal, index, patient())
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
    async def visible() -> IndexedSession | None:
        pages = [page async for page in changed_since(temporal, patient(), None)]
        return next((one for page in pages for one in page if one.session_id == session_id), None)

    session_id = WorkflowId(f"reused-{uuid4()}")
    repair = IndexRepair(temporal, index, patient())
    assert (await http.post("/workflow", json={"id": session_id, "title": "A treasure"})).status_code == 201
    before = await until(visible)
    await deleted(http, session_id)
    await repair._correct([before])
    assert await index.find(session_id) is None

    # Another session with its id is another session.
    assert (await http.post("/workflow", json={"id": session_id, "title": "Oslo"})).status_code == 201
    await repair._correct([await until(visible)])
    row = await index.find(session_id)
    assert row is not None
    assert row.title == "Oslo"


class Overloaded(Interceptor):
    """Temporal describes no workflow while `is_on`."""

    is_on = True

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _Overloaded(next, self)


class _Overloaded(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor, overload: Overloaded) -> None:
        super().__init__(next)
        self._overload = overload

    async def describe_workflow(self, input: DescribeWorkflowInput) -> WorkflowExecutionDescription:
        if self._overload.is_on:
            raise RPCError("namespace rate limit exceeded", RPCStatusCode.RESOURCE_EXHAUSTED, b"")
        return await super().describe_workflow(input)


async def test_api_1_an_interrupted_comparison_is_repeated_and_misses_no_ended_session(
    env: Environment, temporal: Client, index: SessionIndex
) -> None:
    session = await env.start()
    await session.handle.terminate()

    async def visible() -> bool:
        return bool(await retained(temporal, patient(), [session.handle.id]))

    await until(visible)
    overload = Overloaded()
    repair = IndexRepair(Client(**{**temporal.config(), "interceptors": [overload]}), index, patient())
    with pytest.raises(ProblemError):
        await repair.compare()
    # Nobody knows whether it was being deleted, so it has no row, and nothing counts as compared.
    assert await index.find(session.handle.id) is None
    assert await index.compared_until(temporal.namespace) is None
    overload.is_on = False
    await repair.compare()
    row = await index.find(session.handle.id)
    assert row is not None
    assert row.status == "terminated"


@pytest.mark.parametrize(
    "memo",
    [
        {"title": {"text": "Rome"}},
        {"title": "\0" + "x" * 1_000, "created_at": "0001-01-01T00:00:00+14:00"},
        {"title": RawValue(Payload(metadata={"encoding": b"binary/unknown"}, data=b"x"))},
    ],
    ids=["dict", "long", "encrypted"],
)
async def test_api_1_a_session_started_by_hand_with_any_memo_is_listed(
    temporal: Client, index: SessionIndex, memo: dict[str, Any]
) -> None:
    user = f"u-{uuid4().hex[:12]}"
    handle = await temporal.start_workflow(
        "AgenticAIWorkflow",
        SessionInput(user=user),
        id=f"by-hand-{uuid4()}",
        task_queue="nobody",
        memo=memo,
        search_attributes=TypedSearchAttributes([SearchAttributePair(search_attributes.USER, user)]),
    )
    try:
        await until(lambda: retained(temporal, patient(), [handle.id]))
        await IndexRepair(temporal, index, patient()).compare()
        (row,) = await index.page(IndexQuery(tenant="", user=user), limit=2)
        assert row.session_id == handle.id
        assert row.started_at == (await handle.describe()).start_time
        assert row.title is None or len(row.title) <= 255
    finally:
        await handle.terminate()


async def test_api_1_comparisons_continue_after_any_error(
    temporal: Client, index: SessionIndex, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compare, fails = IndexRepair.compare, [True, False]

    async def compare_or_fail(repair: IndexRepair) -> None:
        if fails.pop(0):
            raise TypeError("a secret")
        await compare(repair)
        fails.append(False)

    monkeypatch.setattr(IndexRepair, "compare", compare_or_fail)
    repair = IndexRepair(temporal, index, patient(repair_start=0, repair_pause=0.01))
    repair.start()
    try:
        await until(lambda: index.compared_until(temporal.namespace))
    finally:
        await repair.close()
    (error,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert error.name == lists.__name__


async def test_api_1_a_wait_for_approval_that_the_archive_missed_is_listed_later(
    http: AsyncClient, env: Environment
) -> None:
    user = f"u-{uuid4().hex[:12]}"
    session = await env.start(SessionInput(user=user, tool_policy={"pay": "ask"}))
    env.vendor.script = [asks(("pay", {"amount": 7})), says("paid")]
    env.vendor.gate.close()
    await session.prompt("pay 7")
    await env.vendor.gate.until_arrived(1)
    file = broken(env)
    env.vendor.gate.open()
    await session.awaited_approvals()

    async def is_missed() -> bool:
        return (await session.state()).session.archive.failing_since is not None

    await until(is_missed)
    heal(file)
    assert (await until_listed(http, user=user, status="awaiting_approval"))["workflow_id"] == session.handle.id


async def test_api_1_an_approval_that_the_archive_missed_is_listed_by_the_next_run(
    http: AsyncClient, env: Environment
) -> None:
    user = f"u-{uuid4().hex[:12]}"
    limits = Limits(max_history_events=50)
    session = await env.start(SessionInput(user=user, tool_policy={"pay": "ask"}, limits=limits))
    env.vendor.script = [asks(("pay", {"amount": 7})), says("paid")]
    await session.prompt("pay 7")
    (pending,) = await session.awaited_approvals()
    await until_listed(http, user=user, status="awaiting_approval")
    first_run, turns = (await session.handle.describe()).run_id, 1
    file = broken(env)
    await session.decide(pending, "approve")
    await session.idle(turns=turns)
    while (await env.client.get_workflow_handle(session.handle.id).describe()).run_id == first_run:
        turns += 1
        await session.prompt("hello")
        await session.idle(turns=turns)
    env.stores.index_writer.forget(WorkflowId(session.handle.id))  # as in an outage of more than eight seconds
    heal(file)

    async def none_waits() -> bool:
        return await listed(http, user=user, status="awaiting_approval") == []

    await until(none_waits)


async def test_api_1_rows_of_an_interrupted_comparison_are_added_by_the_next_one(
    env: Environment, temporal: Client, index: SessionIndex
) -> None:
    session = await env.start()
    await session.handle.terminate()

    async def visible() -> bool:
        return bool(await retained(temporal, patient(), [session.handle.id]))

    await until(visible)
    overload = Overloaded()
    repair = IndexRepair(Client(**{**temporal.config(), "interceptors": [overload]}), index, patient())
    with pytest.raises(ProblemError):
        await repair.compare()
    # Another gateway compares at the same time, and sees the row that is removed then.
    await index.note_compared(temporal.namespace, datetime.now(UTC) + lists.OVERLAP)
    overload.is_on = False
    await repair.compare()
    assert await index.find(session.handle.id) is not None
