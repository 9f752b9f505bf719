"""The seven tools over MCP, by the official Python client: TSK-6."""

import json
import re
from pathlib import Path
from textwrap import indent
from typing import Any

import httpx2
import pytest
from httpx import AsyncClient
from jsonschema import Draft202012Validator
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND

from tests.features.mcp.client import McpClient, mcp_client
from tests.harness import LONG_PAUSE, Environment, asks, says
from tests.waiting import until
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.features.tasks.task_reader import TaskReader
from turnkeeper.models.transcript.model_call import ToolSpec

NAMES = [
    "create_task",
    "get_task",
    "list_tasks",
    "message_task",
    "cancel_task",
    "get_conversation",
    "send_prompt",
]

HANDSHAKE = "legacy"
STATELESS = "2026-07-28"


async def checked(client: McpClient, name: str, /, **arguments: Any) -> dict[str, Any]:
    """Return what a tool answers, once it is seen to be what the tool's schema promises, as text too."""
    result = await client.call(name, **arguments)
    assert not result.is_error, result
    tools = {tool.name: tool for tool in (await client.client.list_tools()).tools}
    Draft202012Validator(tools[name].output_schema or {}).validate(result.structured_content)
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


@pytest.mark.parametrize("mode", [STATELESS, HANDSHAKE])
async def test_tsk_6_seven_tools_are_listed_with_schemas_and_annotations(url: str, mode: str):
    async with mcp_client(url, mode=mode) as client:
        tools = (await client.client.list_tools()).tools
        assert [tool.name for tool in tools] == NAMES
        for tool in tools:
            assert tool.title
            assert tool.description
            assert tool.annotations is not None
            Draft202012Validator.check_schema(tool.input_schema)
            assert tool.output_schema is not None
            Draft202012Validator.check_schema(tool.output_schema)
            assert tool.input_schema["type"] == tool.output_schema["type"] == "object"
        reads = {tool.name for tool in tools if tool.annotations and tool.annotations.read_only_hint}
        assert reads == {"get_task", "list_tasks", "get_conversation"}


@pytest.mark.parametrize("mode", [STATELESS, HANDSHAKE])
async def test_tsk_6_a_task_is_created_and_waited_for(url: str, env: Environment, mode: str):
    env.vendor.gate.close()
    env.vendor.script = [says("Forty-two.")]
    async with mcp_client(url, mode=mode) as client:
        created = await checked(client, "create_task", description="Count.", title="Counting")
        assert created["status"] == "working"
        assert created["result"] is None
        env.vendor.gate.open()
        task = await checked(client, "get_task", task_id=created["task_id"], wait_seconds=20)
        assert (task["status"], task["result"]["answer"]) == ("completed", "Forty-two.")
        assert task["title"] == "Counting"


async def test_tsk_6_create_real_task_is_an_unlisted_alias_of_the_original_design(url: str, env: Environment):
    env.vendor.script = [says("Done.")]
    async with mcp_client(url) as client:
        created = await client.answer(
            "create_real_task",
            description="Implement JWT token authentication system",
            priority="P1",
            client_cwd=None,
            background_context=None,
            conversation_history=[
                {"role": "user", "content": "I need user authentication", "timestamp": "2025-10-29T10:00:00"},
                {"role": "orchestrator", "content": "I'll help you.", "timestamp": "2025-10-29T10:00:15"},
            ],
            expected_deliverables=["JWT token generation function"],
        )
        task = await client.answer("get_task", task_id=created["task_id"], wait_seconds=20)
        assert task["status"] == "completed"
        (conversation,) = (await client.answer("get_conversation", workflow_id=created["workflow_id"]))["turns"]
        assert "[1] 👤 User (10:00:00):\n    I need user authentication" in conversation["user_message"]


async def test_tsk_6_the_same_idempotency_key_gives_the_same_task(url: str, env: Environment):
    env.vendor.script = [says("Once.")]
    async with mcp_client(url) as client:
        first = await client.answer("create_task", description="Count.", idempotency_key="k1")
        again = await client.answer("create_task", description="Count.", idempotency_key="k1")
        assert first["task_id"] == again["task_id"]


async def test_tsk_6_warnings_about_a_changed_history_come_with_the_task(url: str, env: Environment):
    async with mcp_client(url) as client:
        history = [
            {"role": "user", "content": "hello", "timestamp": "2025-10-29T10:00:00"},
            {"role": "user", "content": ""},
        ]
        result = await client.call("create_task", description="Count.", conversation_history=history)
        assert result.content[1].text.startswith("Warning: conversation_history[1]")


