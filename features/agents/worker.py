"""What agents add to the worker: the process with a file's tools, and the versions of its agents (AGN-3, AGN-4)."""

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from turnkeeper.activities.toolbox.call_context import KEY_VARIABLE, CallSigner
from turnkeeper.activities.toolbox.tool_server import ToolServer
from turnkeeper.activities.toolbox.toolbox import Toolbox
from turnkeeper.activities.worker_feature import WorkerFeature
from turnkeeper.features.agents.agent_data import AgentData
from turnkeeper.features.agents.agent_file import AgentFileError, server_name
from turnkeeper.features.agents.registration import AgentFile, neighbours, read_agents, saved, stamps, tools_command
from turnkeeper.features.agents.versions import AgentVersions
from turnkeeper.models.errors import growing_pauses
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.stores import Stores
from turnkeeper.stores.waiting import cancel_until_done

MAX_PAUSE_SECONDS = 30.0
"""The longest pause between two tries to register, while the store is down."""

NOT_RELOADED = "was not reloaded: {error}. Its earlier code is used."

_log = logging.getLogger(__name__)


class _Agents(WorkerFeature):
    def tool_servers(self, settings: Settings) -> Sequence[ToolServer]:
        return [tool_server(settings.agents, settings)] if settings.agents else []

    @contextlib.asynccontextmanager
    async def running(self, settings: Settings, stores: Stores, tools: Toolbox) -> AsyncIterator[None]:
        if settings.agents is None:
            yield
            return
        registrar = Registrar(settings.agents, AgentVersions(stores.database), tools)
        following = asyncio.create_task(registrar.follow() if settings.agents_reload else registrar.register())
        try:
            yield
        finally:
            await cancel_until_done([following])


def tool_server(file: Path, settings: Settings) -> ToolServer:
    """Return the server of a file's own tools: a process that is started again when it has died."""
    from turnkeeper.activities.toolbox.transports import StdioServer

    key, (command, *args) = secrets.token_urlsafe(), tools_command(file)
    target = StdioServer(
        command,
        tuple(args),
        env={**os.environ, KEY_VARIABLE: key},  # it is the user's own code
        log=settings.state_dir / "logs" / f"tools-{server_name(file)}.log",
    )
    signer = CallSigner(key, settings.workspace_root)
    return ToolServer(server_name(file), target, trusted=True, signer=signer)


class Registrar:
    """Registers the agents of a file as versions, as soon as the store is there, and again when the file changes."""

    def __init__(self, file: Path, versions: AgentVersions, tools: Toolbox) -> None:
        self._file = file
        self._versions = versions
        self._tools = tools
        self._files: Sequence[Path] = (file,)

    async def register(self) -> None:
        if described := await self._read():
            await self._store(described)

    async def follow(self) -> None:
        """Register, and whenever a file is saved, register again and let new calls run the new code. Never ends."""
        before = stamps(self._files)
        await self.register()
        while True:
            before = await saved(*self._files, before=before)
            if described := await self._read():
                # First the tools: a session that moves to the new version then finds the new ones.
                self._tools.restart(server_name(self._file))
                await self._store(described)

    async def _read(self) -> AgentFile | None:
        """Return what is in the file; `None` if it does not load, which the operator is told."""
        name = server_name(self._file)
        try:
            described = await read_agents(self._file)
        except AgentFileError as error:
            _log.error("no agents are registered: %s", error)  # the message says it all
            self._tools.note_problem(name, NOT_RELOADED.format(error=str(error).removesuffix(".")))
            self._files = [*self._files, *neighbours(self._file)]
            return None
        self._tools.note_problem(name, "")
        self._files = described.files
        return described

    async def _store(self, described: AgentFile) -> None:
        await store({name: AgentData.model_validate(data) for name, data in described.agents.items()}, self._versions)


async def store(agents: Mapping[str, AgentData], versions: AgentVersions) -> None:
    """Register agents as versions, as soon as the store is there."""
    for pause in growing_pauses(1.0, MAX_PAUSE_SECONDS):
        with contextlib.suppress(StoreUnavailableError):
            now = datetime.now(UTC)
            added = [await versions.add(name, data, now=now) for name, data in agents.items()]
            _log.info("agents: %s", ", ".join(one.label for one in added))
            return
        await asyncio.sleep(pause)


WORKER = _Agents()
