"""A session that Temporal has forgotten is listed and read as before: from archive and index (API-1, OPS-13)."""

from typing import Any

import pytest
from httpx import AsyncClient
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.service import RPCError, RPCStatusCode

from tests.api.history.test_archive import deleted
from tests.api.http.test_bad_input import problem_of
from tests.harness import LONG_PAUSE, DrivenSession, Environment, broken, heal
from tests.waiting import until
from turnkeeper.models.session.messages import SessionInput


async def forget(env: Environment, session: DrivenSession) -> None:
    """Delete an ended session in Temporal, as its retention does."""
    execution = WorkflowExecution(workflow_id=session.handle.id)
    request = DeleteWorkflowExecutionRequest(namespace=env.client.namespace, workflow_execution=execution)
    await env.client.workflow_service.delete_workflow_execution(request)

    async def is_forgotten() -> bool:
        try:
            await session.handle.describe()
        except RPCError as error:
            return error.status == RPCStatusCode.NOT_FOUND
        return False

    await until(is_forgotten, within=120, max_pause=LONG_PAUSE)


@pytest.fixture(scope="module")
async def ended(shared_env: Environment) -> DrivenSession:
    """A session of two turns that has ended, and that Temporal still has."""
    session = await shared_env.start(SessionInput(user="ada", title="Rome"))
    for number in (1, 2):
        await session.prompt(id=f"p{number}", text=f"question {number}")
        await session.idle(turns=number)
    await session.handle.signal("end_chat", "done")
    await session.handle.result()
    return session


READS = [
    "",
    "/conversation",
    "/conversation?limit=1",
    "/conversation?last_seen_message_id=p1&since_revision=1",
    # Without a revision, the answer depends on how long ago the turn ended.
    "/conversation?last_seen_message_id=p2&since_revision=1",
    "/conversation?last_seen_message_id=unknown",
    "/conversation/full",
    "/conversation/full?limit=1",
    "/conversation/full?before=p2",
    "/context?format=replay",
    "/queue/p1",
    "/queue/unknown",
    "/approvals",
]


async def test_ops_13_a_session_reads_the_same_after_temporals_retention(
    shared_http: AsyncClient, shared_env: Environment, ended: DrivenSession
) -> None:
    http, path = shared_http, f"/workflow/{ended.handle.id}"

    async def read(tail: str) -> Any:
        answer = await http.get(f"{path}{tail}")
        body = answer.json() if "json" in answer.headers["content-type"] else answer.text
        return answer.status_code, _without_health(body)

    async def is_listed(preview: str) -> Any:
        rows = (await http.get("/workflow", params={"q": ended.handle.id})).json()["sessions"]
        return rows if rows and rows[0]["preview"] == preview and rows[0]["status"] == "ended" else None

    before = {tail: await read(tail) for tail in READS}
    rows = await until(lambda: is_listed("question 2"))
    await forget(shared_env, ended)
    for tail in READS:
        assert await read(tail) == before[tail], tail
    assert await is_listed("question 2") == rows

    events = await http.get(f"{path}/events")
    assert events.status_code == 200
    assert '"question 2"' in events.text
    view = (await http.get(f"{path}/context")).json()
    assert [turn["message_id"] for turn in view["turns"]] == ["p1", "p2"]
    queue = (await http.get(f"{path}/queue")).json()
    assert (queue["waiting"], queue["refusing"]) == ([], "ending")

    changes = {
        "prompt": http.post(f"{path}/prompt", json={"message": "hi"}),
        "chat": http.post("/chat", json={"message": "hi", "workflow_id": ended.handle.id}),
        "end": http.post(f"{path}/end"),
        "cancel": http.post(f"{path}/cancel", json={"message_id": "p2"}),
        "configure": http.patch(path, json={"title": "New"}),
        "withdraw": http.delete(f"{path}/queue/p3"),
        "start": http.post("/workflow", json={"id": ended.handle.id}),
    }
    for name, change in changes.items():
        answer = await change
        kind = "session-exists" if name == "start" else "session-ended"
        assert (name, answer.status_code, problem_of(answer)) == (name, 409, kind)

    file = broken(shared_env)
    assert problem_of(await http.get(f"{path}/conversation/full")) == "archive-unavailable"
    heal(file)


