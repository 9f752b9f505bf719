"""Liveness, readiness, and who works."""

import asyncio
from datetime import UTC
from importlib.metadata import version
from typing import Literal

from fastapi import APIRouter
from temporalio.api.taskqueue.v1 import PollerInfo

from turnkeeper.api.bodies import PollingWorker, Readiness, ServiceStatus
from turnkeeper.api.dependencies import ServicesDep
from turnkeeper.api.http.openapi import SERVER, errors
from turnkeeper.api.problems import problem
from turnkeeper.api.roles import access
from turnkeeper.api.services import Services
from turnkeeper.api.store_calls import read_store, seconds_from_now
from turnkeeper.api.temporal.temporal_calls import NO_SESSION, call_temporal
from turnkeeper.models.http_responses import Health
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.stores import Stores
from turnkeeper.stores.temporal.connection import pollers, polling_workers

ARCHIVE_SECONDS = 1.0

router = APIRouter(tags=["health"])


@router.get("/healthz", operation_id="health", responses=errors("invalid"))
@access("open")
async def health() -> Health:
    """Respond as long as the process is up."""
    return Health()


@router.get(
    "/readyz",
    operation_id="readiness",
    responses=errors("invalid", "rate-limited", "temporal-unreachable", "archive-unavailable", "stopping"),
)
@access("open")
async def readiness(services: ServicesDep) -> Readiness:
    """Return 200 if this gateway can take prompts; 503 says what is missing.

    It needs Temporal, and with keys or tokens the archive's database too. It needs no worker: prompts are safe without.
    """
    archive = asyncio.create_task(_archive(services.stores))
    workers = await call_temporal(
        polling_workers(services.client, services.settings.task_queue), NO_SESSION, seconds=services.timeouts.call
    )
    if services.closing.has_begun:
        raise problem("stopping")
    if await archive == "unavailable" and services.settings.auth.is_on:
        detail = "The archive can't be reached, so no key can be verified and no change recorded."
        raise problem("archive-unavailable", detail)
    return Readiness(temporal=_host(services), workers=len(workers), archive=await archive)


@router.get("/statusz", operation_id="service_status", responses=errors(*SERVER))
@access("reader")
async def service_status(services: ServicesDep) -> ServiceStatus:
    """Return the versions of this gateway and of the workers that poll its task queue."""
    task_queue = services.settings.task_queue
    workers = await call_temporal(pollers(services.client, task_queue), NO_SESSION, seconds=services.timeouts.call)
    return ServiceStatus(
        version=version("turnkeeper"), temporal=_host(services), task_queue=task_queue, workers=[*map(_worker, workers)]
    )


def _host(services: Services) -> str:
    return services.client.service_client.config.target_host


def _worker(poller: PollerInfo) -> PollingWorker:
    build = poller.worker_version_capabilities.build_id or poller.deployment_options.build_id
    return PollingWorker(
        identity=poller.identity, build=build or None, polled_at=poller.last_access_time.ToDatetime(tzinfo=UTC)
    )


async def _archive(stores: Stores) -> Literal["ok", "unavailable"]:
    """Check whether the archive can be read, by counting the turns of the empty id, which no session has."""
    try:
        await read_store(stores.archive.count(NO_SESSION), until=seconds_from_now(ARCHIVE_SECONDS))
    except StoreUnavailableError:
        return "unavailable"
    return "ok"
