"""A gateway that stops answers every waiting request (API-2)."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.client import Client

from tests.api.conftest import serving
from tests.harness import BOUND, TASK_SECONDS, Environment, patient
from tests.waiting import until
from turnkeeper.api.app import create_app
from turnkeeper.api.history.transcript_reader import TranscriptReader
from turnkeeper.features.mcp.tools import TOOLS
from turnkeeper.models.settings.settings import Settings

WAITS = {"wait", "wait_seconds"}

MCP_HEADERS = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}

WAITING_REQUESTS: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "send_prompt": ("POST", "/workflow/{session}/prompt?wait=60", {"message": "hi", "id": "p1"}),
    "get_conversation": ("GET", "/workflow/{idle}/conversation?wait=60&since_revision={revision}", None),
    "get_task": ("GET", "/tasks/{task}?wait_seconds=60", None),
    "mcp:get_task": (
        "POST",
        "/mcp",
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "get_task", "arguments": {"task_id": "{task}", "wait_seconds": 50}},
        },
    ),
}
"""A request of each operation that waits: method, path and body."""


def with_ids(value: Any, **ids: str) -> Any:
    if isinstance(value, dict):
        return {key: with_ids(part, **ids) for key, part in value.items()}
    return value.format(**ids) if isinstance(value, str) else value


def test_api_2_every_route_that_waits_is_covered_here(api_document: Any) -> None:
    operations = [operation for path in api_document["paths"].values() for operation in path.values()]
    waiting = {
        operation["operationId"]
        for operation in operations
        if WAITS & {parameter["name"] for parameter in operation.get("parameters", ())}
    }
    tools = {f"mcp:{tool.name}" for tool in TOOLS.values() if WAITS & set(tool.arguments.model_fields)}
    assert waiting | tools == WAITING_REQUESTS.keys()


async def test_api_2_every_waiting_request_gets_its_normal_response_at_sigterm(
    temporal: Client, env: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    env.vendor.gate.close()
    app = create_app(env.settings, client=temporal, partials=env.partials, timeouts=patient())
    async with serving(app) as gateway, httpx.AsyncClient(base_url=gateway.url, timeout=BOUND) as http:
        session, idle = [(await http.post("/workflow", json={})).json()["workflow_id"] for _ in range(2)]
        task = (await http.post("/tasks", json={"description": "Wait."})).json()["task_id"]
        update = (await http.get(f"/workflow/{idle}/conversation")).json()["conversation_update"]
        ids = {"session": session, "idle": idle, "task": task, "revision": str(update["revision"])}
        pending = {
            operation: asyncio.create_task(
                http.request(
                    method,
                    with_ids(path, **ids),
                    json=with_ids(body, **ids),
                    headers=MCP_HEADERS if path == "/mcp" else {},
                )
            )
            for operation, (method, path, body) in WAITING_REQUESTS.items()
        }
        # One limit of each request itself, and one of its wait.
        await until(lambda: len(app.state.closing._limits) == 2 * len(pending))
        gateway.stop()
        answers = dict(zip(pending, await asyncio.gather(*pending.values()), strict=True))
    assert {name: (answer.status_code, answer.headers["content-type"]) for name, answer in answers.items()} == {
        "send_prompt": (202, "application/json"),
        "get_conversation": (200, "application/json"),
        "get_task": (200, "application/json"),
        "mcp:get_task": (200, "application/json"),
    }
    assert answers["send_prompt"].json()["message_id"] == "p1"
    assert answers["get_conversation"].json()["conversation_update"]["updated_messages"] == []
    assert answers["get_task"].json()["status"] == "working"
    assert answers["mcp:get_task"].json()["result"]["structuredContent"]["status"] == "working"
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    env.vendor.gate.open()


async def test_api_2_a_request_cut_short_by_a_shutdown_is_a_503_with_retry_after(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reading = asyncio.Event()

    async def hang(*_: object, **__: object) -> None:
        reading.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(TranscriptReader, "page", hang)
    settings = Settings(state_dir=tmp_path, task_timeout=TASK_SECONDS)
    async with (
        serving(create_app(settings, client=temporal, timeouts=patient(stop=0))) as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=BOUND) as http,
    ):
        pending = asyncio.create_task(http.get("/workflow/s/conversation/full"))
        async with asyncio.timeout(BOUND):
            await reading.wait()
        gateway.stop()
        answer = await pending
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert (answer.json()["type"], answer.headers["retry-after"]) == ("urn:turnkeeper:problem:stopping", "2")
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
