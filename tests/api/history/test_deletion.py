"""A deletion is a workflow: it needs no gateway, is not listed, and does not touch other sessions: API-1."""

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from httpx import AsyncClient
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode, WorkflowService

from tests.api.history.test_archive import deleted
from tests.api.http.test_bad_input import problem_of
from tests.api.waits import until_not
from tests.features.copies.record import EXPORTS
from tests.harness import Environment, environment
from tests.waiting import until
from turnkeeper.api.history.ended_sessions import SessionDeleter
from turnkeeper.models.session.messages import DeletionOrder, DeletionProgress, SessionInput, deletion_id
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.stores.archive import ArchivedTurn
from turnkeeper.workflows.delete_session import DeleteSession


async def test_api_1_a_session_deleted_without_a_worker_is_hidden_and_removed_later(
    temporal: Client, http_alone: AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.workflows.activity_options.DELETION_QUIET", timedelta(seconds=1))
    session = f"d-{uuid4()}"
    await http_alone.post("/workflow", json={"id": session})
    waiting = await http_alone.post(f"/workflow/{session}/prompt", json={"id": "p1", "message": "hi"})
    assert waiting.status_code == 202
    for _ in range(2):
        answer = await http_alone.delete(f"/workflow/{session}")
        assert (answer.status_code, answer.json()) == (202, receipt(session, "deleting", None))
    for tail in ("", "/conversation", "/queue/p1", f"/blobs/{'0' * 64}"):
        read = await http_alone.get(f"/workflow/{session}{tail}")
        assert (read.status_code, problem_of(read)) == (404, "unknown-session"), tail
    document = json.loads((EXPORTS / "v1.json").read_text())
    for body, path in (({"id": session}, ""), (document, f"/import?id={session}")):
        started = await http_alone.post(f"/workflow{path}", json=body)
        assert (started.status_code, problem_of(started)) == (409, "session-exists")
        assert "is being deleted" in started.json()["detail"], "the id is not free yet"
    prompted = await http_alone.post(f"/workflow/{session}/prompt", json={"message": "hi"})
    assert (prompted.status_code, problem_of(prompted)) == (409, "session-ended")
    async with environment(temporal, task_queue=f"nobody-{tmp_path.name}", state_dir=tmp_path):
        assert await deleted(http_alone, session) == receipt(session, "deleted", 0, runs=1)
    again = await http_alone.delete(f"/workflow/{session}")
    assert (again.status_code, again.json()) == (200, receipt(session, "deleted", 0, runs=1)), "it needs no worker"
    assert (await http_alone.post("/workflow", json={"id": session})).status_code == 201


def receipt(session: str, status: str, remaining: int | None, *, runs: int | None = None) -> dict[str, Any]:
    """Return the receipt of a session without archived turns."""
    return {
        "workflow_id": session,
        "status": status,
        "runs": runs,
        "remaining": remaining,
        "archived_turns": None if runs is None else 0,
    }


async def test_api_1_a_deletion_does_not_appear_in_lists_of_sessions(http: AsyncClient, env: Environment) -> None:
    session = await env.start()
    await deleted(http, session.handle.id)
    of_it = f"WorkflowId = '{deletion_id(session.handle.id)}'"

    async def is_listed_by_temporal() -> bool:
        return (await env.client.count_workflows(of_it)).count > 0

    await until(is_listed_by_temporal)
    assert (await http.get("/workflow", params={"q": session.handle.id})).json()["sessions"] == []


async def test_api_1_the_history_of_a_deletion_contains_nothing_of_the_conversation(
    http: AsyncClient, env: Environment
) -> None:
    session = await env.start(SessionInput(title="a secret title", user="a-secret-user"))
    await session.prompt("a secret prompt")
    await session.idle(turns=1)
    await deleted(http, session.handle.id)
    history = await env.client.get_workflow_handle(deletion_id(session.handle.id)).fetch_history()
    assert "secret" not in history.to_json()
    assert sum(len(event.SerializeToString()) for event in history.events) < 20_000


@pytest.mark.parametrize("first_run_id", ["", "01a1fddd-071b-714f-8b2b-6bf7abb75973"])
async def test_api_1_a_deletion_does_not_delete_a_newer_session_with_the_same_id(
    env: Environment, first_run_id: str
) -> None:
    session = await env.start()
    await env.stores.blobs.put(session.handle.id, ["its text"])
    with pytest.raises(WorkflowFailureError) as failed:
        await (await start_deletion(env, session.handle.id, first_run_id)).result()
    assert "another session" in str(failed.value.cause.cause)
    assert (await session.state()).status == "idle"
    assert await env.stores.blobs.delete(session.handle.id) == 1


async def start_deletion(
    env: Environment, session_id: str, first_run_id: str
) -> WorkflowHandle[DeleteSession, DeletionProgress]:
    return await env.client.start_workflow(
        DeleteSession.run,
        DeletionOrder(first_run_id=first_run_id),
        id=deletion_id(session_id),
        task_queue=env.task_queue,
    )


async def test_api_1_a_session_started_while_an_expired_one_is_deleted_continues(
    http: AsyncClient, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = f"d-{uuid4()}"
    await env.stores.archive.put_turns(session_id, [archived_turn()])

    async def begin_another(*_: object) -> tuple[bool, DeletionProgress]:
        await env.start(id=session_id)
        return False, DeletionProgress()

    with monkeypatch.context() as patched:
        patched.setattr(SessionDeleter, "_progress", begin_another)
        assert (await http.delete(f"/workflow/{session_id}")).status_code == 202
    assert (await env.sessions[-1].state()).status == "idle"


async def test_api_1_turns_that_reappear_in_the_archive_are_deleted_again(http: AsyncClient, env: Environment) -> None:
    session = await env.start()
    await deleted(http, session.handle.id)
    await env.stores.archive.put_turns(session.handle.id, [archived_turn()])
    assert (await deleted(http, session.handle.id))["archived_turns"] == 1
    assert await env.stores.archive.count(session.handle.id) == 0


@pytest.mark.parametrize("call", ["terminate_workflow_execution", "delete_workflow_execution"])
async def test_api_1_if_workers_may_not_delete_the_error_says_so_and_the_session_stays(
    http: AsyncClient, env: Environment, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise RPCError("not you", RPCStatusCode.PERMISSION_DENIED, b"")

    session = await env.start()
    path = f"/workflow/{session.handle.id}"
    with monkeypatch.context() as patched:
        patched.setattr(WorkflowService, call, refuse)
        answer = await until_not(202, partial(http.delete, path))
        assert (answer.status_code, problem_of(answer)) == (503, "deletion-refused")
        assert "may terminate and delete workflows" in answer.json()["detail"]
        assert (await http.get(f"{path}/conversation")).status_code == 200
    assert (await deleted(http, session.handle.id))["remaining"] == 0


def archived_turn() -> ArchivedTurn:
    now = datetime.now(UTC)
    turn = ConversationMessage(
        id="p1", timestamp=now, user_message="hi", user_timestamp=now, revision=1, status="completed"
    )
    return ArchivedTurn(number=1, turn=turn)
