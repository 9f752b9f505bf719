"""The official conformance suite of MCP against the gateway: TSK-6. `docs/mcp.md` says what of it applies.

Scenarios of the Tasks extension call tools that the suite names. Here they are tools that start tasks of ours, whose
model does what the suite expects of the tool.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from mcp_types import ToolAnnotations
from pydantic import BaseModel, ConfigDict

from tests.harness import BOUND, Environment, Gate, asks, says
from tests.interop.npm import installed, node
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.api.changes import RequestChanges
from turnkeeper.api.services import Services
from turnkeeper.features.mcp import tasks, tools
from turnkeeper.features.mcp.tools import Tool, Work
from turnkeeper.features.tasks.session.task import CreateTask
from turnkeeper.models.http_responses import Task
from turnkeeper.models.transcript.model_call import ModelRequest, ToolSpec

PROGRAM = Path(__file__).parent / "mcp"

MAX_LINE_BYTES = 2**24

SCENARIOS = {
    "2025-11-25": {
        "server-initialize": set(),
        "ping": set(),
        "tools-list": set(),
        "dns-rebinding-protection": set(),
    },
    "2026-07-28": {
        "server-stateless": {
            # They call tools of the suite's own, or need a stream.
            "sep-2575-server-rejects-undeclared-capability",
            "sep-2575-missing-capability-http-400",
            "sep-2575-http-server-no-independent-requests-on-stream",
            "sep-2575-server-no-log-without-loglevel",
        },
        "tools-list": set(),
        "server-sse-multiple-streams": set(),
        "dns-rebinding-protection": set(),
        "caching": {
            # There are no prompts and no resources.
            "sep-2549-prompts-list-caching-hints",
            "sep-2549-resources-list-caching-hints",
            "sep-2549-resources-templates-list-caching-hints",
        },
        "http-header-validation": set(),
    },
    "io.modelcontextprotocol/tasks": {
        # A task of ours ends with a result, which may be an error; with none of JSON-RPC.
        "tasks-lifecycle": {"sep-2663-tasks-get-status-failed"},
        "tasks-capability-negotiation": set(),
        "tasks-wire-fields": set(),
        "tasks-request-state-removal": set(),
        "tasks-mrtr-input": set(),
        "tasks-request-headers": set(),
        "tasks-dispatch-and-envelope": set(),
    },
}
"""By version: the scenarios that apply, and of each the checks that do not."""

CASES = [
    pytest.param(version, scenario, id=f"{version}-{scenario}")
    for version, scenarios in SCENARIOS.items()
    for scenario in scenarios
]


class SuiteArguments(BaseModel):
    """Whatever the suite passes to its tools."""

    model_config = ConfigDict(extra="allow")


class Greeting(BaseModel):
    text: str

    def model_dump_json(self, **_: Any) -> str:
        return self.text


async def greet(services: Services, changes: RequestChanges, arguments: SuiteArguments) -> Greeting:
    return Greeting(text=f"Hello, {arguments.name}!")


def starting(name: str) -> Tool[SuiteArguments]:
    """A tool of the suite, as a task whose description has the tool's name and arguments."""

    async def run(services: Services, changes: RequestChanges, arguments: SuiteArguments) -> Work:
        description = json.dumps([name, arguments.model_dump(), str(uuid4())])
        return await tools.create_task(services, changes, CreateTask(description=description))

    return Tool(name, "writer", name, "A tool of the suite.", SuiteArguments, Task, run, ToolAnnotations())


@pytest.fixture
def suite_tools(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tools that scenarios of the Tasks extension call, and a model that works as they are expected to."""
    hints = ToolAnnotations(read_only_hint=True)
    greeting = Tool("greet", "reader", "greet", "A tool of the suite.", SuiteArguments, Greeting, greet, hints)
    monkeypatch.setitem(tools.TOOLS, "greet", greeting)
    for name in ("slow_compute", "failing_job", "confirm_delete", "multi_input", "protocol_error_job"):
        monkeypatch.setitem(tools.TOOLS, name, starting(name))
    env.tools.specs = [ToolSpec(name="delete_file")]
    started = set[str]()

    def answer(request: ModelRequest) -> Any:
        description = next(message.content for message in request.messages if message.role == "user").split("\n")[0]
        name, arguments, _ = json.loads(description)
        is_first = description not in started
        started.add(description)
        calls = {"confirm_delete": 1, "multi_input": 2}.get(name, 0)
        if calls and is_first:
            return asks(*[("delete_file", {"number": number}) for number in range(calls)])
        if name == "failing_job":
            return ModelError("bad_request", "It failed.")
        if arguments.get("seconds", 0) >= 60:
            return [Gate(is_open=False), says("never")]
        return says("done")

    env.vendor.answer = answer
    read_decisions = tasks.read_decisions

    def of_the_suite(calls: Any, responses: dict[str, Any]) -> Any:
        """The suite fills in a form of its own instead of ours."""
        decided = {
            key: {**response, "content": {"decision": "approve"}}
            for key, response in responses.items()
            if isinstance(response, dict) and response.get("action") == "accept"
        }
        return read_decisions(calls, decided)

    monkeypatch.setattr(tasks, "read_decisions", of_the_suite)


@pytest.fixture(scope="module")
async def suite() -> AsyncIterator[asyncio.subprocess.Process]:
    """The suite, loaded once for all scenarios."""
    pipe = asyncio.subprocess.PIPE
    command = [str(node()), str(installed(PROGRAM) / "suite.mjs")]
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=MAX_LINE_BYTES)
    yield process
    process.kill()
    await process.wait()


async def checks_of(
    suite: asyncio.subprocess.Process, scenario: str, version: str, url: str, folder: Path
) -> list[dict[str, Any]]:
    """Run a scenario of the suite, and return what it has checked."""
    spec = ["--spec-version", version] if version[0].isdigit() else []
    arguments = ["server", "--url", f"{url}/mcp", "--scenario", scenario, *spec, "-o", str(folder)]
    assert suite.stdin is not None
    assert suite.stdout is not None
    suite.stdin.write(json.dumps(arguments).encode() + b"\n")
    async with asyncio.timeout(BOUND):
        output = await suite.stdout.readline()
    return _results(folder) or pytest.fail(output.decode())


def _results(folder: Path) -> list[dict[str, Any]]:
    return [check for file in folder.glob("*/checks.json") for check in json.loads(file.read_text())]


@pytest.mark.parametrize(("version", "scenario"), CASES)
@pytest.mark.usefixtures("suite_tools")
async def test_tsk_6_a_scenario_of_the_conformance_suite_passes(
    suite: asyncio.subprocess.Process, url: str, tmp_path: Path, version: str, scenario: str
):
    checks = await checks_of(suite, scenario, version, url, tmp_path)
    failures = {check["id"]: check.get("errorMessage") for check in checks if check["status"] == "FAILURE"}
    passed = [check["id"] for check in checks if check["status"] == "SUCCESS"]
    assert set(failures) == SCENARIOS[version][scenario], failures
    assert passed
