"""A whole stack at log level debug, with canaries in every text of a conversation: API-4, OPS-6."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.features.access.auth.matrix import Column, key_of
from tests.ops.conftest import needs_linux
from tests.ops.local.test_private_files import open_to_others
from tests.servers import odd
from tests.vendors.apis import WIRES
from turnkeeper.clients.terminal.command_options import Gateway
from turnkeeper.models.settings.settings import Settings
from turnkeeper.ops.local.supervisor import own_command
from turnkeeper.testing.vendor_server import Answer, Call, Reply

BOUND = 120.0
"""Seconds that any wait lasts at most: a whole stack starts on a busy machine."""

LAST_LINE = "Ctrl-C stops everything"

KEYS = {
    "ANTHROPIC_API_KEY": "sk-ant-CANARY-key",
    "OPENAI_API_KEY": "sk-CANARY-key",
    "TURNKEEPER_OPENAI_CHAT__API_KEY": "CANARY-key-of-an-endpoint",
    "SOME_GATEWAYS_TOKEN": "CANARY-token",
}


def canary(name: str) -> str:
    return f"CANARY-{name} "


@dataclass
class PrivateStack:
    """`turnkeeper up` with keys of vendors and a caller, at log level debug, after a conversation with each vendor."""

    process: asyncio.subprocess.Process
    state: Path
    key: str
    """The key of the gateway's caller."""
    turns: list[dict[str, Any]]

    def log(self, name: str) -> str:
        return (self.state / "logs" / f"{name}.log").read_text()

    def processes(self) -> dict[str, int]:
        """Return the processes of the stack: server, worker, gateway and tool server."""
        pids: dict[str, int] = {}
        children = descendants(self.process.pid)
        for pid in children:
            line = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            for name, word in {
                "temporal": "start-dev",
                "worker": "worker",
                "api": "api",
                "tools": odd.__file__,
            }.items():
                if word in line:
                    pids[name] = pid
        return pids


def descendants(pid: int) -> list[int]:
    """Return the child processes of a process and of its threads."""
    below: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            below += [child, *descendants(child)]
    return below


