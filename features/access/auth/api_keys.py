"""API keys: who has one, and what its holder may do (API-4).

A key is `tk_<id>_<secret>`. The id finds the row; the secret is 256 random bits, of which the row has only a hash. So
neither the database nor a copy of it lets anybody in, and a lost key can't be shown again.
"""

import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from sqlalchemy import Connection, Row, select, update

from turnkeeper.features.access.tables import API_KEYS
from turnkeeper.models.roles import Role, parse_role
from turnkeeper.stores.database.database import Database
from turnkeeper.stores.database.moments import microseconds, moment_of
from turnkeeper.stores.database.rows import insert_missing

WithKey = Callable[[Connection, "ApiKey"], None]
"""What belongs into the same transaction as a key's creation or revocation."""

ID_BYTES = 8
SECRET_BYTES = 32

PREFIX = "tk_"
_KEY = re.compile(rf"{PREFIX}(?P<id>[0-9a-f]{{{2 * ID_BYTES}}})_(?P<secret>[A-Za-z0-9_-]{{43}})")

_NO_DIGEST = bytes(sha256().digest_size)
"""Compared with where there is no key, so that an unknown id takes as long as a wrong secret."""


@dataclass(frozen=True)
class ApiKey:
    """A key as it is stored, without its secret."""

    id: str
    digest: bytes
    tenant: str
    user: str | None
    role: Role
    created_at: datetime
    expires_at: datetime | None = None
    """From when on it opens nothing; None: it does not expire."""
    revoked_at: datetime | None = None

    def is_valid(self, *, now: datetime) -> bool:
        """Return whether the key was neither revoked nor has expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def parse_key(text: str) -> tuple[str, str] | None:
    """Return the id and the secret of a key; `None` if `text` is no key.

    >>> parse_key("tk_0123456789abcdef_" + 43 * "A")[0], parse_key("tk_0123456789abcdef_A")
    ('0123456789abcdef', None)
    """
    parts = _KEY.fullmatch(text)
    return (parts["id"], parts["secret"]) if parts else None


def has_secret(key: ApiKey | None, secret: str) -> bool:
    """Return whether `secret` is the key's. Takes the same time if there is no key."""
    digest = key.digest if key else _NO_DIGEST
    return hmac.compare_digest(digest, _digest(secret)) and key is not None


class ApiKeys:
    """The keys of all tenants. Every method raises `StoreUnavailableError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        *,
        tenant: str,
        user: str | None,
        role: Role,
        now: datetime,
        expires_at: datetime | None = None,
        with_key: WithKey | None = None,
    ) -> tuple[ApiKey, str]:
        """Create and store a key. Return it, and the text with its secret, which is not stored."""
        secret = secrets.token_urlsafe(SECRET_BYTES)
        key = ApiKey(secrets.token_hex(ID_BYTES), _digest(secret), tenant, user, role, now, expires_at)
        row: dict[str, object] = {
            "id": key.id,
            "digest": key.digest,
            "tenant": tenant,
            "user": user,
            "role": role,
            "created_at": microseconds(now),
            "expires_at": expires_at and microseconds(expires_at),
            "revoked_at": None,
        }

        def insert(connection: Connection) -> None:
            insert_missing(connection, API_KEYS, [row])
            if with_key:
                with_key(connection, key)

        await self._database.write(insert)
        return key, f"{PREFIX}{key.id}_{secret}"

    async def find(self, key_id: str) -> ApiKey | None:
        """Return a key, also one that was revoked or has expired; `None` if there is none."""
        return await self._database.read(lambda connection: _find(connection, key_id))

    async def list(self) -> list[ApiKey]:
        """Return all keys, the oldest first."""
        query = select(API_KEYS).order_by(API_KEYS.c.created_at, API_KEYS.c.id)
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return [_key_of(row) for row in rows]

    async def revoke(self, key_id: str, *, now: datetime, with_key: WithKey | None = None) -> ApiKey | None:
        """Revoke a key and return it; `None` if there is none. A key that was revoked before stays as it is."""
        is_open = (API_KEYS.c.id == key_id) & API_KEYS.c.revoked_at.is_(None)
        change = update(API_KEYS).where(is_open).values(revoked_at=microseconds(now))

        def revoke(connection: Connection) -> ApiKey | None:
            connection.execute(change)
            key = _find(connection, key_id)
            if key and with_key:
                with_key(connection, key)
            return key

        return await self._database.write(revoke)


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


def _find(connection: Connection, key_id: str) -> ApiKey | None:
    row = connection.execute(select(API_KEYS).where(API_KEYS.c.id == key_id)).one_or_none()
    return None if row is None else _key_of(row)


def _key_of(row: Row[tuple[object, ...]]) -> ApiKey:
    # A role that only a newer version knows may do the least here.
    return ApiKey(
        id=row.id,
        digest=row.digest,
        tenant=row.tenant,
        user=row.user,
        role=parse_role(row.role) or "reader",
        created_at=moment_of(row.created_at),
        expires_at=None if row.expires_at is None else moment_of(row.expires_at),
        revoked_at=None if row.revoked_at is None else moment_of(row.revoked_at),
    )
