"""A gateway whose callers say themselves who they are: tests of the audit and of limits need no keys."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient
from starlette.requests import HTTPConnection
from temporalio.client import Client

from tests.harness import patient
from turnkeeper.api.app import create_app
from turnkeeper.api.callers import LOCAL_IDENTITY, Caller, Identity
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.partials.carrier import PartialCarrier

ADA = Caller("key:ada", "", "Ada", "admin")
BOB = Caller("key:bob", "", "Bob", "approver")
EVE = Caller("key:eve", "acme", "Eve", "admin")
CALLERS = {caller.id: caller for caller in (ADA, BOB, EVE)}

HEADER = "x-caller"


async def identify(request: HTTPConnection) -> Identity:
    """Believe the header: stands for the authentication. A request without it is a local one."""
    caller = CALLERS.get(request.headers.get(HEADER, ""))
    return Identity(caller) if caller else LOCAL_IDENTITY


@asynccontextmanager
async def gateway_of_callers(
    client: Client | None, settings: Settings, *, partials: PartialCarrier | None = None
) -> AsyncIterator[FastAPI]:
    app = create_app(settings, client=client, partials=partials, timeouts=patient())
    app.state.authenticator.identify = identify
    async with app.router.lifespan_context(app):
        yield app


@asynccontextmanager
async def client_of(app: FastAPI, caller: Caller | None = None) -> AsyncIterator[AsyncClient]:
    """Yield a client whose requests are the caller's; None: of nobody with a credential."""
    transport = ASGITransport(app=app, raise_app_exceptions=False)
    headers = {HEADER: caller.id} if caller else {}
    async with AsyncClient(transport=transport, base_url="http://localhost", timeout=70, headers=headers) as http:
        yield http