def environment(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(line.split("=", 1) for line in lines if line)


def loaded_files(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


@asynccontextmanager
async def running(folder: Path, env: dict[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `turnkeeper up` in `folder`, with a umask that would leave new files open to all."""
    process = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", 'umask 0; exec "$@"', "sh"),
        *own_command("up"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,
        env=env,
    )
    try:
        async with asyncio.timeout(BOUND):
            output = ""
            while LAST_LINE not in output:
                line = (await process.stdout.readline()).decode()
                assert line, output
                output += line
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.communicate(), BOUND)


async def converse(http: httpx.AsyncClient, model: str) -> list[dict[str, Any]]:
    """Run two turns in a new session, and read them in every way there is; return them."""
    start = {
        "model": model,
        "title": canary("title"),
        "system_prompt": canary("system"),
        "tool_policy": {"*": "allow"},
        "limits": {"max_steps": 4},
    }
    session = (await http.post("/workflow", json=start)).raise_for_status().json()["workflow_id"]
    for prompt in ("prompt", "second prompt"):
        await http.post(f"/workflow/{session}/prompt?wait=60", json={"message": canary(prompt)})
    for path in ("", "/conversation", "/context", "/context?format=replay", "/queue"):
        (await http.get(f"/workflow/{session}{path}")).raise_for_status()
    audit = (await http.get(f"/audit?session={session}")).raise_for_status()
    assert "start" in audit.text
    assert "CANARY" not in audit.text
    return (await http.get(f"/workflow/{session}/conversation/full")).raise_for_status().json()["messages"]


@pytest.fixture(scope="module")
async def private_stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PrivateStack]:
    folder = tmp_path_factory.mktemp("private")
    state = folder / ".turnkeeper"
    for name in ("logs/worker.log", "logs/api.log", "logs/temporal.log", "archive.db", "gateway.json"):
        (state / name).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        (state / name).touch(mode=0o644)
    key = await key_of(Settings(state_dir=state), Column("Ann", "admin"))
    (state / "archive.db").chmod(0o644)
    (state / "scripts").mkdir(mode=0o700)
    slow = {"text": canary("partial") * 15, "think": canary("thought"), "chunk_delay": 0.1}
    (state / "scripts" / "slow.json").write_text(json.dumps({"responses": [slow], "repeat": True}))
    (state / "scripts" / "slow.json").chmod(0o600)
    server = {"command": sys.executable, "args": ["-I", odd.__file__]}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"odd": server}}))
    async with AsyncExitStack() as stack:
        wires = {name: await stack.enter_async_context(wire()) for name, wire in WIRES.items()}
        for wire in wires.values():
            wire.script(
                Answer(
                    think=canary("thought"),
                    text=canary("text"),
                    calls=[
                        Call("c1", "echo", {"text": canary("argument")}),
                        Call("c2", "noise", {"x": canary("noise")}),
                    ],
                ),
                Answer(text=canary("answer")),
            )
            wire.refuse_always(
                Reply.error(400, {"error": {"type": "invalid_request_error", "message": canary("refusal")}})
            )
        own = ("TURNKEEPER_", "TEMPORAL_", "ANTHROPIC_", "OPENAI_")
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(own)},
            **KEYS,
            **{f"TURNKEEPER_{port}": "0" for port in ("API_PORT", "TEMPORAL_PORT", "TEMPORAL_UI_PORT")},
            "HOME": str(folder),  # which has no temporal.toml
            "TURNKEEPER_LOG_LEVEL": "debug",
            "TURNKEEPER_AUTH__KEYS": "true",
            "ANTHROPIC_BASE_URL": wires["anthropic"].base_url,
            "OPENAI_BASE_URL": wires["openai"].base_url,
            "TURNKEEPER_OPENAI_CHAT__BASE_URL": wires["openai-chat"].base_url,
        }
        process = await stack.enter_async_context(running(folder, env))
        gateway = Gateway.model_validate_json(Gateway.file(state).read_text())
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.url, timeout=BOUND))
        for unknown in ("tk_CANARY", f"tk_{16 * '0'}_CANARY", "CANARY.of.a-token"):
            assert (await http.get("/workflow", headers={"Authorization": f"Bearer {unknown}"})).status_code == 401
        assert (await http.post("/login", json={"key": key})).status_code == 200
        http.headers["Authorization"] = f"Bearer {key}"
        models = [*(wire.model for wire in wires.values()), "offline:script/slow"]
        turns = [turn for model in models for turn in await converse(http, model)]
        yield PrivateStack(process, state, key, turns)


async def test_api_4_at_log_level_debug_no_log_contains_a_conversation_or_a_key(private_stack):
    conversation = json.dumps(private_stack.turns)
    for name in ("prompt", "second prompt", "answer", "text", "argument", "thought", "partial"):
        assert canary(name) in conversation, "the canary was never said"
    for log in ("worker", "api", "temporal"):
        secret = private_stack.key.split("_", 2)[2]
        lines = [line for line in private_stack.log(log).splitlines() if "CANARY" in line or secret in line]
        assert lines == []
    assert "Conversation: " in private_stack.log("worker")


async def test_api_4_every_file_of_a_stack_is_private_whatever_the_umask_was(private_stack):
    assert (private_stack.state / "logs" / "mcp-odd.log").exists()
    assert (private_stack.state / "temporal.db").exists()
    assert open_to_others(private_stack.state) == []


@needs_linux
async def test_ops_11_the_supervisor_process_has_not_loaded_the_sdk(private_stack):
    pids = {"up": private_stack.process.pid, **private_stack.processes()}
    assert {name for name, pid in pids.items() if "temporal_sdk_bridge" in loaded_files(pid)} == {"worker", "api"}


@needs_linux
async def test_api_4_only_the_workers_environment_has_the_keys_of_models(private_stack):
    processes = private_stack.processes()
    assert set(processes) == {"temporal", "worker", "api", "tools"}
    environments = {name: environment(pid) for name, pid in processes.items()}
    assert KEYS.items() <= environments["worker"].items()
    for name in ("temporal", "api", "tools"):
        assert not environments[name].keys() & KEYS.keys()
        assert "CANARY" not in str(environments[name])


@needs_linux
async def test_agt_4_a_gateway_without_keys_starts_sessions_with_the_workers_model(private_stack):
    assert environment(private_stack.processes()["api"])["TURNKEEPER_MODEL"].startswith("anthropic:")
