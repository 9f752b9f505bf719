"""Clients of the Tasks extension see gateway and worker die between question and answer: TSK-6, AGT-8, OPS-10."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from mcp.shared.exceptions import MCPError
from temporalio.client import Client

from tests.faults.scripted import next_worker, plan_of
from tests.faults.test_deletion_kills import gateway_process
from tests.faults.test_worker_kills import doomed_worker
from tests.features.mcp.client import mcp_client
from tests.harness import BOUND
from tests.interop.npm import installed, node
from tests.waiting import until

PROGRAM = Path(__file__).parent / "mcp"

SCRIPT = [{"text": "I am going to pay.", "calls": [{"name": "pay"}]}, {"text": "Paid."}]

TASK = {"description": "Pay.", "model": "offline:script/story", "tool_policy": {"pay": "ask"}}

APPROVED = {"action": "accept", "content": {"decision": "approve"}}

Kill = Callable[[], Awaitable[None]]


@asynccontextmanager
async def tasks_program(url: str, **arguments: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the package of the Tasks extension in Node."""
    program = installed(PROGRAM) / "tasks.mjs"
    command = [str(node()), str(program), f"{url}/mcp", "create_task", json.dumps(arguments)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def event_of(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    async with asyncio.timeout(BOUND):
        line = await process.stdout.readline()
    assert line, "the program has ended"
    return json.loads(line)


async def by_the_extensions_own_package(url: str, kill: Kill) -> dict[str, Any]:
    async with tasks_program(url, **TASK) as process:
        called = await event_of(process)
        assert (called["event"], called["kind"]) == ("called", "task")
        asked_for = await event_of(process)
        assert (asked_for["event"], asked_for["request"]["kind"]) == ("input", "elicitation"), asked_for
        assert "Tool: pay\n" in asked_for["request"]["params"]["message"]
        await kill()
        assert process.stdin is not None
        process.stdin.write(json.dumps(APPROVED).encode() + b"\n")
        settled = await event_of(process)
        assert (settled["event"], settled["outcome"]["status"]) == ("settled", "completed"), settled
        return settled["outcome"]["result"]


async def by_the_official_python_client(url: str, kill: Kill) -> dict[str, Any]:
    async with mcp_client(url, tasks=True) as client:
        handle = (await client.create("create_task", **TASK)).task_id
        ((key, _),) = (await client.until(handle, "input_required"))["inputRequests"].items()
        await kill()

        async def is_answered() -> bool:
            try:
                await client.request("tasks/update", handle, inputResponses={key: APPROVED})
            except MCPError as error:
                if "No worker answered" not in str(error):
                    raise
                return False  # the next worker is still starting
            return True

        await until(is_answered)
        return (await client.until(handle, "completed"))["result"]


@pytest.mark.parametrize("complete_task", [by_the_extensions_own_package, by_the_official_python_client])
async def test_tsk_6_a_task_survives_kills_of_gateway_and_worker(
    temporal: Client, tmp_path: Path, complete_task: Callable[[str, Kill], Awaitable[dict[str, Any]]]
):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "story.json").write_text(json.dumps({"responses": SCRIPT}))
    (tmp_path / "workspace").mkdir()
    settings = {
        "state_dir": str(tmp_path),
        "workspace_root": str(tmp_path / "workspace"),
        "task_queue": f"q-{uuid4()}",
        "task_timeout": 2,
    }
    async with (
        doomed_worker(plan_of(temporal, settings)) as worker,
        gateway_process(temporal, settings, tmp_path / "gateway.log") as gateway,
    ):

        async def kill() -> None:
            worker.process.kill()
            await worker.exit_code()
            await gateway.end()
            await gateway.start()

        async with asyncio.TaskGroup() as group:
            completing = group.create_task(complete_task(str(gateway.http.base_url).rstrip("/"), kill))
            await worker.exit_code()
            async with next_worker(temporal, settings):
                result = await completing
    assert result["isError"] is False
    assert result["structuredContent"]["result"]["answer"] == "Paid."
    assert (tmp_path / "ledger").read_text().count("\n") == 1
