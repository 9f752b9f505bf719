"""The demo's own server, worker and gateway, each of which can be killed (OPS-3).

Everything is in one folder, at free ports, and configured by a settings file in it. Nothing of the user's is read or
touched: neither settings nor keys, nor a stack that runs beside it.

    turnkeeper.toml     the settings of worker and gateway
    temporal.toml       empty, in place of the user's, which may name another server
    workspace/          what the tools see
    state/              the server's database, the archive, the logs
"""

import asyncio
import http
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from turnkeeper.models.settings.settings import CONFIG_VARIABLE
from turnkeeper.ops.local.dev_server import DevServer
from turnkeeper.ops.local.environments import gateway_environment
from turnkeeper.ops.local.gateway import Gateway
from turnkeeper.ops.local.ports import LOOPBACK, reserved_port
from turnkeeper.ops.local.processes import Program
from turnkeeper.ops.local.supervisor import READY_SECONDS, own_command
from turnkeeper.ops.local.worker_process import WorkerProgram

WORDS_PER_SECOND = 75
"""A pace at which people read along, and at which an answer is long enough to be interrupted."""

STOP_SECONDS = 6.0
"""More than worker and gateway give to what is under way."""

HIDDEN_PREFIXES = ("TURNKEEPER_", "TEMPORAL_", "ANTHROPIC_", "OPENAI_")
"""Of variables that would make another stack of it, or ask a vendor."""


class DemoError(Exception):
    """The demo cannot be played; the message is a sentence that says why."""


class DemoEnvironment:
    """The processes, to be had from `demo_environment`."""

    def __init__(self, folder: Path, *, port: int) -> None:
        """Use the files in `folder`; the gateway listens on `port`."""
        self.folder = folder = folder.resolve()
        self.workspace = folder / "workspace"
        self._address = Gateway(host=LOOPBACK, port=port)
        self.url = self._address.url
        env = {name: value for name, value in os.environ.items() if not name.upper().startswith(HIDDEN_PREFIXES)}
        env |= {CONFIG_VARIABLE: f"{folder}/turnkeeper.toml", "TEMPORAL_CONFIG_FILE": f"{folder}/temporal.toml"}
        logs = folder / "state" / "logs"
        self.server = DevServer(folder / "state")
        self.worker = WorkerProgram(
            own_command("worker"), connect=self._connect, log=logs / "worker.log", env=env, folder=folder
        )
        self.gateway = Program(own_command("api"), log=logs / "api.log", env=gateway_environment(env), folder=folder)

    async def start(self) -> None:
        """Start worker and gateway, and wait until they are ready for prompts. Raises `DemoError`."""
        await self.worker.start()
        await self.gateway.start()
        deadline = asyncio.get_running_loop().time() + READY_SECONDS
        while await self._address.status("/readyz") != http.HTTPStatus.OK:
            for name, program in (("worker", self.worker), ("gateway", self.gateway)):
                if program.pid is None:
                    raise DemoError(f"The {name} ended at its start: {program.last_words()}")
            if asyncio.get_running_loop().time() > deadline:
                raise DemoError(f"Worker and gateway are not ready after {READY_SECONDS:.0f} s.")
            await asyncio.sleep(0.05)

    def dead_processes(self) -> list[str]:
        """Name each process that no longer runs, a sentence each."""
        pids = {"Temporal server": self.server.pid, "worker": self.worker.pid, "gateway": self.gateway.pid}
        return [f"The {name} ended in the middle of the story." for name, pid in pids.items() if pid is None]

    async def _connect(self) -> Client:
        return await Client.connect(self.server.address, data_converter=pydantic_data_converter)


@asynccontextmanager
async def demo_environment(folder: Path) -> AsyncIterator[DemoEnvironment]:
    """Run the server in `folder`, which is empty, inside the block; stop all processes after it.

    Raises:
        DevServerError: The server does not start.
    """
    async with AsyncExitStack() as running:
        port = running.enter_context(reserved_port())  # kept for the gateway also while it is dead
        environment = DemoEnvironment(folder, port=port)
        environment.workspace.mkdir()
        (environment.folder / "temporal.toml").touch()
        (environment.folder / "turnkeeper.toml").write_text(
            f'state_dir = "{environment.folder}/state"\n'
            f'workspace_root = "{environment.workspace}"\n'
            f"api_port = {port}\n"
            'model = "offline:"\n'
            f"offline_words_per_second = {WORDS_PER_SECOND}\n"
            "shutdown_grace = 1\n"
        )
        await running.enter_async_context(environment.server)
        running.push_async_callback(environment.worker.stop, seconds=STOP_SECONDS)
        running.push_async_callback(environment.gateway.stop, seconds=STOP_SECONDS)
        yield environment
