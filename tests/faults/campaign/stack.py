"""The processes of a campaign, in one folder and at free ports of this machine alone.

    turnkeeper up     Temporal, worker A and gateway A, as a person runs them: it starts again what dies
    worker B          started by us; reaches Temporal through a proxy
    gateway B         started by us; reaches Temporal through a proxy

So the product's own supervisor is part of what is tested, with its pauses and with what it does about the work of a
worker that died; and two processes have connections that can be cut.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.faults.campaign import effects
from tests.faults.campaign.proxy import Proxy
from tests.faults.campaign.scripts import workspace_files
from tests.processes.environment import SETTINGS, environment_without
from tests.waiting import until
from turnkeeper.clients.terminal.command_options import Gateway
from turnkeeper.models.settings.settings import CONFIG_VARIABLE
from turnkeeper.ops.local.processes import LOOPBACK, Program, reserved_port
from turnkeeper.ops.local.supervisor import own_command

START_SECONDS = 300.0
"""Bound of a start, on a machine whose cores are taken."""

UP_STOP_SECONDS = 60.0
STOP_SECONDS = 30.0

COMMANDS = {"worker_a": "worker", "gateway_a": "api", "temporal": "start-dev"}
"""The processes that `turnkeeper up` starts, by a word of their command line."""


class CampaignError(Exception):
    """The campaign itself failed, which proves nothing about the product."""


@dataclass
class Stack:
    """Everything that runs. As an asynchronous context manager: it runs inside, and nothing is left after it."""

    folder: Path
    gateways: dict[str, Gateway] = field(default_factory=dict)
    proxies: dict[str, Proxy] = field(default_factory=dict)
    _programs: dict[str, Program] = field(default_factory=dict)
    _running: AsyncExitStack = field(default_factory=AsyncExitStack)

    def __post_init__(self) -> None:
        self.state = self.folder / "state"
        self.scripts = self.state / "scripts"
        self.effects = self.folder / "effects.jsonl"
        self.archive = self.state / "archive.db"

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as running:
            running.push_async_callback(self._end_leftovers)
            ports = [running.enter_context(reserved_port()) for _ in range(3)]
            self.gateways = {
                name: Gateway(host=LOOPBACK, port=port)
                for name, port in zip(("gateway_a", "gateway_b"), ports, strict=False)
            }
            self._furnish(temporal_port=ports[2])
            up = await self._run(running, "up", "up", {}, stop_seconds=UP_STOP_SECONDS)
            await self.ready("gateway_a", up)
            for name in ("worker_b", "gateway_b"):
                self.proxies[name] = await running.enter_async_context(Proxy(self.temporal_address))
            via = {name: {"TEMPORAL_ADDRESS": proxy.address} for name, proxy in self.proxies.items()}
            await self._run(running, "worker_b", "worker", via["worker_b"], stop_seconds=STOP_SECONDS)
            own_port = {"TURNKEEPER_API_PORT": str(self.gateways["gateway_b"].port)}
            await self._run(running, "gateway_b", "api", {**via["gateway_b"], **own_port}, stop_seconds=STOP_SECONDS)
            await self.ready("gateway_b", self._programs["gateway_b"])
            self._running = running.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()

    @property
    def temporal_address(self) -> str:
        return str(json.loads((self.state / "temporal.json").read_text())["address"])

    @property
    def urls(self) -> list[str]:
        return [gateway.url for gateway in self.gateways.values()]

    async def ready(self, gateway: str, program: Program) -> None:
        """Wait until a gateway answers and reaches a worker. Raises `CampaignError`."""

        async def is_ready() -> bool:
            if program.pid is None:
                raise CampaignError(f"{gateway} ended at its start: {program.last_output()}")
            return await self.gateways[gateway].has_worker()

        try:
            await until(is_ready, within=START_SECONDS)
        except TimeoutError:
            message = f"{gateway} is not ready after {START_SECONDS:.0f} s: {program.last_output()}"
            raise CampaignError(message) from None

    def signal(self, name: str, number: signal.Signals) -> int | None:
        """Send a signal to a process and all of its group; return its id, None where it does not run now."""
        program = self._programs.get(name)
        pid = program.pid if program else self._child_of_up(COMMANDS[name])
        if pid is not None:
            os.killpg(pid, number)
        return pid

    async def start(self, name: str) -> None:
        """Start what we started once and has ended. What `up` started, it starts again itself."""
        if name in self._programs:
            await self._programs[name].wait()
            await self._programs[name].start()

    async def ended(self, name: str, pid: int, *, seconds: float) -> None:
        """Wait until the process is gone. Raises `TimeoutError`."""
        await until(lambda: not _is_running(pid), within=seconds)

    async def start_what_ended(self) -> list[str]:
        """Start again what ended by itself; return what a signal ended that was not ours, a sentence each.

        Raises `CampaignError` where `turnkeeper up` is gone: then nothing else is left.
        """
        crashes = []
        for name, program in self._programs.items():
            if program.pid is not None:
                continue
            if name == "up":
                raise CampaignError(f"`turnkeeper up` ended by itself: {program.last_output()}")
            code = await program.wait()
            if code < 0:
                crashes.append(f"{name} was ended by {signal.Signals(-code).name}: {program.last_output()}")
            await program.start()
        return crashes

    async def run_command(self, *args: str, seconds: float) -> tuple[int, str]:
        """Run one of our own commands against this stack; return its exit code and output. Raises `TimeoutError`."""
        command = Program(
            own_command(*args),
            log=self.folder / "logs" / f"{args[0]}.log",
            env=self._environment({}),
            folder=self.folder,
        )
        await command.start()
        try:
            async with asyncio.timeout(seconds):
                code = await command.wait()
        finally:
            await command.stop(seconds=0.0)
        output = command.log.read_text()
        command.log.unlink()
        return code, output

    async def _run(
        self, running: AsyncExitStack, name: str, command: str, env: Mapping[str, str], *, stop_seconds: float
    ) -> Program:
        program = Program(
            own_command(command),
            log=self.folder / "logs" / f"{name}.log",
            env=self._environment(env),
            folder=self.folder,
        )
        self._programs[name] = program
        running.push_async_callback(program.stop, seconds=stop_seconds)
        await program.start()
        return program

    def _environment(self, added: Mapping[str, str]) -> dict[str, str]:
        settings, temporal = self.folder / "turnkeeper.toml", self.folder / "temporal.toml"
        return {
            **environment_without(*SETTINGS),
            CONFIG_VARIABLE: str(settings),
            "TEMPORAL_CONFIG_FILE": str(temporal),
            **added,
        }

    def _furnish(self, *, temporal_port: int) -> None:
        workspace = self.folder / "workspace"
        for folder in (workspace, self.scripts):
            folder.mkdir(parents=True)
        for name, text in workspace_files().items():
            (workspace / name).write_text(text)
        # Not the user's own: an address in it would name another server.
        (self.folder / "temporal.toml").touch()
        self.effects.touch()
        server = {"command": sys.executable, "args": [effects.__file__, str(self.effects)], "trusted": True}
        (self.folder / "mcp.json").write_text(json.dumps({"mcpServers": {"effects": server}}))
        settings = {
            "state_dir": str(self.state),
            "workspace_root": str(workspace),
            "mcp_config": str(self.folder / "mcp.json"),
            "api_port": self.gateways["gateway_a"].port,
            "temporal_port": temporal_port,
            "temporal_ui_port": 0,
            "model": "offline:",
        }
        lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
        (self.folder / "turnkeeper.toml").write_text("\n".join([*lines, ""]))

    def _child_of_up(self, word: str) -> int | None:
        """Return the process that `up` started with `word` in its command line, while it runs."""
        up = self._programs["up"].pid
        for pid in _processes():
            if _parent(pid) == up and word in _command_line(pid):
                return pid
        return None

    async def _end_leftovers(self) -> None:
        """Kill what still runs in our folder, and raise `CampaignError` if there was anything."""
        with suppress(TimeoutError):
            await until(lambda: not self._in_folder(), within=10.0)
        leftovers = self._in_folder()
        for pid in leftovers:
            os.kill(pid, signal.SIGKILL)
        if leftovers:
            listed = "; ".join(f"{pid} {' '.join(command)}" for pid, command in leftovers.items())
            raise CampaignError(f"processes outlived the stack, and were killed: {listed}")

    def _in_folder(self) -> dict[int, list[str]]:
        """Return the programs of ours that work in our folder or have its name in their command line."""
        name = str(self.folder)
        commands = {pid: _command_line(pid) for pid in _processes() if pid != os.getpid()}
        return {
            pid: command
            for pid, command in commands.items()
            if command and Path(command[0]).name.startswith(("python", "temporal"))
            if _folder(pid) == name or any(name in part for part in command[1:])
        }


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _is_running(pid: int) -> bool:
    # A zombie that its parent has not asked for yet does nothing any more.
    stat = _stat(pid)
    return stat is not None and stat[0] != "Z"


def _parent(pid: int) -> int | None:
    stat = _stat(pid)
    return int(stat[1]) if stat else None


def _stat(pid: int) -> list[str] | None:
    """Return the state, the parent and what else stands in `/proc/PID/stat` behind the program's name."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def _folder(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return None
