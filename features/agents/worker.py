"""What agents add to the worker: the process with a file's tools, and the versions of its agents (AGN-3, AGN-4)."""

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from turnkeeper.activities.toolbox.call_context import KEY_VARIABLE, CallSigner
from turnkeeper.activities.toolbox.tool_server import ToolServer
from turnkeeper.activities.worker_feature import WorkerFeature
from turnkeeper.features.agents.agent_file import AgentFileError
from turnkeeper.features.agents.registration import read_agents, register, server_name, tools_command
from turnkeeper.features.agents.versions import AgentVersions
from turnkeeper.models.backoff import growing_pauses
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.cancellation import cancel_until_done
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.stores import Stores

MAX_PAUSE_SECONDS = 30.0
"""The longest pause between two tries to register, while the store is down."""

_log = logging.getLogger(__name__)


class _Agents(WorkerFeature):
    def tool_servers(self, settings: Settings) -> Sequence[ToolServer]:
        return [tool_server(settings.agents, settings)] if settings.agents else []

    @contextlib.asynccontextmanager
    async def running(self, settings: Settings, stores: Stores) -> AsyncIterator[None]:
        if settings.agents is None:
            yield
            return
        registering = asyncio.create_task(_register(settings.agents, AgentVersions(stores.database)))
        try:
            yield
        finally:
            await cancel_until_done([registering])


def tool_server(file: Path, settings: Settings) -> ToolServer:
    """Return the server of a file's own tools: a process that is started again when it has died."""
    from turnkeeper.activities.toolbox.stdio_server import StdioServer

    key, (command, *args) = secrets.token_urlsafe(), tools_command(file)
    target = StdioServer(
        command,
        tuple(args),
        env={**os.environ, KEY_VARIABLE: key},  # it is the user's own code
        log=settings.state_dir / "logs" / f"tools-{server_name(file)}.log",
    )
    signer = CallSigner(key, settings.workspace_root)
    return ToolServer(server_name(file), target, trusted=True, signer=signer)


async def _register(file: Path, versions: AgentVersions) -> None:
    """Register the agents of a file, as soon as the store is there."""
    try:
        agents = await read_agents(file)
    except AgentFileError as error:
        _log.error("no agents are registered: %s", error)  # the message says it all
        return
    for pause in growing_pauses(1.0, MAX_PAUSE_SECONDS):
        with contextlib.suppress(StoreUnavailableError):
            registered = await register(agents, versions, now=datetime.now(UTC))
            _log.info("agents: %s", ", ".join(one.label for one in registered))
            return
        await asyncio.sleep(pause)


WORKER = _Agents()
