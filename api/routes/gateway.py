"""The gateway itself: liveness, readiness, who works, who one is (API-4), and Markdown for its page (API-5)."""

import asyncio
from datetime import UTC
from importlib.metadata import version
from typing import Literal

from fastapi import APIRouter, Request
from temporalio.api.taskqueue.v1 import PollerInfo

from turnkeeper.api.bodies import PollingWorker, Readiness, RenderedMarkdown, RenderMarkdown, ServiceStatus
from turnkeeper.api.callers import Caller, Identity, caller_of
from turnkeeper.api.dependencies import ServicesDep
from turnkeeper.api.http.authentication import Authenticator
from turnkeeper.api.http.limits import RequestRates
from turnkeeper.api.http.openapi import ANY, OPEN, SERVER, errors
from turnkeeper.api.problems import ProblemError, problem
from turnkeeper.api.roles import access
from turnkeeper.api.services import Services
from turnkeeper.api.temporal.temporal_calls import NO_SESSION, call_temporal
from turnkeeper.api.timeouts import read_store, seconds_from_now
from turnkeeper.models.http_responses import CallerDescription, Health, Me
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.stores import Stores
from turnkeeper.stores.temporal.connection import pollers, polling_workers

ARCHIVE_SECONDS = 1.0

router = APIRouter()


@router.get("/healthz", operation_id="health", tags=["health"], responses=errors("invalid"))
@access("open")
async def health() -> Health:
    """Respond as long as the process is up."""
    return Health()


@router.get(
    "/readyz",
    operation_id="readiness",
    tags=["health"],
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


@router.get("/statusz", operation_id="service_status", tags=["health"], responses=errors(*SERVER))
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


@router.post(
    "/markdown", operation_id="render_markdown", tags=["page"], responses=errors(*ANY, "too-large", "rate-limited")
)
@access("reader")
async def render_markdown(services: ServicesDep, body: RenderMarkdown) -> RenderedMarkdown:
    """Return texts as safe HTML. A text that takes too long to render comes back preformatted.

    HTML in a text is escaped, images become links, and links lead to the web or to mail.
    """
    return RenderedMarkdown(html=await services.markdown.render(body.texts))


@router.get(
    "/me",
    operation_id="get_me",
    tags=["login"],
    responses=errors(*OPEN, "archive-unavailable", "issuer-unavailable", "rate-limited"),
)
@access("open")
async def get_me(request: Request) -> Me:
    """Return who the request's key or token, or the page's login, makes the caller; null without a valid one."""
    authenticator: Authenticator = request.app.state.authenticator
    try:
        identity = await authenticator.identify(request)
    except ProblemError as error:
        if error.problem.status != 401:
            raise
        count_request(request, None)
        return Me(authentication=True, caller=None)
    count_request(request, identity.caller)
    return describe(identity, has_authentication=authenticator.is_on)


def describe(identity: Identity, *, has_authentication: bool) -> Me:
    caller = identity.caller
    description = CallerDescription(tenant=caller.tenant, user=caller.user, role=caller.role)
    return Me(authentication=has_authentication, caller=description)


def count_request(request: Request, caller: Caller | None) -> None:
    """Count a request of an open route, by its address if it has no valid credential.

    Raises `ProblemError` 429 beyond the rate.
    """
    if caller_of(request.scope):
        return  # without authentication, all requests are counted before
    rates: RequestRates = request.app.state.rates
    rates.check(caller, address=request.client.host if request.client else "")
