"""Liveness and readiness."""

import asyncio
from typing import Literal

from fastapi import APIRouter

from turnkeeper.api import problems
from turnkeeper.api.bodies import Readiness
from turnkeeper.api.dependencies import ServicesDep
from turnkeeper.api.http.openapi import NO_POLLING_WORKER, errors
from turnkeeper.api.store_calls import read_store, seconds_from_now
from turnkeeper.api.temporal.temporal_calls import NO_SESSION, call_temporal
from turnkeeper.models.http_responses import Health
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.stores import Stores
from turnkeeper.workflows.hosting.connection import polling_workers

ARCHIVE_SECONDS = 1.0

router = APIRouter(tags=["health"])


@router.get("/healthz", operation_id="health", responses=errors("invalid"))
async def health() -> Health:
    """Respond as long as the process is up."""
    return Health()


@router.get("/readyz", operation_id="readiness", responses={**errors("invalid", "rate-limited"), **NO_POLLING_WORKER})
async def readiness(services: ServicesDep) -> Readiness:
    """Return 200 if Temporal is reachable and a worker is polling; 503 says which is missing."""
    client, task_queue = services.client, services.settings.task_queue
    archive = asyncio.create_task(_archive(services.stores))
    workers = await call_temporal(polling_workers(client, task_queue), NO_SESSION)
    if not workers:
        raise problems.no_polling_worker(task_queue)
    host = client.service_client.config.target_host
    return Readiness(temporal=host, workers=len(workers), archive=await archive)


async def _archive(stores: Stores) -> Literal["ok", "unavailable"]:
    """Check whether the archive can be read, by counting the turns of the empty id, which no session has."""
    try:
        await read_store(stores.archive.count(NO_SESSION), until=seconds_from_now(ARCHIVE_SECONDS))
    except StoreUnavailableError:
        return "unavailable"
    return "ok"
