"""The stage: a server, a worker and a gateway of the demo's own, each of which can be killed (OPS-3).

Everything is in one folder, at free ports, and configured by a settings file in it. Nothing of the user's is read or
touched: neither settings nor keys, nor a stack that runs beside it.

    turnkeeper.toml     what worker and gateway are told
    workspace/          what the tools see
    state/              the server's database, the archive, the logs
"""

import asyncio
import http
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError

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

NOT_PASSED_ON = ("TURNKEEPER_", "TEMPORAL_", "ANTHROPIC_", "OPENAI_")
"""Beginnings of variables that would make another stack of it, or ask a vendor."""


class StageError(Exception):
    """The demo cannot be played; the message is a sentence that says why."""


class _Surroundings(TypedDict):
    log: Path
    env: Mapping[str, str]
    folder: Path


@dataclass
class HistoryCount:
    """What Temporal has noted of a session: events, requests to the model, and attempts after a first one."""

    events: int = 0
    model_calls: int = 0
    retries: int = 0


class Stage:
    """The processes. As an asynchronous context manager: the server runs inside, and all are stopped after it."""

    def __init__(self, folder: Path) -> None:
        """Keep where it will be; `folder` is empty."""
        self.folder = folder = folder.resolve()
        self.workspace = folder / "workspace"
        self._state = folder / "state"
        self.server = DevServer(self._state)
        self.gateway_address = Gateway(host=LOOPBACK, port=0)
        self.worker = WorkerProgram(own_command("worker"), connect=self._connect, **self._surroundings("worker"))
        self.gateway = Program(own_command("api"), **self._surroundings("api"))
        self._running = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start the server. Raises `DevServerError`."""
        async with AsyncExitStack() as starting:
            # Kept for the gateway also while it is dead.
            port = starting.enter_context(reserved_port())
            self.gateway_address = Gateway(host=LOOPBACK, port=port)
            self._furnish()
            await starting.enter_async_context(self.server)
            starting.push_async_callback(self.worker.stop, seconds=STOP_SECONDS)
            starting.push_async_callback(self.gateway.stop, seconds=STOP_SECONDS)
            self._running = starting.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop gateway, worker and server."""
        await self._running.aclose()

    @property
    def url(self) -> str:
        """Where the gateway listens."""
        return self.gateway_address.url

    async def open(self) -> None:
        """Have a worker and a gateway running, ready for prompts. Raises `StageError`."""
        await self.worker.start()
        await self.gateway.start()
        await self.ready()

    async def ready(self) -> None:
        """Wait until the gateway answers and reaches a worker. Raises `StageError`."""
        deadline = asyncio.get_running_loop().time() + READY_SECONDS
        while await self.gateway_address.status("/readyz") != http.HTTPStatus.OK:
            for name, program in (("worker", self.worker), ("gateway", self.gateway)):
                if program.pid is None:
                    raise StageError(f"The {name} ended at its start: {program.last_words()}")
            if asyncio.get_running_loop().time() > deadline:
                raise StageError(f"Worker and gateway are not ready after {READY_SECONDS:.0f} s.")
            await asyncio.sleep(0.05)

    def fallen(self) -> list[str]:
        """Name each process that no longer runs, a sentence each: that is an accident, unless an act wanted it."""
        running = {"Temporal server": self.server.pid, "worker": self.worker.pid, "gateway": self.gateway.pid}
        return [f"The {name} ended in the middle of the story." for name, pid in running.items() if pid is None]

    async def history_of(self, session_id: str) -> HistoryCount:
        """Count what Temporal has noted of a session, in its current run. Raises `StageError`."""
        try:
            return await self._count_history(session_id)
        except (RPCError, RuntimeError) as error:  # the latter: there is no connection
            raise StageError(f"Temporal's history of the session could not be read: {error}") from error

    async def _count_history(self, session_id: str) -> HistoryCount:
        client = await self._connect()
        count = HistoryCount()
        async for event in client.get_workflow_handle(session_id).fetch_history_events():
            count.events += 1
            scheduled = event.activity_task_scheduled_event_attributes
            count.model_calls += scheduled.activity_type.name == "call_model"
            count.retries += max(0, event.activity_task_started_event_attributes.attempt - 1)
        return count

    async def _connect(self) -> Client:
        return await Client.connect(self.server.address, data_converter=pydantic_data_converter)

    def _surroundings(self, command: str) -> _Surroundings:
        log = self._state / "logs" / f"{command}.log"
        env = _environment(self.folder)
        # As `turnkeeper up` does it.
        env = gateway_environment(env) if command == "api" else env
        return {"log": log, "env": env, "folder": self.folder}

    def _furnish(self) -> None:
        self.workspace.mkdir(parents=True)
        (self.folder / "turnkeeper.toml").write_text(self._settings())
        # Not the user's own: an address in it would name another server.
        (self.folder / "temporal.toml").touch()

    def _settings(self) -> str:
        return "\n".join(
            [
                f'state_dir = "{self._state}"',
                f'workspace_root = "{self.workspace}"',
                f"api_port = {self.gateway_address.port}",
                'model = "offline:"',
                f"offline_words_per_second = {WORDS_PER_SECOND}",
                "shutdown_grace = 1",
                "",
            ]
        )


def _environment(folder: Path) -> dict[str, str]:
    """Return our environment without what would make another stack of it."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(NOT_PASSED_ON)}
    return {
        **kept,
        CONFIG_VARIABLE: str(folder / "turnkeeper.toml"),
        "TEMPORAL_CONFIG_FILE": str(folder / "temporal.toml"),
    }
