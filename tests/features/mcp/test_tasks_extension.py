"""The Tasks extension over MCP: handles, their states, approvals and cancelling (TSK-6, AGT-8)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx import AsyncClient
from mcp.shared.exceptions import MCPError
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
)
from temporalio.client import Client

from tests.api.conftest import served
from tests.features.mcp.client import EXTENSION, Answer, McpClient, TaskParams, TaskRequest, in_own_task, mcp_client
from tests.features.tasks.api.delegating import mailing_sub_task
from tests.harness import Environment, asks, broken, heal, product, says
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.api.callers import Caller
from turnkeeper.features.mcp import tasks
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.model_call import ToolSpec


@pytest.fixture
async def client(url: str) -> AsyncIterator[McpClient]:
    """A client that declares the extension."""
    async with in_own_task(mcp_client(url, tasks=True)) as client:
        yield client


def form_of(request: dict[str, Any]) -> dict[str, Any]:
    assert request["method"] == "elicitation/create"
    return request["params"]


async def awaiting(
    env: Environment, client: McpClient, *calls: tuple[str, dict[str, Any]]
) -> tuple[str, dict[str, Any]]:
    """A task that waits for decisions on `calls`: its handle, and what is asked, by its keys."""
    env.tools.specs = [ToolSpec(name="send_mail", description="Sends a mail.")]
    env.vendor.script = [asks(*(calls or (("send_mail", {"to": "bob"}),))), says("done")]
    created = await client.create("create_task", description="Write to Bob.")
    task = await client.until(created.task_id, "input_required")
    return created.task_id, task["inputRequests"]


async def test_tsk_6_a_task_is_a_handle_and_completes_with_the_result_of_the_tool(client: McpClient, env: Environment):
    env.vendor.gate.close()
    env.vendor.script = [says("Forty-two.")]
    created = await client.create("create_task", description="Count.")
    assert created.status == "working"
    assert created.poll_interval_ms == 1000
    assert created.ttl_ms == 30 * 24 * 3600 * 1000
    working = await client.task(created.task_id)
    assert (working["resultType"], working["status"]) == ("complete", "working")
    env.vendor.gate.open()
    task = await client.until(created.task_id, "completed")
    result = task["result"]
    assert result["isError"] is False
    answer = result["structuredContent"]
    assert (answer["status"], answer["result"]["answer"]) == ("completed", "Forty-two.")
    assert task["taskId"] == created.task_id
    assert task["createdAt"] == created.created_at <= task["lastUpdatedAt"]
    assert answer["task_id"] not in created.task_id


async def test_tsk_6_a_client_without_the_extension_gets_no_handles(client: McpClient, url: str, env: Environment):
    created = await client.create("create_task", description="Count.")
    async with mcp_client(url) as other:
        assert (await other.answer("create_task", description="Count."))["task_id"]
        for method, params in (
            ("tasks/get", {}),
            ("tasks/update", {"inputResponses": {}}),
            ("tasks/cancel", {}),
        ):
            with pytest.raises(MCPError) as refused:
                await other.request(method, created.task_id, **params)
            assert refused.value.code == MISSING_REQUIRED_CLIENT_CAPABILITY
            assert refused.value.data == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    async with mcp_client(url, mode="legacy", tasks=True) as older:
        assert (await older.answer("create_task", description="Count."))["task_id"]
        with pytest.raises(MCPError) as unknown:
            await older.request("tasks/get", created.task_id)
        assert unknown.value.code == METHOD_NOT_FOUND


async def test_tsk_6_the_extension_is_advertised_and_has_three_methods(client: McpClient, url: str):
    async with mcp_client(url, mode="auto", tasks=True) as discovering:
        assert discovering.client.server_capabilities.extensions == {EXTENSION: {}}
    for method in ("tasks/list", "tasks/result", "tasks/create"):
        with pytest.raises(MCPError) as missing:
            await client.request(method, "some-task")
        assert missing.value.code == METHOD_NOT_FOUND, method


async def test_tsk_6_an_unknown_handle_is_an_error(client: McpClient, env: Environment):
    session = await env.start()
    for method, params in (("tasks/get", {}), ("tasks/update", {"inputResponses": {}}), ("tasks/cancel", {})):
        for unknown in ("no-such-task", session.handle.id, "x" * 300):
            with pytest.raises(MCPError) as refused:
                await client.request(method, unknown, **params)
            assert refused.value.code == INVALID_PARAMS, method


async def test_tsk_6_a_handle_of_another_owner_is_unknown(
    client: McpClient, monkeypatch: pytest.MonkeyPatch, env: Environment
):
    created = await client.create("create_task", description="Count.")
    monkeypatch.setattr(tasks, "caller_of", lambda scope: Caller("key:ada", "", "Ada", "admin"))
    with pytest.raises(MCPError) as refused:
        await client.task(created.task_id)
    assert refused.value.code == INVALID_PARAMS


async def test_tsk_6_the_header_that_routes_must_name_the_task(client: McpClient, env: Environment):
    created = await client.create("create_task", description="Count.")

    class Unrouted(TaskRequest):
        name_param = None

    request = Unrouted(method="tasks/get", params=TaskParams(taskId=created.task_id))
    with pytest.raises(MCPError) as refused:
        await client.client.session.send_request(request, Answer)
    assert refused.value.code == HEADER_MISMATCH


UNFIT_ANSWERS: list[Any] = [
    {"action": "accept"},
    {"action": "accept", "content": {}},
    {"action": "accept", "content": {"decision": "maybe"}},
    {"action": "accept", "content": {"decision": "approve", "approve": False}},
    {"action": "yes"},
    "yes",
]


async def test_agt_8_an_approval_is_an_elicitation_that_only_a_valid_answer_decides(
    client: McpClient, env: Environment
):
    task_id, requests = await awaiting(env, client)
    ((key, request),) = requests.items()
    form = form_of(request)
    assert "Tool: send_mail\nServer: built in\n" in form["message"]
    assert form["message"].endswith('Arguments:\n  to: "bob"')
    assert form["requestedSchema"]["required"] == ["decision"]

    for unfit in UNFIT_ANSWERS:
        with pytest.raises(MCPError) as refused:
            await client.request("tasks/update", task_id, inputResponses={key: unfit})
        assert refused.value.code == INVALID_PARAMS, unfit
        assert (await client.task(task_id))["inputRequests"] == requests

    for ignored in ({}, {"no-such-key": {"ignored": True}}, {key: {"action": "cancel"}}):
        assert await client.request("tasks/update", task_id, inputResponses=ignored) == {"resultType": "complete"}
        assert (await client.task(task_id))["inputRequests"] == requests

    answer = {key: {"action": "accept", "content": {"decision": "approve"}}}
    for _ in range(2):
        assert await client.request("tasks/update", task_id, inputResponses=answer) == {"resultType": "complete"}
    task = await client.until(task_id, "completed")
    assert task["result"]["structuredContent"]["result"]["answer"] == "done"
    assert [call.name for call in env.tools.calls] == ["send_mail"]


async def test_agt_8_a_rejection_reaches_the_model_and_the_task_continues(client: McpClient, env: Environment):
    task_id, requests = await awaiting(env, client, ("send_mail", {"to": "bob"}), ("send_mail", {"to": "eve"}))
    first, second = requests
    reject = {"action": "accept", "content": {"decision": "reject", "reason": "Not today."}}
    answers = {first: {"action": "decline"}, second: reject}
    await client.request("tasks/update", task_id, inputResponses=answers)
    await client.until(task_id, "completed")
    assert env.tools.calls == []
    results = [message.content for message in env.vendor.requests[-1].messages if message.role == "tool"]
    assert ["Reason: Not today." in result for result in results] == [False, True]


async def test_agt_8_calls_are_decided_one_by_one_each_under_its_own_key(client: McpClient, env: Environment):
    task_id, requests = await awaiting(env, client, ("send_mail", {"to": "bob"}), ("send_mail", {"to": "eve"}))
    first, second = requests
    approve = {"action": "accept", "content": {"decision": "approve"}}
    await client.request("tasks/update", task_id, inputResponses={first: approve})
    task = await client.task(task_id)
    assert (task["status"], list(task["inputRequests"])) == ("input_required", [second])
    await client.request("tasks/update", task_id, inputResponses={second: {"action": "decline"}})
    await client.until(task_id, "completed")
    assert [call.args for call in env.tools.calls] == [{"to": "bob"}]


async def test_api_4_a_second_persons_late_decision_is_audited_as_rejected(
    client: McpClient, env: Environment, url: str, http: Any, monkeypatch: pytest.MonkeyPatch
):
    task_id, requests = await awaiting(env, client)
    awaiting_calls = tasks.awaiting_calls

    async def then_rejected(*args: Any) -> Any:
        calls = await awaiting_calls(*args)
        for call in calls:
            body = {"args_digest": call.approval.args_digest, "decision": "reject"}
            await http.post(f"/workflow/{call.workflow_id}/approvals/{call.approval.call_id}", json=body)
        return calls

    monkeypatch.setattr(tasks, "awaiting_calls", then_rejected)
    approve = {"action": "accept", "content": {"decision": "approve"}}
    await client.request("tasks/update", task_id, inputResponses=dict.fromkeys(requests, approve))
    await client.until(task_id, "completed")
    async with httpx.AsyncClient(base_url=url) as of_server:
        entries = (await of_server.get("/audit", params={"action": "approve"})).json()["entries"]
    assert [(one["operation"], one["status"]) for one in entries] == [("mcp:tasks/update", 409)]
    assert env.tools.calls == []


async def test_agt_8_an_approval_of_a_sub_task_is_requested_at_its_parent_task(client: McpClient, env: Environment):
    env.tools.specs = [ToolSpec(name="send_mail")]
    env.vendor.answer = mailing_sub_task
    created = await client.create("create_task", description="Tell bob.")
    ((key, request),) = (await client.until(created.task_id, "input_required"))["inputRequests"].items()
    assert "Tool: send_mail" in form_of(request)["message"]
    assert ".task-1" in form_of(request)["message"]
    approve = {"action": "accept", "content": {"decision": "approve"}}
    await client.request("tasks/update", created.task_id, inputResponses={key: approve})
    task = await client.until(created.task_id, "completed")
    assert task["result"]["structuredContent"]["result"]["answer"] == "All is done."
    assert [call.args for call in env.tools.calls] == [{"to": "bob"}]


async def test_agt_8_a_decision_names_the_person_who_sends_it(temporal: Client, env: Environment):
    ann = Caller("key:1", "", "Ann", "approver")
    async with (
        served(temporal, env.settings, partials=env.partials, caller=ann) as url,
        mcp_client(url, tasks=True) as client,
        AsyncClient(base_url=url) as http,
    ):
        task_id, requests = await awaiting(env, client)
        decline = {key: {"action": "decline"} for key in requests}
        await client.request("tasks/update", task_id, inputResponses=decline)
        done = await client.until(task_id, "completed")
        session = done["result"]["structuredContent"]["workflow_id"]
        (turn,) = (await http.get(f"/workflow/{session}/conversation/full")).json()["messages"]
        (call,) = turn["reasoning_trajectory"]["steps"][0]["tool_calls"]
        assert (call["approval"]["decision"], call["approval"]["decided_by"]) == ("reject", "Ann")


async def test_agt_8_a_client_without_elicitation_sees_that_the_task_awaits_approval(
    url: str, env: Environment, client: McpClient
):
    task_id, _ = await awaiting(env, client)
    async with mcp_client(url, tasks=True, elicits=False) as silent:
        task = await silent.task(task_id)
        assert (task["status"], "inputRequests" in task) == ("working", False)
        assert "waits for a decision" in task["statusMessage"]


async def test_tsk_6_a_failed_task_is_completed_with_an_error_as_its_result(client: McpClient, env: Environment):
    env.vendor.script = [ModelError("auth", "no key")]
    created = await client.create("create_task", description="Count.")
    task = await client.until(created.task_id, "completed", "failed")
    assert task["status"] == "completed"
    assert task["result"]["isError"] is True
    assert task["result"]["structuredContent"]["status"] == "failed"


async def test_tsk_6_cancelling_a_task_stops_it_and_may_be_repeated(client: McpClient, env: Environment):
    env.vendor.gate.close()
    created = await client.create("create_task", description="Count.")
    for _ in range(2):
        assert await client.request("tasks/cancel", created.task_id) == {"resultType": "complete"}
    await client.until(created.task_id, "cancelled")
    assert await client.request("tasks/cancel", created.task_id) == {"resultType": "complete"}


async def test_tsk_6_a_handle_stays_completed_after_further_messages_to_its_task(client: McpClient, env: Environment):
    env.vendor.script = [says("One.")]
    created = await client.create("create_task", description="Count.")
    before = await client.until(created.task_id, "completed")
    task_id = before["result"]["structuredContent"]["task_id"]
    env.vendor.gate.close()
    await client.answer("message_task", task_id=task_id, text="Go on.")
    assert (await client.answer("get_task", task_id=task_id))["status"] == "working"
    after = await client.task(created.task_id)
    assert after["status"] == "completed"
    assert after["result"]["structuredContent"]["result"]["answer"] == "One."


async def test_tsk_6_a_task_that_no_worker_answers_for_is_working_and_can_be_cancelled(
    temporal: Client, tmp_path: Path
):
    settings = Settings(task_queue=f"nobody-{tmp_path.name}", state_dir=tmp_path)
    async with served(temporal, settings, timeouts=product()) as url, mcp_client(url, tasks=True) as client:
        created = await client.create("create_task", description="Count.")
        task = await client.task(created.task_id)
        assert (task["status"], "No worker" in task["statusMessage"]) == ("working", True)
        assert await client.request("tasks/cancel", created.task_id) == {"resultType": "complete"}


async def test_tsk_6_without_the_store_of_handles_a_client_gets_the_task_itself(client: McpClient, env: Environment):
    env.vendor.script = [says("One.")]
    created = await client.create("create_task", description="Count.")
    file = broken(env)
    try:
        assert (await client.answer("create_task", description="Count."))["task_id"]
        with pytest.raises(MCPError) as failed:
            await client.task(created.task_id)
        assert failed.value.code == INTERNAL_ERROR
    finally:
        heal(file)
    assert (await client.until(created.task_id, "completed"))["result"]["isError"] is False


async def test_tsk_6_a_prompt_is_a_task_of_its_own_that_waits_its_turn(client: McpClient, env: Environment):
    env.vendor.gate.close()
    env.vendor.script = [says("One."), says("Three.")]
    session = {"workflow_id": "mcp-2", "start": True}
    handles = [
        (await client.create("send_prompt", message=text, **session)).task_id for text in ("one", "two", "three")
    ]
    waiting = await client.task(handles[1])
    assert (waiting["status"], waiting["statusMessage"]) == ("working", "The prompt waits in the queue at position 1.")
    await client.request("tasks/cancel", handles[1])
    assert (await client.until(handles[1], "cancelled"))["statusMessage"]
    env.vendor.gate.open()
    answers = [(await client.until(handle, "completed"))["result"]["structuredContent"] for handle in handles[::2]]
    assert [answer["result"]["answer"] for answer in answers] == ["One.", "Three."]
    assert answers[0]["task_id"] == "mcp-2"


async def test_tsk_6_cancelling_a_prompt_stops_its_turn_and_no_other(client: McpClient, env: Environment):
    env.vendor.gate.close()
    env.vendor.script = [says("One."), says("Two.")]
    session = {"workflow_id": "mcp-3", "start": True}
    first = await client.create("send_prompt", message="one", **session)
    second = await client.create("send_prompt", message="two", **session)
    await client.request("tasks/cancel", first.task_id)
    await client.until(first.task_id, "cancelled")
    env.vendor.gate.open()
    assert (await client.until(second.task_id, "completed"))["result"]["isError"] is False
    await client.request("tasks/cancel", first.task_id)


async def test_tsk_6_a_deleted_session_leaves_no_task(client: McpClient, env: Environment, http: Any):
    env.vendor.script = [says("One.")]
    created = await client.create("create_task", description="Count.")
    task = await client.until(created.task_id, "completed")
    deleted = await http.delete(f"/workflow/{task['result']['structuredContent']['workflow_id']}")
    assert deleted.status_code in (200, 202)
    with pytest.raises(MCPError) as refused:
        await client.task(created.task_id)
    assert refused.value.code == INVALID_PARAMS
