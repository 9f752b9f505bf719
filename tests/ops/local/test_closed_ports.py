"""Every port on which a stack listens, tried by a web page in a real browser and by a program (OPS-2, API-4)."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, Error, Route

from tests.clients.page.conftest import launched
from tests.ops.conftest import needs_linux
from tests.ops.local.test_private_stack import BOUND, descendants, running
from turnkeeper.clients.terminal.command_options import Gateway
from turnkeeper.ops.local.processes import BLOCKED_PORTS, LOOPBACK, reserved_blocked_port
from turnkeeper.stores.temporal.endpoint import EmbeddedServer

pytestmark = needs_linux

SECRET = "the code is 4711"

READS = [
    "/api/v1/namespaces/default/workflows",
    "/temporal/api/v1/namespaces/default/workflows",
    "/api/v1/namespaces/default/workflows/{session}/history",
    "/namespaces/default/workflows",
    "/metrics",
    "/workflow",
]
START = {"workflowType": {"name": "AgenticAIWorkflow"}, "taskQueue": {"name": "turnkeeper"}}
SIGNAL = {"signalName": "prompt", "input": {"payloads": []}}
WRITES: dict[str, dict[str, Any]] = {
    "/api/v1/namespaces/default/workflows/intruder": START,
    "/temporal/api/v1/namespaces/default/workflows/intruder": START,
    "/api/v1/namespaces/default/workflows/{session}/signal/prompt": SIGNAL,
    "/api/v1/namespaces/default/workflows/{session}/terminate": {},
    "/temporalx/api/v1/namespaces/default/workflows/{session}/terminate": {},
    "/nexus/endpoints/e/services/s/o": {},
    "/temporal.api.workflowservice.v1.WorkflowService/ListWorkflowExecutions": {"namespace": "default"},
    "/workflow": {"id": "intruder"},
}

# Same-origin requests, whose responses the page can read, and others that it only sends.
ATTACK = """async ({reads, writes}) => {
  const seen = [];
  const send = async (path, options) => {
    try {
      const response = await fetch(path, {...options, signal: AbortSignal.timeout(5_000)});
      seen.push([path, response.status, await response.text()]);
    } catch (error) { seen.push([path, 0, String(error)]); }
  };
  for (const path of reads) await send(path, {});
  for (const [path, body] of writes) {
    for (const type of ["application/json", "text/plain", "application/grpc-web+proto"]) {
      await send(path, {method: "POST", body, headers: {"content-type": type}});
    }
  }
  return seen;
}"""


@dataclass
class Stack:
    """A running `turnkeeper up` without keys, and a session in it."""

    gateway: str
    ports: set[tuple[str, int]]
    """Where the stack listens."""
    session: str
    web_ui: tuple[str, int]

    @property
    def reads(self) -> list[str]:
        return [path.replace("{session}", self.session) for path in READS]

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [(path.replace("{session}", self.session), json.dumps(body)) for path, body in WRITES.items()]

    async def sessions(self) -> list[dict[str, Any]]:
        """Return the sessions as Temporal has them, with their status and how much happened in each."""
        async with httpx.AsyncClient(base_url=self.gateway, timeout=BOUND) as http:
            response = await http.get("/temporal/api/v1/namespaces/default/workflows")
        executions = response.raise_for_status().json()["executions"]
        return [{name: one.get(name) for name in ("execution", "status", "historyLength")} for one in executions]


def listening_addresses(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Return the TCP addresses on which these processes listen."""
    inodes = {os.readlink(link) for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    addresses = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            host, _, port = fields[1].partition(":")
            addresses.add((".".join(str(part) for part in reversed(bytes.fromhex(host))), int(port, 16)))
    return addresses


def test_ops_2_two_stacks_started_at_once_reserve_different_ports() -> None:
    with reserved_blocked_port() as first, reserved_blocked_port() as second:
        assert first != second
        for port in (first, second):  # the reservation lets the server listen there
            with socket.create_server((LOOPBACK, port)) as server:
                assert server.getsockname() == (LOOPBACK, port)


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("ports")
    own = ("TURNKEEPER_", "TEMPORAL_", "ANTHROPIC_", "OPENAI_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    env |= {f"TURNKEEPER_{port}": "0" for port in ("API_PORT", "TEMPORAL_PORT")}
    env |= {"HOME": str(folder), "TURNKEEPER_OFFLINE_WORDS_PER_SECOND": "0"}
    async with AsyncExitStack() as exits:
        process = await exits.enter_async_context(running(folder, env))
        gateway = Gateway.model_validate_json(Gateway.file(folder / ".turnkeeper").read_text())
        http = await exits.enter_async_context(httpx.AsyncClient(base_url=gateway.url, timeout=BOUND))
        session = (await http.post("/workflow", json={"title": SECRET})).raise_for_status().json()["workflow_id"]
        await http.post(f"/workflow/{session}/prompt?wait=60", json={"message": SECRET})
        web_ui = httpx.URL(EmbeddedServer.recorded(folder / ".turnkeeper").ui_url)
        ports = listening_addresses(descendants(process.pid))
        yield Stack(gateway.url, ports, session, (web_ui.host, web_ui.port))


async def test_ops_2_the_web_ui_has_its_own_address_and_a_port_that_pages_cannot_use(stack: Stack) -> None:
    host, port = stack.web_ui
    assert host != LOOPBACK
    assert host.startswith("127.")
    assert port in BLOCKED_PORTS
    assert [address for address in stack.ports if address[0] != LOOPBACK] == [stack.web_ui]


async def test_ops_2_http_reaches_no_session_on_any_port_but_the_gateways_and_the_web_uis(stack: Stack) -> None:
    before = await stack.sessions()
    answers = []
    async with httpx.AsyncClient(timeout=BOUND) as http:
        for host, port in stack.ports - {stack.web_ui, (LOOPBACK, httpx.URL(stack.gateway).port)}:
            for name in (f"{host}:{port}", "localhost", "evil.example", ""):
                calls = [("GET", path, None) for path in stack.reads] + [("POST", *write) for write in stack.writes]
                for method, path, body in calls:
                    try:
                        answer = await http.request(
                            method, f"http://{host}:{port}{path}", content=body, headers={"Host": name}
                        )
                    except httpx.TransportError:  # it speaks HTTP/2 only
                        continue
                    answers.append((path, answer.status_code, answer.text))
    assert {path for path, status, _ in answers if status < 300} == {"/metrics"}
    assert not [text for _, _, text in answers if SECRET in text or stack.session in text]
    assert await stack.sessions() == before


async def attack(browser: Browser, origin: str, stack: Stack) -> list[tuple[str, int, str]]:
    """Return what a page at `origin` reads; nothing but its one document comes from the test."""
    page = await browser.new_page()
    page.set_default_timeout(BOUND * 1000)

    async def answer(route: Route) -> None:
        await route.fulfill(content_type="text/html", body="<!doctype html><title>A game</title><body>")

    try:
        await page.route(f"{origin}/game", answer)
        await page.goto(f"{origin}/game")
        return await page.evaluate(ATTACK, {"reads": stack.reads, "writes": stack.writes})
    except Error as error:
        if "ERR_UNSAFE_PORT" not in error.message:
            raise
        return []
    finally:
        await page.close()


async def test_ops_2_a_web_page_that_tries_every_port_reads_and_changes_nothing(stack: Stack) -> None:
    before = await stack.sessions()
    names = {host: f"rebind-{number}.example" for number, host in enumerate({host for host, _ in stack.ports})}
    rules = ",".join(f"MAP {name} {host}" for host, name in names.items())
    async with launched(f"--host-resolver-rules={rules}", "--disable-features=LocalNetworkAccessChecks") as browser:
        results = await asyncio.gather(
            *(attack(browser, f"http://{names[host]}:{port}", stack) for host, port in sorted(stack.ports))
        )
    seen = [one for result in results for one in result]
    assert seen
    # While many other stacks run, no port is left that pages can't use, and the metrics have another.
    readable = {"/metrics"} if sum(port in BLOCKED_PORTS for _, port in stack.ports) < 3 else set()
    assert {path for path, status, _ in seen if 200 <= status < 300} <= readable
    assert not [text for _, _, text in seen if SECRET in text or stack.session in text]
    assert await stack.sessions() == before


async def test_ops_2_the_web_ui_works_through_the_gateway(stack: Stack) -> None:
    """Its pages, files and requests, with its own token; the browser refuses nothing by the page's policy."""
    complaints: list[str] = []
    async with launched() as browser:
        page = await browser.new_page()
        page.set_default_timeout(BOUND * 1000)
        page.on("console", lambda message: complaints.append(message.text) if "Policy" in message.text else None)
        await page.goto(f"{stack.gateway}/temporal/namespaces/default/workflows/{stack.session}")
        await page.get_by_text("Event History").first.wait_for()
        await page.get_by_text("User Metadata").first.click()
        await page.frame_locator("#user-metadata-current-details").get_by_text("Status:").wait_for()
        status = await page.evaluate(
            """async (path) => {
              const token = document.cookie.match(/_csrf=([^;]*)/)[1];
              const headers = {"content-type": "application/json", "x-csrf-token": token};
              return (await fetch(path, {method: "POST", headers, body: "{}"})).status;
            }""",
            f"/temporal/api/v1/namespaces/default/workflows/{stack.session}/cancel",
        )
    assert status == 200
    assert complaints == []
