"""What lists add to the gateway."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from fastapi import FastAPI

from turnkeeper.api.services import GatewayFeature, Services
from turnkeeper.features.listing.lists import IndexRepair, SessionLists
from turnkeeper.features.listing.routes import router


class _Listing(GatewayFeature):
    routers = (router,)

    def services(self, services: Services) -> Iterable[object]:
        yield SessionLists(services.stores, services.timeouts)

    @asynccontextmanager
    async def running(self, app: FastAPI, services: Services) -> AsyncIterator[None]:
        repair = IndexRepair(services.client, services.stores.index, services.timeouts)
        repair.start()
        try:
            yield
        finally:
            await repair.close()


GATEWAY = _Listing()