WRONG_ARGUMENTS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["description: is required", "missing_field", "an object without keys"]),
    ({"description": "  "}, ["description: is blank"]),
    ({"description": "x", "priority": "P9"}, ["priority: must be", "(invalid_value; given: 'P9')"]),
    ({"description": "x", "colour": "red"}, ["colour: unknown field (allowed: description"]),
    ({"description": "x", "conversation_history": [{"role": "god", "content": "x"}]}, ["conversation_history[0]"]),
    ({"description": "x", "conversation_history": "inherit"}, ["parent: is needed"]),
    ({"description": "x", "parent": "nobody"}, ["There is no session 'nobody'"]),
]


async def test_tsk_6_wrong_arguments_are_a_result_that_names_field_reason_and_value(url: str):
    async with mcp_client(url) as client:
        for arguments, sentences in WRONG_ARGUMENTS:
            result = await client.call("create_task", **arguments)
            assert result.is_error
            for sentence in sentences:
                assert sentence in result.content[0].text


async def test_tsk_6_unknown_tools_and_methods_are_json_rpc_errors(url: str):
    async with mcp_client(url) as client:
        with pytest.raises(MCPError, match="no tool 'delete_everything'") as unknown:
            await client.call("delete_everything")
        assert unknown.value.code == INVALID_PARAMS
        with pytest.raises(MCPError) as missing:
            await client.client.list_prompts()
        assert missing.value.code == METHOD_NOT_FOUND


@pytest.mark.parametrize("mode", [STATELESS, HANDSHAKE])
async def test_tsk_6_a_bug_is_an_error_that_reveals_no_internals(url: str, mode: str, monkeypatch: pytest.MonkeyPatch):
    async def fails(*_: object) -> None:
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(TaskReader, "task", fails)
    async with mcp_client(url, mode=mode) as client:
        with pytest.raises(MCPError, match=r"(?i)internal error") as failed:
            await client.call("get_task", task_id="t1")
        assert (failed.value.code, "secret" in str(failed.value)) == (INTERNAL_ERROR, False)


async def test_tsk_6_a_task_is_messaged_and_its_conversation_read(url: str, env: Environment):
    env.vendor.script = [says("One."), says("Two.")]
    async with mcp_client(url) as client:
        task_id = (await client.answer("create_task", description="Count."))["task_id"]
        await client.answer("get_task", task_id=task_id, wait_seconds=20)
        messaged = await checked(client, "message_task", task_id=task_id, text="Go on.", id="m2")
        assert messaged["task_id"] == task_id

        async def answered_twice() -> dict[str, Any] | None:
            task = await client.answer("get_task", task_id=task_id, wait_seconds=20)
            return task if task["result"] and task["result"]["answer"] == "Two." else None

        await until(answered_twice)
        conversation = await checked(client, "get_conversation", workflow_id=task_id)
        assert [turn["agent_message"] for turn in conversation["turns"]] == ["One.", "Two."]
        assert not conversation["has_more"]
        newest = await checked(client, "get_conversation", workflow_id=task_id, limit=1)
        assert newest["has_more"]
        older = await checked(client, "get_conversation", workflow_id=task_id, before=newest["turns"][0]["id"])
        assert [turn["agent_message"] for turn in older["turns"]] == ["One."]


async def test_tsk_6_a_task_is_listed_and_cancelled(url: str, env: Environment):
    env.vendor.gate.close()
    async with mcp_client(url) as client:
        task_id = (await client.answer("create_task", description="Count."))["task_id"]

        async def listed() -> bool:
            page = await checked(client, "list_tasks")
            return task_id in [task["task_id"] for task in page["tasks"]]

        await until(listed, max_pause=LONG_PAUSE)
        cancelled = await checked(client, "cancel_task", task_id=task_id, reason="No need.")
        assert cancelled["task_id"] == task_id

        async def is_cancelled() -> bool:
            return (await client.answer("get_task", task_id=task_id))["status"] == "cancelled"

        await until(is_cancelled, max_pause=LONG_PAUSE)


async def test_tsk_6_a_prompt_starts_a_session_and_answers_with_a_task(url: str, env: Environment):
    env.vendor.script = [says("Hello.")]
    async with mcp_client(url) as client:
        arguments = {"workflow_id": "mcp-1", "message": "hi", "id": "m1", "start": True}
        task = await checked(client, "send_prompt", **arguments)
        assert (task["task_id"], task["workflow_id"]) == ("mcp-1", "mcp-1")

        async def answered() -> dict[str, Any] | None:
            again = await checked(client, "send_prompt", **arguments)
            return again if again["status"] == "completed" else None

        assert (await until(answered, max_pause=LONG_PAUSE))["result"]["answer"] == "Hello."
        (turn,) = (await client.answer("get_conversation", workflow_id="mcp-1"))["turns"]
        assert (turn["id"], turn["agent_message"]) == ("m1", "Hello.")
        unknown = await client.call("send_prompt", workflow_id="nobody", message="hi")
        assert "There is no session 'nobody'" in unknown.content[0].text


