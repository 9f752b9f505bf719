"""Who changed what stands in the audit, and never a word of what was said: API-4."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import AsyncClient
from sqlalchemy import select
from temporalio.client import Client

from tests.api.http.test_bad_input import problem_of
from tests.features.access.audit.callers import ADA, BOB, EVE, client_of, gateway_of_callers
from tests.harness import TASK_SECONDS, Environment, asks, broken, heal, says
from tests.waiting import until
from turnkeeper.api.changes import Change, RequestChanges
from turnkeeper.features.access.audit import AuditRecorder, new_entry
from turnkeeper.features.access.tables import AUDIT, AuditFilter, AuditRow
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.model_call import ToolSpec
from turnkeeper.stores.database.database import StoreUnavailableError

CANARY = "CANARY of what was said"


@pytest.fixture(scope="module")
async def gateway(temporal: Client, shared_env: Environment) -> AsyncIterator[FastAPI]:
    settings = Settings(
        task_queue=shared_env.task_queue, state_dir=shared_env.settings.state_dir, task_timeout=TASK_SECONDS
    )
    async with gateway_of_callers(temporal, settings, partials=shared_env.partials) as app:
        yield app


@pytest.fixture
async def ada(gateway: FastAPI) -> AsyncIterator[AsyncClient]:
    async with client_of(gateway, ADA) as http:
        yield http


@pytest.fixture
async def bob(gateway: FastAPI) -> AsyncIterator[AsyncClient]:
    async with client_of(gateway, BOB) as http:
        yield http


async def entries(http: AsyncClient, **which: str) -> list[dict[str, Any]]:
    """Return what the audit says, oldest first."""
    answer = await http.get("/audit", params=which)
    assert answer.status_code == 200, answer.text
    return answer.json()["entries"][::-1]


def brief(entry: dict[str, Any]) -> tuple[Any, ...]:
    return (entry["action"], entry["message_id"] or entry["call_id"], entry["outcome"])


async def test_api_4_the_audit_lists_the_requests_of_a_session_in_order(
    ada: AsyncClient, bob: AsyncClient, shared_env: Environment
):
    start = {"id": "audited", "title": CANARY, "limits": {"max_steps": 3}, "prompt": CANARY}
    await bob.post("/workflow", json=start)
    answered = await bob.post("/workflow/audited/prompt?wait=20", json={"message": CANARY})
    await bob.post("/workflow/audited/prompt", json={"message": CANARY, "id": "m1"})
    await bob.post("/workflow/audited/prompt", json={"message": CANARY}, headers={"Idempotency-Key": "m1"})
    await bob.patch("/workflow/audited", json={"title": CANARY, "limits": {"max_steps": 4}})
    await bob.delete("/workflow/audited/queue/nothing")
    await bob.post("/workflow/audited/cancel", json={"message_id": "m1"})
    await bob.post("/workflow/audited/retry", json={"message_id": "m1"})
    await bob.post("/workflow/audited/end", json={"reason": CANARY})
    await bob.post("/workflow/audited/prompt", json={"message": CANARY, "id": "m2"})
    await ada.delete("/workflow/audited")
    listed = await entries(ada, session="audited")
    first_prompt = listed[0]["message_id"]
    assert first_prompt
    assert [brief(entry) for entry in listed] == [
        ("start", first_prompt, "accepted"),
        ("prompt", answered.json()["id"], "accepted"),
        ("prompt", "m1", "accepted"),
        ("prompt", "m1", "accepted"),
        ("configure", None, "accepted"),
        ("withdraw", "nothing", "refused"),
        ("cancel", "m1", listed[6]["outcome"]),
        ("retry", "m1", "refused"),
        ("end", None, "accepted"),
        ("prompt", "m2", listed[9]["outcome"]),
        ("delete", None, "accepted"),
    ]
    assert listed[0]["fields"] == ["title", "limits.max_steps"]
    assert listed[4]["fields"] == ["title", "limits.max_steps"]
    assert {entry["user"] for entry in listed[:-1]} == {"Bob"}
    assert (listed[-1]["caller"], listed[-1]["user"], listed[-1]["role"]) == ("key:ada", "Ada", "admin")


async def test_api_4_the_audit_names_ids_that_the_gateway_generated(ada: AsyncClient, bob: AsyncClient):
    started = (await bob.post("/workflow")).json()["workflow_id"]
    chat = (await bob.post("/chat", json={"message": CANARY})).json()
    task = (await bob.post("/tasks", json={"description": CANARY, "idempotency_key": "audited-task"})).json()["task_id"]
    await bob.post("/tasks", json={"description": CANARY, "idempotency_key": "audited-task"})
    message = (await bob.post(f"/tasks/{task}/messages", json={"text": CANARY})).json()["message_id"]
    await bob.post(f"/tasks/{task}/cancel", json={"reason": CANARY})
    assert [brief(entry) for entry in await entries(ada, session=started)] == [("start", None, "accepted")]
    (entry,) = await entries(ada, session=chat["workflow_id"])
    assert (*brief(entry), entry["fields"]) == ("prompt", chat["message_id"], "accepted", ["start"])
    of_task = await entries(ada, session=task)
    assert [brief(entry) for entry in of_task] == [
        ("create_task", None, "accepted"),
        ("create_task", None, "accepted"),
        ("message_task", message, "accepted"),
        ("cancel_task", None, "accepted"),
    ]


async def test_api_4_decisions_are_named_by_their_call_in_each_protocol(
    ada: AsyncClient, bob: AsyncClient, shared_env: Environment
):
    shared_env.tools.specs = [ToolSpec(name="send_mail")]
    shared_env.vendor.script = [asks(("send_mail", {"to": CANARY}), ("send_mail", {"to": "b"})), says(CANARY)]
    session = await shared_env.start(SessionInput(), id="asked-for-mails")
    await session.prompt(id="p1", text=CANARY)
    first, second = await session.awaited_approvals(2)
    path = f"/workflow/{session.handle.id}/approvals"
    rejection = {"args_digest": first.args_digest, "decision": "reject", "reason": CANARY}
    await bob.post(f"{path}/{first.call_id}", json=rejection)
    part = {
        "type": "tool-send_mail",
        "toolCallId": second.call_id,
        "state": "approval-responded",
        "approval": {"id": f"{second.call_id}:{second.args_digest}", "approved": True},
    }
    message = {"id": "p1:answer", "role": "assistant", "parts": [part]}
    await bob.post("/api/chat", json={"id": session.handle.id, "messages": [message]})
    decided = await entries(ada, session=session.handle.id)
    assert [brief(entry) for entry in decided] == [
        ("reject", first.call_id, "accepted"),
        ("approve", second.call_id, "accepted"),
    ]
    shared_env.tools.specs, shared_env.vendor.script = [], []


async def test_api_4_of_several_decisions_in_one_message_each_has_its_own_outcome(
    ada: AsyncClient, bob: AsyncClient, shared_env: Environment
):
    shared_env.tools.specs = [ToolSpec(name="send_mail")]
    shared_env.vendor.script = [asks(("send_mail", {"to": "a"}), ("send_mail", {"to": "b"})), says("done")]
    session = await shared_env.start(SessionInput(), id="decided-in-part")
    await session.prompt(id="p1", text="Write.")
    first, second = await session.awaited_approvals(2)
    digests = {first.call_id: first.args_digest, second.call_id: "0" * 64}
    parts = [
        {
            "type": "tool-send_mail",
            "toolCallId": call_id,
            "state": "approval-responded",
            "approval": {"id": f"{call_id}:{digest}", "approved": True},
        }
        for call_id, digest in digests.items()
    ]
    message = {"id": "p1:answer", "role": "assistant", "parts": parts}
    answer = await bob.post("/api/chat", json={"id": session.handle.id, "messages": [message]})
    assert answer.status_code == 409
    decided = await entries(ada, session=session.handle.id)
    assert [(*brief(entry), entry["status"]) for entry in decided] == [
        ("approve", first.call_id, "accepted", 200),
        ("approve", second.call_id, "refused", 409),
    ]
    await session.decide(second, "reject")
    shared_env.tools.specs, shared_env.vendor.script = [], []


async def test_api_4_a_change_that_is_cancelled_may_have_been_made(gateway: FastAPI, ada: AsyncClient):
    services, in_progress = gateway.state.services, asyncio.Event()

    async def change() -> None:
        changes = RequestChanges(services.observers, ADA, operation="end_session", scope={})
        async with changes.begin("end", WorkflowId("cut")):
            in_progress.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(change())
    await in_progress.wait()
    (open_entry,) = await entries(ada, session="cut")
    assert (*brief(open_entry), open_entry["status"]) == ("end", None, "unknown", None)
    running.cancel()
    await asyncio.wait([running])
    (entry,) = await entries(ada, session="cut")
    assert (*brief(entry), entry["status"]) == ("end", None, "failed", 500)


async def test_api_4_a_rejection_before_any_change_is_audited_once_a_minute(ada: AsyncClient, bob: AsyncClient):
    await bob.post("/workflow", json={"id": "asked-wrongly"})
    for _ in range(2):
        await bob.post("/workflow/asked-wrongly/prompt", json={"message": 7})
        await bob.post("/workflow/asked-wrongly/end", json={"why": CANARY})
    listed = await entries(ada, session="asked-wrongly", action="request")
    assert [(entry["operation"], entry["status"]) for entry in listed] == [("send_prompt", 422), ("end_session", 422)]


async def test_api_4_a_name_that_cannot_be_stored_does_not_prevent_changes(
    gateway: FastAPI, bob: AsyncClient, ada: AsyncClient
):
    audit = gateway.state.services.get(AuditRecorder)
    await audit.begin(new_entry(Change(replace(EVE, tenant="", id="oidc:\ud800"), "end", "end_session")))
    assert (await bob.post("/workflow", json={"id": "beside-it"})).status_code == 201
    assert "oidc:\ufffd" in {entry["caller"] for entry in await entries(ada, action="end")}


async def test_api_4_the_audit_is_for_admins_and_each_sees_its_own_tenant(gateway: FastAPI, bob: AsyncClient):
    await bob.post("/workflow", json={"id": "ours"})
    refused = await bob.get("/audit")
    assert (refused.status_code, problem_of(refused)) == (403, "forbidden")
    async with client_of(gateway, EVE) as eve:
        assert await entries(eve) == await entries(eve, session="ours") == []


async def test_api_4_the_audit_is_paged_and_comes_as_lines_of_json_on_request(ada: AsyncClient):
    for number in range(3):
        await ada.post("/workflow", json={"id": f"paged-{number}"})
    all_entries, cursor = list[dict[str, Any]](), None
    while True:
        page = (await ada.get("/audit", params={"limit": 2, **({"cursor": cursor} if cursor else {})})).json()
        all_entries += page["entries"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    answer = await ada.get("/audit", headers={"accept": "application/x-ndjson"})
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line) for line in answer.text.splitlines()] == all_entries
    (export,) = await entries(ada, action="export")
    assert (*brief(export), export["caller"], export["operation"]) == (
        *("export", None, "accepted"),
        *("key:ada", "read_audit"),
    )
    since = all_entries[1]["at"]
    assert len((await ada.get("/audit", params={"since": since, "action": "start"})).json()["entries"]) == 2
    for wrong in ({"cursor": "x"}, {"since": "yesterday"}, {"action": "read"}, {"session": "a b"}):
        assert (await ada.get("/audit", params=wrong)).status_code == 422


async def test_api_4_the_audit_contains_nothing_of_a_conversation(ada: AsyncClient, shared_env: Environment):
    await ada.post("/workflow", json={"id": CANARY, "title": CANARY, CANARY: CANARY})
    await ada.post("/workflow/ours/prompt", json={"message": CANARY, "id": CANARY}, headers={"Idempotency-Key": CANARY})
    assert await entries(ada)
    rows = await shared_env.stores.database.read(lambda connection: connection.execute(select(AUDIT)).all())
    assert rows
    assert "CANARY" not in str(rows)


async def test_api_4_with_a_credential_no_change_is_made_without_an_audit_entry(
    gateway: FastAPI, bob: AsyncClient, ada: AsyncClient, shared_env: Environment
):
    file = broken(shared_env)
    try:
        refused = await bob.post("/workflow", json={"id": "unrecorded"})
        assert (refused.status_code, problem_of(refused)) == (503, "archive-unavailable")
        assert refused.headers["retry-after"] == "5"
        async with client_of(gateway) as local:
            assert (await local.post("/workflow", json={"id": "local"})).status_code == 201
    finally:
        heal(file)
    assert (await ada.get("/workflow/unrecorded")).status_code == 404
    (late,) = await entries(ada, session="unrecorded")
    assert brief(late) == ("start", None, "failed")
    (entry,) = await entries(ada, session="local")
    assert (entry["caller"], entry["outcome"]) == ("local", "accepted")


async def test_api_4_entries_are_written_after_an_outage_without_a_further_request(
    gateway: FastAPI, ada: AsyncClient, shared_env: Environment
):
    audit = gateway.state.services.get(AuditRecorder)._audit
    file = broken(shared_env)
    failures: list[BaseException] = []
    put = audit.put

    async def put_or_note(rows: Sequence[AuditRow]) -> None:
        try:
            await put(rows)
        except StoreUnavailableError as error:
            failures.append(error)
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit, "put", put_or_note)
        try:
            assert (await ada.post("/workflow", json={"id": "unrecorded-2"})).status_code == 503
            await until(lambda: len(failures) > 1)
        finally:
            heal(file)

        async def is_written() -> bool:
            return bool(await audit.page(AuditFilter("", session_id="unrecorded-2"), before=None, limit=1))

        await until(is_written)
