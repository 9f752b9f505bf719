"""Agents in somebody's own FastAPI application, below /agents and with its own login.

`turnkeeper up examples/shop.py` runs Temporal and a worker; then `uvicorn mounted:app --app-dir examples`. The
application knows its users; each of them sees only the sessions of the own shop, which is the tenant.
"""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Response
from starlette.requests import HTTPConnection

from turnkeeper import Caller, Role, Settings, create_app, load_settings

USERS: dict[str, tuple[str, Role]] = {"anna": ("tea-shop", "approver"), "ben": ("bike-shop", "admin")}
"""Of each user the shop, and the role in its sessions. Yours are in a database."""

COOKIE = "login"
LOGINS: dict[str, str] = {}
"""The user of each browser that is logged in."""


async def authenticate(request: HTTPConnection) -> Caller | None:
    """Return who is logged in at this application; None: nobody."""
    name = LOGINS.get(request.cookies.get(COOKIE, ""))
    if name is None:
        return None
    shop, role = USERS[name]
    return Caller(id=f"app:{name}", tenant=shop, user=name, role=role)


def build(settings: Settings) -> FastAPI:
    """Return the application, with the gateway in it."""
    gateway = create_app(settings, authenticate=authenticate)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with gateway.router.lifespan_context(gateway):  # Starlette does not start what is mounted
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/login/{name}")
    async def log_in(name: str, response: Response) -> str:
        token = secrets.token_urlsafe()
        LOGINS[token] = name  # yours asks for a password
        response.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return f"Hello, {name}."

    app.mount("/agents", gateway)
    return app


def __getattr__(name: str) -> FastAPI:
    """Build the application when uvicorn asks for it, and not when a test loads this file."""
    if name == "app":
        return build(load_settings())
    raise AttributeError(name)