async def test_tsk_6_a_failed_task_says_why(url: str, env: Environment):
    env.vendor.script = [ModelError("auth", "no key")]
    env.vendor.gate.close()
    async with mcp_client(url) as client:
        task_id = (await client.answer("create_task", description="Count."))["task_id"]
        env.vendor.gate.open()
        task = await checked(client, "get_task", task_id=task_id, wait_seconds=20)
        assert (task["status"], task["error_type"]) == ("failed", "auth")
        assert task["error"]


async def test_tsk_6_waiting_for_a_task_ends_where_a_person_has_to_decide(url: str, env: Environment):
    env.tools.specs = [ToolSpec(name="send_mail")]
    env.vendor.script = [asks(("send_mail", {"to": "bob"})), says("done")]
    async with mcp_client(url) as client:
        task_id = (await client.answer("create_task", description="Write to Bob."))["task_id"]
        task = await client.answer("get_task", task_id=task_id, wait_seconds=20)
        assert (task["status"], task["approvals"]) == ("input_required", 1)


async def test_tsk_6_without_a_worker_a_task_is_accepted_and_works(http_alone: AsyncClient):
    call = {"name": "create_task", "arguments": {"description": "Count."}}
    answer = await http_alone.post(
        "/mcp",
        json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call},
        headers={"mcp-protocol-version": "2025-11-25", "accept": "application/json, text/event-stream"},
    )
    result = answer.json()["result"]
    assert result["isError"] is False
    assert result["structuredContent"]["status"] == "working"


async def test_tsk_6_the_page_on_mcp_names_every_tool_and_its_example_runs(
    url: str, env: Environment, capsys: pytest.CaptureFixture[str]
):
    page = (Path(__file__).parents[3] / "docs" / "mcp.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == NAMES
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    program = "async def main():\n" + indent(example.replace("http://127.0.0.1:8080", url), "    ")
    env.vendor.script = [says("Two files.")]
    names: dict[str, Any] = {}
    exec(program, names)
    await names["main"]()
    assert capsys.readouterr().out == "Two files.\n"


async def test_tsk_6_the_gateways_host_and_origin_checks_apply_to_mcp(url: str):
    async with httpx2.AsyncClient() as client:
        for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            answer = await client.post(
                f"{url}/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers=headers
            )
            assert answer.status_code == 403, headers
            assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("is_announced", [True, False])
async def test_tsk_6_a_body_over_the_gateways_limit_is_413(url: str, version: str, is_announced: bool):
    async def chunks():
        for _ in range(11):
            yield b" " * 1024**2

    body: Any = b" " * (11 * 1024**2) if is_announced else chunks()
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": version,
    }
    async with httpx2.AsyncClient(timeout=30) as client:
        answer = await client.post(f"{url}/mcp", content=body, headers=headers)
    assert answer.status_code == 413


async def test_tsk_6_only_post_is_accepted(http_nowhere: AsyncClient):
    for method in ("GET", "DELETE", "PUT", "OPTIONS"):
        answer = await http_nowhere.request(method, "/mcp", headers={"accept": "text/event-stream"})
        assert (answer.status_code, answer.headers["allow"]) == (204 if method == "OPTIONS" else 405, "OPTIONS, POST")


async def test_api_4_changes_by_mcp_tools_are_audited(url: str, env: Environment):
    async with mcp_client(url) as client, AsyncClient(base_url=url) as http:
        await client.answer("send_prompt", workflow_id="by-mcp", message="Hello.", id="m1", start=True)
        task = (await client.answer("create_task", description="Count."))["task_id"]
        await client.answer("message_task", task_id=task, text="Again.", id="m2")
        await client.answer("cancel_task", task_id=task)
        await client.call("cancel_task", task_id="by-mcp")
        await client.call("cancel_task", task_id="no id")
        await client.answer("get_task", task_id=task)
        entries = (await http.get("/audit")).json()["entries"][::-1]
    assert [(one["operation"], one["workflow_id"], one["message_id"], one["status"]) for one in entries] == [
        ("mcp:send_prompt", "by-mcp", "m1", 200),
        ("mcp:create_task", task, None, 200),
        ("mcp:message_task", task, "m2", 200),
        ("mcp:cancel_task", task, None, 200),
        ("mcp:cancel_task", "by-mcp", None, 404),
        ("mcp:cancel_task", None, None, 422),
    ]
    assert {entry["caller"] for entry in entries} == {"local"}
