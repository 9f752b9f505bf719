"""The demo's own server, worker and gateway (OPS-3).

They use free ports and one folder. They read none of the user's settings or keys, and do not touch another stack.

    turnkeeper.toml     the settings of worker and gateway
    temporal.toml       empty, to replace the user's, which may name another server
    workspace/          the tools' workspace
    state/              the server's database, the archive, the logs
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from temporalio.client import Client

from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.settings.settings import CONFIG_VARIABLE
from turnkeeper.ops.local.dead_worker import fail_activities
from turnkeeper.ops.local.dev_server import DevServer
from turnkeeper.ops.local.gateway import Gateway
from turnkeeper.ops.local.ports import LOOPBACK, reserved_port
from turnkeeper.ops.local.processes import Program, gateway_environment
from turnkeeper.ops.local.supervisor import READY_SECONDS, own_command
from turnkeeper.ops.local.worker_process import WorkerProgram
from turnkeeper.workflows.hosting.payload_converter import DATA_CONVERTER

WORDS_PER_SECOND = 75
"""Slow enough to read along, and to be interrupted."""

STOP_SECONDS = 6.0
"""More than worker and gateway give to running requests."""

HIDDEN_PREFIXES = ("TURNKEEPER_", "TEMPORAL_", "ANTHROPIC_", "OPENAI_")
"""Variables that would change the stack or call a vendor."""


class DemoError(TurnkeeperError):
    """The demo cannot run; the message is a sentence that says why."""


class DemoEnvironment:
    """The demo's processes. Use `demo_environment` to get one."""

    def __init__(self, folder: Path, *, port: int) -> None:
        """`folder` has the files above; the gateway listens on `port`."""
        self.folder = folder = folder.resolve()
        self.workspace = folder / "workspace"
        self._address = Gateway(host=LOOPBACK, port=port)
        self.url = self._address.url
        env = {name: value for name, value in os.environ.items() if not name.upper().startswith(HIDDEN_PREFIXES)}
        env |= {CONFIG_VARIABLE: f"{folder}/turnkeeper.toml", "TEMPORAL_CONFIG_FILE": f"{folder}/temporal.toml"}
        logs = folder / "state" / "logs"
        self.server = DevServer(folder / "state")
        self.worker = WorkerProgram(
            own_command("worker"),
            fail=partial(fail_activities, self._connect),
            log=logs / "worker.log",
            env=env,
            folder=folder,
        )
        self.gateway = Program(own_command("api"), log=logs / "api.log", env=gateway_environment(env), folder=folder)

    async def start(self) -> None:
        """Start worker and gateway, and wait until they are ready for prompts. Raises `DemoError`."""
        await self.worker.start()
        await self.gateway.start()
        deadline = asyncio.get_running_loop().time() + READY_SECONDS
        while not await self._address.has_worker():
            for name, program in (("worker", self.worker), ("gateway", self.gateway)):
                if program.pid is None:
                    raise DemoError(f"The {name} stopped while starting: {program.last_output()}")
            if asyncio.get_running_loop().time() > deadline:
                raise DemoError(f"Worker and gateway are not ready after {READY_SECONDS:.0f} s.")
            await asyncio.sleep(0.05)

    def dead_processes(self) -> list[str]:
        """Return one sentence for each process that is not running."""
        pids = {"Temporal server": self.server.pid, "worker": self.worker.pid, "gateway": self.gateway.pid}
        return [f"The {name} stopped during the demo." for name, pid in pids.items() if pid is None]

    async def _connect(self) -> Client:
        return await Client.connect(self.server.address, data_converter=DATA_CONVERTER)


@asynccontextmanager
async def demo_environment(folder: Path) -> AsyncIterator[DemoEnvironment]:
    """Run the server in the empty `folder` inside the block, then stop all processes.

    Raises:
        DevServerError: The server does not start.
    """
    async with AsyncExitStack() as running:
        port = running.enter_context(reserved_port())  # stays reserved while the gateway is dead
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
