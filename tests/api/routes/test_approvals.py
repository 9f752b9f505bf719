"""Approvals over HTTP: AGT-8, API-1, API-2."""

import asyncio
from functools import partial
from typing import Any

import pytest
from httpx import AsyncClient
from temporalio.client import Client

from tests.api.http.test_bad_input import problem_of
from tests.api.waits import until_not
from tests.features.access.audit.callers import ADA, BOB, client_of, gateway_of_callers
from tests.harness import BOUND, DrivenSession, Environment, asks, says
from turnkeeper.models.session.approvals import PendingApproval
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.model_call import ToolSpec


async def asking(env: Environment, start: SessionInput | None = None) -> tuple[DrivenSession, str]:
    """A session that waits for a decision on sending a mail, and the path of its approvals."""
    env.tools.specs = [ToolSpec(name="send_mail", description="Sends a mail.")]
    env.vendor.script = [asks(("send_mail", {"to": "bob"})), says("done")]
    session = await env.start(start)
    await session.prompt(id="p1", text="write to bob")
    await session.awaited_approvals()
    return session, f"/workflow/{session.handle.id}/approvals"


async def test_agt_8_pending_calls_are_listed_and_decided_over_http(http: AsyncClient, env: Environment) -> None:
    session, path = await asking(env)
    listed = (await http.get(path)).json()
    (pending,) = listed["approvals"]
    assert (pending["tool"], pending["args"], pending["description"]) == ("send_mail", {"to": "bob"}, "Sends a mail.")
    assert (await http.get(f"/workflow/{session.handle.id}")).json()["status"] == "awaiting_approval"
    decision = {"args_digest": pending["args_digest"], "decision": "reject", "reason": "Not today."}
    answer = await http.post(f"{path}/{pending['call_id']}", json=decision)
    assert (answer.status_code, answer.json()) == (
        200,
        {"workflow_id": session.handle.id, "call_id": "1.1.0", "decision": "reject"},
    )
    (turn,) = await session.idle(turns=1)
    assert turn.steps[0].tool_calls[0].result.content == "Reason: Not today."
    assert (await http.get(path)).json() == {"approvals": [], "omitted": 0, "allowances": []}
    again = await http.post(f"{path}/{pending['call_id']}", json=decision)
    assert again.status_code == 200
    late = await http.post(f"{path}/{pending['call_id']}", json={**decision, "decision": "approve"})
    assert (late.status_code, problem_of(late)) == (409, "not-awaiting-approval")


async def test_agt_8_a_decision_names_the_owner_of_the_key_that_decided_first(
    temporal: Client, env: Environment
) -> None:
    async with (
        gateway_of_callers(temporal, env.settings, partials=env.partials) as app,
        client_of(app, BOB) as bob,
        client_of(app, ADA) as ada,
        client_of(app) as nobody,
    ):
        session, path = await asking(env)
        pending = (await bob.get(path)).json()["approvals"][0]
        decision = {"args_digest": pending["args_digest"], "decision": "approve"}
        forged = await bob.post(f"{path}/{pending['call_id']}", json={**decision, "decided_by": "Ada"})
        assert (forged.status_code, problem_of(forged)) == (422, "invalid")
        assert (await bob.post(f"{path}/{pending['call_id']}", json=decision)).status_code == 200
        assert (await ada.post(f"{path}/{pending['call_id']}", json=decision)).status_code == 200
        (turn,) = await session.idle(turns=1)
        assert turn.steps[0].tool_calls[0].approval.decided_by == "Bob"
        session, path = await asking(env)
        pending = (await nobody.get(path)).json()["approvals"][0]
        decision = {"args_digest": pending["args_digest"], "decision": "reject"}
        assert (await nobody.post(f"{path}/{pending['call_id']}", json=decision)).status_code == 200
        (turn,) = await session.idle(turns=1)
        assert turn.steps[0].tool_calls[0].approval.decided_by is None
        full = await nobody.get(f"/workflow/{session.handle.id}/conversation/full")
        assert "decided_by" not in full.text


async def test_agt_8_a_decision_through_the_ai_sdk_names_the_owner_of_the_key(
    temporal: Client, env: Environment
) -> None:
    async with gateway_of_callers(temporal, env.settings, partials=env.partials) as app, client_of(app, BOB) as bob:
        session, path = await asking(env)
        pending = (await bob.get(path)).json()["approvals"][0]
        approval = {"id": f"{pending['call_id']}:{pending['args_digest']}", "approved": True}
        part = {
            "type": "dynamic-tool",
            "toolCallId": pending["call_id"],
            "state": "approval-responded",
            "approval": approval,
        }
        answer = {"id": "p1:answer", "role": "assistant", "parts": [part]}
        body = {"id": session.handle.id, "trigger": "submit-message", "messages": [answer]}
        assert (await bob.post("/api/chat", json=body)).status_code == 200
        (turn,) = await session.idle(turns=1)
        assert turn.steps[0].tool_calls[0].approval.decided_by == "Bob"


