"""The FastAPI application of the gateway."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import cache
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from starlette.routing import BaseRoute, Route
from starlette.types import Lifespan
from temporalio.client import Client

from turnkeeper.api.changes import ChangeObserver
from turnkeeper.api.dependencies import reject_unknown_parameters
from turnkeeper.api.http.authentication import (
    Authenticate,
    AuthenticationMiddleware,
    HostAuthenticator,
    LocalAuthenticator,
)
from turnkeeper.api.http.compression import CompressionMiddleware
from turnkeeper.api.http.limits import BodyLimitMiddleware, OriginCheckMiddleware, RateLimitMiddleware, RequestRates
from turnkeeper.api.http.openapi import TAGS, with_media_types
from turnkeeper.api.http.responses import HeadRequestMiddleware, ResponseHeadersMiddleware, install_problem_handlers
from turnkeeper.api.http.server import ClosingMiddleware, StalledStreamMiddleware
from turnkeeper.api.http.streams import Closing
from turnkeeper.api.roles import RouteFinder, access
from turnkeeper.api.routes import contents, conversation, gateway, page, sessions
from turnkeeper.api.routes.temporal_ui import WebUi
from turnkeeper.api.services import GatewayFeature, Services
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.features import enable, enabled, load_tables
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.partials.carrier import PartialCarrier
from turnkeeper.stores.partials.factory import carrier_factory
from turnkeeper.stores.stores import Stores
from turnkeeper.stores.temporal.connection import connect, outage_logged

ROUTERS = (sessions.router, conversation.router, conversation.approvals_router, contents.router, gateway.router)


@cache
def _routes(*features: GatewayFeature) -> list[BaseRoute]:
    """Prepare routes. FastAPI takes 0.1 s to prepare them for the first request: once for all apps of a process."""
    every = APIRouter(dependencies=[Depends(reject_unknown_parameters)])
    for router in (*ROUTERS, *(router for feature in features for router in feature.routers)):
        every.include_router(router)
    return every.routes


def create_app(
    settings: Settings,
    *,
    client: Client | None = None,
    partials: PartialCarrier | None = None,
    timeouts: Timeouts | None = None,
    authenticate: Authenticate | None = None,
) -> FastAPI:
    """Build the gateway. It connects to Temporal when it starts, unless it is given a `client`. Raises `SettingsError`.

    `authenticate` says who sends a request, in place of our keys: for an application that mounts the gateway and knows
    its users. That application opens `router.lifespan_context` of the gateway in its own lifespan.

    `partials` replaces the carrier that the settings name, such as an in-memory one where the worker runs in the same
    process. The caller closes it. Without `timeouts` it has those of production.
    """
    timeouts = timeouts or Timeouts()
    enable(all_parts := enabled(settings))
    features = [part for feature in all_parts if (part := feature.gateway)]
    load_tables()
    stores, carrier = Stores.of(settings), carrier_factory(settings)
    observers: list[ChangeObserver] = []
    closing = Closing()
    web_ui = WebUi(settings, closing)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        temporal = client or await connect(settings, lazy=True)
        outage_log = nullcontext() if client else outage_logged(temporal, settings)
        async with outage_log, stores, nullcontext(partials) if partials else carrier(temporal) as partial_carrier:
            services = Services.of(temporal, settings, stores, partial_carrier, closing, timeouts, observers)
            app.state.services = services
            for feature in features:
                services.add(feature.services(services))
            async with AsyncExitStack() as running:
                for feature in features:
                    await running.enter_async_context(feature.running(app, services))
                yield
            await web_ui.close()
            await services.close()

    app = _Gateway(lifespan, _routes(*features), settings)
    own = (feature.authenticator(settings, stores, timeouts) for feature in features)
    app.state.authenticator = (
        HostAuthenticator(authenticate) if authenticate else next(filter(None, own), LocalAuthenticator())
    )
    app.state.closing, app.state.timeouts, app.state.rates = closing, timeouts, RequestRates(settings)
    install_problem_handlers(app)
    for feature in features:
        feature.install(app, settings)
    page.install(app, settings)
    page.install_docs(app)
    web_ui.install(app)
    _add_middleware(app, settings, observers)
    return app


class _Gateway(FastAPI):
    def __init__(self, lifespan: Lifespan[FastAPI], routes: Sequence[BaseRoute], settings: Settings) -> None:
        super().__init__(
            title="Turnkeeper",
            version=version("turnkeeper"),
            summary="Durable AI-agent sessions on Temporal.",
            lifespan=lifespan,
            routes=list(routes),
            openapi_tags=TAGS,
            servers=[{"url": "/", "description": "This gateway."}],
            docs_url=None,
            redoc_url=None,
        )
        self.finder = RouteFinder(self.routes, settings)

    def setup(self) -> None:
        super().setup()
        for route in self.routes:
            if isinstance(route, Route) and route.path == self.openapi_url:
                access("reader")(route.endpoint)

    def openapi(self) -> dict[str, Any]:
        document = with_media_types(super().openapi())
        for route in self.finder.all:
            if operation := document["paths"].get(route.path, {}).get(route.method.lower()):
                operation["x-role"] = route.access
        return document


def _add_middleware(app: _Gateway, settings: Settings, observers: Sequence[ChangeObserver]) -> None:
    state = app.state
    app.add_middleware(CompressionMiddleware)
    app.add_middleware(HeadRequestMiddleware)
    app.add_middleware(BodyLimitMiddleware)
    app.add_middleware(StalledStreamMiddleware, timeouts=state.timeouts)
    app.add_middleware(RateLimitMiddleware, observers=observers, settings=settings, rates=state.rates)
    # The middleware that is added last runs first: a foreign request must not cost anything.
    app.add_middleware(
        AuthenticationMiddleware,
        authenticator=state.authenticator,
        observers=observers,
        rates=state.rates,
        finder=app.finder,
    )
    app.add_middleware(OriginCheckMiddleware, settings=settings, accepts_proxies=state.authenticator.is_on)
    app.add_middleware(page.ProblemPageMiddleware)
    app.add_middleware(ClosingMiddleware, closing=state.closing, timeouts=state.timeouts)
    app.add_middleware(ResponseHeadersMiddleware)
