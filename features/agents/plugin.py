"""Agents beside the workflows of somebody's own worker: a plugin for Temporal's SDK (AGN-5).

A worker of ours runs while theirs does, in the same process and over the same connection, on a task queue of its own.
So neither gets the other's data converter, workflow runner or interceptors; only their payload codec is used for both,
since it is part of what their namespace stores.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from temporalio.client import Client
from temporalio.plugin import SimplePlugin
from temporalio.worker import Worker

from turnkeeper.features.agents.agent import Agent
from turnkeeper.features.agents.agent_data import AgentData
from turnkeeper.features.agents.agent_file import data_of, with_handoffs
from turnkeeper.features.agents.tool_process import in_process_server
from turnkeeper.features.agents.versions import AgentVersions
from turnkeeper.features.agents.worker import store
from turnkeeper.models.settings.settings import Settings, load_settings
from turnkeeper.stores.temporal.connection import prepare
from turnkeeper.stores.temporal.payload_converter import DATA_CONVERTER
from turnkeeper.stores.waiting import cancel_until_done

SERVER = "app"
"""The name of the server with the agents' own tools, which policies name: `app__refund`."""


class TurnkeeperPlugin(SimplePlugin):
    """Runs agents in a worker that has workflows of its own. Give it to `Client.connect` or to one `Worker`.

        client = await Client.connect("localhost:7233", plugins=[TurnkeeperPlugin(agents=[agent])])
        async with Worker(client, task_queue="orders", workflows=[Orders]):
            ...

    Their own tools run in this process, and not in one of their own. Sessions are started by a gateway
    (`turnkeeper api`, or `create_app`) or by any workflow: `AgenticAIWorkflow` on the task queue of the settings.
    """

    def __init__(self, *, agents: Sequence[Agent] = (), settings: Settings | None = None) -> None:
        """Without `settings` it has those of the environment and `turnkeeper.toml`. Raises `SettingsError`."""
        super().__init__("turnkeeper")
        self._agents = with_handoffs(agents)
        self._settings = settings or load_settings()
        self._workers = 0

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:  # noqa: A002  # the SDK's name
        """Run ours beside it: one, however many workers the client has."""
        self._workers += 1
        try:
            if self._workers > 1:
                await next(worker)
                return
            async with self._running(worker.client):
                await next(worker)
        finally:
            self._workers -= 1

    @asynccontextmanager
    async def _running(self, theirs: Client) -> AsyncIterator[None]:
        from turnkeeper.worker import running_worker  # the composition root: it imports all features

        converter = replace(DATA_CONVERTER, payload_codec=theirs.data_converter.payload_codec)
        client = Client(theirs.service_client, namespace=theirs.namespace, data_converter=converter)
        await prepare(client)
        server = in_process_server(SERVER, self._agents, self._settings.workspace_root)
        agents = {one.name: AgentData(**data_of(one, SERVER)) for one in self._agents}
        async with running_worker(self._settings, client, servers=[server]) as stores:
            registering = asyncio.create_task(store(agents, AgentVersions(stores.database)))
            try:
                yield
            finally:
                await cancel_until_done([registering])
