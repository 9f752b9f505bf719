"""Who may use what: the callers of the matrix, and a gateway without anything behind it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
from fastapi import FastAPI

from turnkeeper.api.callers import ROLES, Role
from turnkeeper.api.roles import Access
from turnkeeper.features.access.tables import ApiKeys
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.stores import Stores

HERE = "http://127.0.0.1:8080"


@dataclass(frozen=True)
class Column:
    """A caller of the matrix. The stranger is the admin of another tenant, for whom every id is an unknown one."""

    name: str
    role: Role | None
    tenant: str = ""

    def outcome(self, access: Access) -> str:
        """Return what a request to a route with this access gets: `through`, `unauthenticated` or `forbidden`."""
        if access == "open":
            return "through"
        if self.role is None:
            return "unauthenticated"
        return "through" if ROLES.index(self.role) >= ROLES.index(access) else "forbidden"


COLUMNS = [Column("no key", None), Column("stranger", "admin", "strangers"), *(Column(role, role) for role in ROLES)]


async def key_of(settings: Settings, column: Column) -> str | None:
    """Create the column's key in the store of `settings`."""
    if column.role is None:
        return None
    async with Stores.of(settings) as stores:
        _, text = await ApiKeys(stores.database).create(
            tenant=column.tenant, user=column.name, role=column.role, now=datetime.now(UTC)
        )
    return text


@asynccontextmanager
async def client_of(app: FastAPI, key: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """A client that sends the key, if there is one. The app need not be started."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(transport=transport, base_url=HERE, headers=headers) as http:
        yield http


def outcome_of(answer: httpx.Response) -> str:
    """Return the outcome of a request: `through`, unless the check of callers refused it."""
    if answer.status_code not in (401, 403):
        return "through"
    problem: dict[str, Any] = answer.json()
    assert problem["status"] == answer.status_code
    return str(problem["type"]).removeprefix("urn:turnkeeper:problem:")
