"""What agents add to the gateway: which there are, and what sessions are started as."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from fastapi import FastAPI

from turnkeeper.api.services import GatewayFeature, Services
from turnkeeper.features.agents.api.directory import AgentDirectory
from turnkeeper.features.agents.api.following import follow_newest
from turnkeeper.features.agents.api.routes import router
from turnkeeper.features.agents.versions import AgentVersions
from turnkeeper.stores.waiting import cancel_until_done


class _Agents(GatewayFeature):
    routers = (router,)

    def services(self, services: Services) -> Iterable[object]:
        yield AgentDirectory(services.settings, AgentVersions(services.stores.database), services.timeouts)

    @asynccontextmanager
    async def running(self, app: FastAPI, services: Services) -> AsyncIterator[None]:
        if not services.settings.agents_reload:
            yield
            return
        following = asyncio.create_task(follow_newest(services, services.get(AgentDirectory)))
        try:
            yield
        finally:
            await cancel_until_done([following])


GATEWAY = _Agents()
