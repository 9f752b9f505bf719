"""The gateway: a thin FastAPI application that translates between HTTP and the verbs of a session."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import anyio
from fastapi import APIRouter, Depends, FastAPI, HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from temporalio.client import Client

from turnkeeper.api import problems
from turnkeeper.api.ai_sdk import routes as ai_sdk
from turnkeeper.api.dependencies import refuse_unknown_parameters
from turnkeeper.api.http.body_limits import most_body_bytes
from turnkeeper.api.http.methods import HeadRequests
from turnkeeper.api.http.openapi import TAGS, described
from turnkeeper.api.http.origin_check import OriginCheck
from turnkeeper.api.http.server import ImpatientStreams
from turnkeeper.api.routes import (
    api_docs,
    approvals,
    blobs,
    context,
    conversation,
    events,
    health,
    markdown,
    page,
    sessions,
    tasks,
)
from turnkeeper.api.services import Services
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.partials.carrier import PartialCarrier
from turnkeeper.stores.partials.chosen import chosen_carrier
from turnkeeper.stores.stores import Stores
from turnkeeper.workflows.hosting.connection import connect, outage_logged

MAX_DRAINED_BYTES = 32 * 1024 * 1024
DRAIN_SECONDS = 5.0
"""What is still taken, and dropped, of a body that is refused."""


def _routes_of_the_api() -> APIRouter:
    router = APIRouter(dependencies=[Depends(refuse_unknown_parameters)])
    for routes in (sessions, conversation, events, approvals, context, tasks, blobs, markdown, ai_sdk, health):
        router.include_router(routes.router)
    return router


ROUTES = _routes_of_the_api()
"""FastAPI takes 0.1 s to prepare them for the first request: once for all apps of a process."""


def create_app(settings: Settings, *, client: Client | None = None, partials: PartialCarrier | None = None) -> FastAPI:
    """Build the gateway; it connects when it starts, or uses `client`. Raises `SettingsError`.

    Partial output comes by the carrier that the settings name, or by `partials`: one in memory, say, where the worker
    is in this process too. That one is its owner's to close.
    """
    stores, carrier = Stores.of(settings), chosen_carrier(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        temporal = client or await connect(settings, lazy=True)
        noted = nullcontext() if client else outage_logged(temporal, settings)
        async with noted, stores, nullcontext(partials) if partials else carrier(temporal) as partial_carrier:
            services = app.state.services = Services.of(temporal, settings, stores, partial_carrier)
            yield
            await services.close()

    app = _Gateway(
        title="Turnkeeper",
        version="0.1.0",
        summary="Durable AI-agent sessions on Temporal.",
        lifespan=lifespan,
        routes=list(ROUTES.routes),
        dependencies=[Depends(refuse_unknown_parameters)],
        openapi_tags=TAGS,
        servers=[{"url": "/", "description": "This gateway."}],
        docs_url=None,
        redoc_url=None,
    )
    problems.install(app)
    page.install(app, settings)
    api_docs.install(app)
    app.add_middleware(HeadRequests)
    app.add_middleware(BoundedAndUnstored)
    app.add_middleware(ImpatientStreams)
    # The last one added is the first one asked: nothing is read or spent for whoever is refused.
    app.add_middleware(OriginCheck, settings=settings)
    return app


class _Gateway(FastAPI):
    def openapi(self) -> dict[str, Any]:
        return described(super().openapi())


class BoundedAndUnstored:
    """Refuses bodies over the limit without reading them to their end, and lets nobody store what is answered."""

    def __init__(self, app: ASGIApp) -> None:
        """Stand before `app`. FastAPI's own limit is the same, but answers in plain text."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = most_body_bytes(scope["path"])
        if _announced_bytes(scope) > most:
            await _drain(scope, receive)
            await problems.answer(problems.too_large(most).problem)(scope, receive, send)
        else:
            await self._app(scope, _counting(scope, receive, most), _without_storing(send))


def _announced_bytes(scope: Scope) -> int:
    length = dict(scope["headers"]).get(b"content-length", b"0")
    return int(length) if length.isdigit() else 0


async def _drain(scope: Scope, receive: Receive) -> None:
    """Take the rest of a body and drop it, up to a bound.

    A client that sends all before it reads, over a connection that is closed then, would be told of the reset only.
    """
    if any(name == b"expect" for name, _ in scope["headers"]):
        return  # it waits for the answer before it sends
    remaining = MAX_DRAINED_BYTES
    with anyio.move_on_after(DRAIN_SECONDS):
        while remaining > 0:
            message = await receive()
            remaining -= len(message.get("body", b""))
            if not message.get("more_body"):
                return


def _counting(scope: Scope, receive: Receive, most: int) -> Receive:
    received = 0

    async def receive_counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > most:
            if message.get("more_body"):
                await _drain(scope, receive)
            raise HTTPException(413, problems.too_large(most).problem.detail)
        return message

    return receive_counted


def _without_storing(send: Send) -> Send:
    async def send_without_storing(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = {name.lower(): value for name, value in message["headers"]}
            # What FastAPI says of event streams lets them be stored.
            is_stream = headers.get(b"content-type", b"").startswith(b"text/event-stream")
            if is_stream or b"cache-control" not in headers:
                others = [(name, value) for name, value in message["headers"] if name.lower() != b"cache-control"]
                message["headers"] = [*others, (b"cache-control", b"no-store")]
        await send(message)

    return send_without_storing
