"""The MCP inspector's command line against the gateway, in both eras of the protocol: TSK-6."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.features.mcp.test_tools import NAMES
from tests.harness import BOUND, Environment, says
from tests.interop.npm import installed, node

PROGRAM = Path(__file__).parent / "mcp"


async def inspect(url: str, folder: Path, era: str, method: str, *arguments: str) -> dict[str, Any]:
    """Return what the inspector prints of one request."""
    inspector = installed(PROGRAM) / "node_modules" / ".bin" / "mcp-inspector"
    servers = folder / "servers.json"
    server = {"type": "streamable-http", "url": f"{url}/mcp", "protocolEra": era}
    servers.write_text(json.dumps({"mcpServers": {"turnkeeper": server}}))
    options = ["--cli", "--config", servers, "--server", "turnkeeper", "--format", "json", "--method", method]
    pipe = asyncio.subprocess.PIPE
    command = [str(part) for part in (node(), inspector, *options, *arguments)]
    running = await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=pipe, stderr=pipe)
    async with asyncio.timeout(BOUND):
        output, errors = await running.communicate()
    assert running.returncode == 0, errors.decode()
    return json.loads(output)["result"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_tsk_6_the_inspector_lists_the_tools_and_completes_a_task(
    url: str, env: Environment, tmp_path: Path, era: str
):
    env.vendor.script = [says("Forty-two.")]
    tools = (await inspect(url, tmp_path, era, "tools/list", "--strict"))["tools"]
    assert [tool["name"] for tool in tools] == NAMES

    async def call(name: str, **arguments: Any) -> dict[str, Any]:
        options = ["--tool-name", name, "--tool-args-json", json.dumps(arguments)]
        return (await inspect(url, tmp_path, era, "tools/call", *options))["structuredContent"]

    created = await call("create_task", description="Count.")
    task = await call("get_task", task_id=created["task_id"], wait_seconds=20)
    assert (task["status"], task["result"]["answer"]) == ("completed", "Forty-two.")