def _without_health(body: Any) -> Any:
    """Return an answer without what only the workflow knows: how its archive was, its link in the Web UI, and how much
    of the session the model sees; a turn's own metrics stay."""
    if isinstance(body, dict):
        left_out = ["archive", "temporal", "archived_count", "revision", "instance"]
        left_out += ["conversation_metrics"] if "turn_count" in body else []
        return {name: _without_health(value) for name, value in body.items() if name not in left_out}
    return [_without_health(value) for value in body] if isinstance(body, list) else body


async def test_ops_13_a_task_reads_the_same_after_temporals_retention(
    shared_http: AsyncClient, shared_env: Environment
) -> None:
    http = shared_http
    parent = (await http.post("/workflow")).json()["workflow_id"]
    started = await http.post("/tasks", json={"description": "Say hello", "parent": parent})
    path = f"/tasks/{started.json()['task_id']}"
    answered = (await http.get(f"{path}?wait_seconds=60")).json()
    assert answered["status"] == "completed"
    session = DrivenSession(shared_env.client, shared_env.client.get_workflow_handle(answered["workflow_id"]))
    await session.handle.signal("end_chat", "done")
    await session.handle.result()
    await until(lambda: _rows(http, q=session.handle.id, status="ended"))
    left_out = {"description": None, "temporal_url": None}
    before = {**(await http.get(path)).json(), **left_out}
    newer = (await http.post("/tasks", json={"description": "Say it again", "parent": parent})).json()["task_id"]
    await forget(shared_env, session)
    assert (await http.get(path)).json() == before

    async def are_both_listed() -> bool:
        return [task["task_id"] for task in await _tasks(http, parent=parent, limit="1")] == [newer, before["task_id"]]

    await until(are_both_listed)
    *_, listed = await _tasks(http, parent=parent, status="completed")
    assert (listed["task_id"], listed["status"], listed["result"]) == (before["task_id"], "completed", None)
    assert await _tasks(http, parent=parent, status="cancelled") == []
    assert (await http.post(f"{path}/cancel")).json() == before
    message = await http.post(f"{path}/messages", json={"text": "more"})
    assert (message.status_code, problem_of(message)) == (409, "session-ended")


async def test_api_2_an_expired_session_without_turns_is_a_410_and_can_be_deleted(
    shared_http: AsyncClient, shared_env: Environment
) -> None:
    http = shared_http
    lost, empty = await shared_env.start(), await shared_env.start()
    await lost.prompt("hello")
    await lost.idle(turns=1)
    for session in (lost, empty):
        await session.handle.signal("end_chat", "done")
        await session.handle.result()
        row = {"q": session.handle.id, "status": "ended"}
        await until(lambda row=row: _rows(http, **row))
        await forget(shared_env, session)
    await shared_env.stores.archive.delete(lost.handle.id)
    for tail in ("", "/conversation", "/conversation/full", "/events", "/context", "/queue"):
        answer = await http.get(f"/workflow/{lost.handle.id}{tail}")
        assert (answer.status_code, problem_of(answer)) == (410, "no-longer-retained"), tail
        assert (await http.get(f"/workflow/{empty.handle.id}{tail}")).status_code == 200, tail
    for session in (lost, empty):
        assert (await http.post("/workflow", json={"id": session.handle.id})).status_code == 409
        await deleted(http, session.handle.id)
        answer = await http.get(f"/workflow/{session.handle.id}")
        assert (answer.status_code, problem_of(answer)) == (404, "unknown-session")
        assert await _rows(http, q=session.handle.id) == []


async def _tasks(http: AsyncClient, **params: str) -> list[dict[str, Any]]:
    """Return the tasks of all pages."""
    tasks, cursor = list[dict[str, Any]](), ""
    while True:
        page = (await http.get("/tasks", params={**params, **({"cursor": cursor} if cursor else {})})).json()
        tasks += page["tasks"]
        cursor = page["next_cursor"]
        if cursor is None:
            return tasks


async def _rows(http: AsyncClient, **params: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await http.get("/workflow", params=params)).json()["sessions"]
    return rows
