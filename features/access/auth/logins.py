"""Logins of browsers: what the cookie of the page stands for (API-4).

The cookie has a random token, of which the row has only a hash. So neither key nor token of the issuer is ever in a
browser's cookies, and a login can be ended without ending its key.
"""

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from sqlalchemy import Connection, Row, delete, select

from turnkeeper.features.access.tables import LOGINS
from turnkeeper.models.roles import Role, parse_role
from turnkeeper.stores.database.database import Database
from turnkeeper.stores.database.moments import microseconds, moment_of
from turnkeeper.stores.database.rows import insert_missing

TOKEN_BYTES = 32

_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(frozen=True)
class Login:
    """Whose login it is, and until when."""

    digest: str
    key_id: str | None
    """The key that was used, which ends the login too; `None`: a token of the issuer."""
    caller_id: str
    tenant: str
    user: str | None
    role: Role
    expires_at: datetime


def digest_of_token(token: str) -> str | None:
    """Return the hash by which a login is stored; `None` if `token` is none.

    >>> digest_of_token("tk_0123456789abcdef_A") is None
    True
    """
    return sha256(token.encode()).hexdigest() if _TOKEN.fullmatch(token) else None


class Logins:
    """The logins of all tenants. Every method raises `StoreUnavailableError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, make: Callable[[str], Login], *, now: datetime) -> str:
        """Store the login that `make` returns for its digest, and remove expired ones. Return its token."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        login = make(sha256(token.encode()).hexdigest())
        row = {**vars(login), "expires_at": microseconds(login.expires_at)}
        expired = delete(LOGINS).where(LOGINS.c.expires_at <= microseconds(now))

        def insert(connection: Connection) -> None:
            connection.execute(expired)
            insert_missing(connection, LOGINS, [row])

        await self._database.write(insert)
        return token

    async def find(self, digest: str) -> Login | None:
        """Return a login, also an expired one; `None` if there is none."""
        query = select(LOGINS).where(LOGINS.c.digest == digest)
        row = await self._database.read(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else _login_of(row)

    async def delete(self, digest: str) -> None:
        """End a login. A second run changes nothing."""
        change = delete(LOGINS).where(LOGINS.c.digest == digest)
        await self._database.write(lambda connection: connection.execute(change))


def _login_of(row: Row[tuple[object, ...]]) -> Login:
    return Login(
        digest=row.digest,
        key_id=row.key_id,
        caller_id=row.caller_id,
        tenant=row.tenant,
        user=row.user,
        role=parse_role(row.role) or "reader",
        expires_at=moment_of(row.expires_at),
    )