async def test_agt_8_large_arguments_are_returned_by_reference_and_readable_in_full(
    http: AsyncClient, env: Environment
) -> None:
    env.tools.specs = [ToolSpec(name="send_mail")]
    env.vendor.script = [asks(("send_mail", {"text": "x" * 20_000})), says("done")]
    session = await env.start()
    await session.prompt("write a long mail")
    (pending,) = await session.awaited_approvals()
    assert pending.args_blob is not None
    assert pending.args_digest == pending.args_blob.hash
    whole = await http.get(f"/workflow/{session.handle.id}/blobs/{pending.args_blob.hash}")
    assert whole.text == '{"text":"' + "x" * 20_000 + '"}'
    await session.decide(pending, "approve")
    await session.idle(turns=1)
    assert env.tools.calls[0].args == {"text": "x" * 20_000}


async def test_api_2_concurrent_decisions_all_succeed(http: AsyncClient, env: Environment) -> None:
    env.tools.specs = [ToolSpec(name="send_mail")]
    env.vendor.script = [asks(*[("send_mail", {"n": number}) for number in range(40)]), says("done")]
    session = await env.start()
    await session.prompt("write to everybody")
    path = f"/workflow/{session.handle.id}/approvals"
    waiting = await session.awaited_approvals(40)

    async def approve(call: PendingApproval) -> int:
        decision = {"args_digest": call.args_digest, "decision": "approve"}
        # On a busy machine the worker may be slow; repeating a decision is harmless.
        return (await until_not(504, partial(http.post, f"{path}/{call.call_id}", json=decision))).status_code

    async with asyncio.timeout(BOUND):
        assert set(await asyncio.gather(*map(approve, waiting))) == {200}
    await session.idle(turns=1)
    assert sorted(call.call_id for call in env.tools.calls) == sorted(call.call_id for call in waiting)


@pytest.fixture(scope="module")
async def undecided(shared_env: Environment) -> DrivenSession:
    """A session with a pending approval that no test of this file decides."""
    session, _ = await asking(shared_env)
    return session


@pytest.mark.parametrize(
    ("call_id", "body", "status", "problem"),
    [
        ("1.1.0", {}, 422, "invalid"),
        ("1.1.0", {"decision": "maybe"}, 422, "invalid"),
        ("1.1.0", {"args_digest": "short"}, 422, "invalid"),
        ("1.1.0", {"args_digest": "0" * 64}, 409, "other-arguments"),
        ("1.1.0", {"reason": "x" * 501}, 422, "invalid"),
        ("1.1.0", {"reason": "a\0b"}, 422, "invalid"),
        ("1.1.0", {"extra": 1}, 422, "invalid"),
        ("1.1.9", {"decision": "approve"}, 404, "unknown-call"),
        ("7.1.0", {"decision": "approve"}, 404, "unknown-call"),
        ("999999999.1.0", {"decision": "approve"}, 404, "unknown-call"),
        ("one", {"decision": "approve"}, 422, "invalid"),
        ("1.1", {"decision": "approve"}, 422, "invalid"),
    ],
)
async def test_api_2_a_decision_that_cannot_be_made_gets_an_error_with_the_reason(
    shared_http: AsyncClient, undecided: DrivenSession, call_id: str, body: dict[str, Any], status: int, problem: str
) -> None:
    session, path = undecided, f"/workflow/{undecided.handle.id}/approvals"
    (pending,) = await session.approvals()
    body_sent = {"args_digest": pending.args_digest, "decision": "approve", **body} if body else {}
    answer = await shared_http.post(f"{path}/{call_id}", json=body_sent)
    assert (answer.status_code, problem_of(answer)) == (status, problem)
    assert await session.approvals() == [pending]


async def test_api_2_an_unknown_or_ended_session_has_no_pending_calls(http: AsyncClient, env: Environment) -> None:
    decision = {"args_digest": "0" * 64, "decision": "approve"}
    for answer in (
        await http.get("/workflow/never-was/approvals"),
        await http.post("/workflow/never-was/approvals/1.1.0", json=decision),
    ):
        assert (answer.status_code, problem_of(answer)) == (404, "unknown-session")
    session, path = await asking(env)
    await session.handle.terminate()
    assert (await http.get(path)).json() == {"approvals": [], "omitted": 0, "allowances": []}
    answer = await http.post(f"{path}/1.1.0", json=decision)
    assert (answer.status_code, problem_of(answer)) == (409, "session-ended")


async def test_agt_8_a_session_is_started_unattended_over_http(http: AsyncClient, env: Environment) -> None:
    env.tools.specs = [ToolSpec(name="send_mail")]
    env.vendor.script = [asks(("send_mail", {})), says("denied")]
    started = await http.post("/workflow", json={"unattended": True, "prompt": "write"})
    session = env.adopt(env.client.get_workflow_handle(started.json()["workflow_id"]))
    (turn,) = await session.idle(turns=1)
    assert turn.steps[0].tool_calls[0].result.status == "denied"
