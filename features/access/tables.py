"""Keys, logins, and the audit, which outlives the sessions that it names: their tables, and their rows (API-4).

A key is `tk_<id>_<secret>`. The id finds the row; the secret is 256 random bits, of which the row has only a hash. So
neither the database nor a copy of it lets anybody in, and a lost key can't be shown again.

The cookie of a browser that has logged in has a random token, of which the row has only a hash. So neither key nor
token of the issuer is ever in a browser's cookies, and a login can be ended without ending its key.

A change has one row in the audit, written before the change, which gets its outcome once and is never changed
otherwise. A row without an outcome is of a gateway that stopped in between.
"""

import hmac
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Index,
    Integer,
    LargeBinary,
    Row,
    String,
    Table,
    Text,
    delete,
    select,
    tuple_,
    update,
)

from turnkeeper.models.http_responses import Role, parse_role
from turnkeeper.stores.database.database import Database
from turnkeeper.stores.database.rows import insert_into, insert_missing, microseconds, moment_of
from turnkeeper.stores.database.tables import MAX_ID_CHARS, METADATA

API_KEYS = Table(
    "api_keys",
    METADATA,
    Column("id", String(64), primary_key=True),
    # SHA-256 of the secret: 256 random bits, which no dictionary has, need no slow hash.
    Column("digest", LargeBinary, nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("user", String(MAX_ID_CHARS)),
    Column("role", String(16), nullable=False),
    # Microseconds since 1970.
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
)

LOGINS = Table(
    "logins",
    METADATA,
    # SHA-256 of the token in the browser's cookie, in hex.
    Column("digest", String(64), primary_key=True),
    # The key that was used; without one, a token of the issuer.
    Column("key_id", String(64)),
    Column("caller_id", String(MAX_ID_CHARS), nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("user", String(MAX_ID_CHARS)),
    Column("role", String(16), nullable=False),
    # Microseconds since 1970.
    Column("expires_at", BigInteger, nullable=False),
    Index(None, "expires_at"),
)

AUDIT = Table(
    "audit",
    METADATA,
    Column("id", String(64), primary_key=True),
    # Microseconds since 1970.
    Column("at", BigInteger, nullable=False),
    Column("tenant", String(MAX_ID_CHARS), nullable=False),
    Column("caller", String(MAX_ID_CHARS), nullable=False),
    Column("user", String(MAX_ID_CHARS)),
    Column("role", String(32), nullable=False),
    Column("operation", String(64), nullable=False),
    Column("action", String(32), nullable=False),
    Column("session_id", String(MAX_ID_CHARS)),
    Column("message_id", String(MAX_ID_CHARS)),
    Column("call_id", String(64)),
    Column("key_id", String(64)),
    # Names with commas between them.
    Column("fields", Text, nullable=False),
    # The outcome. Without one, the gateway stopped before it knew.
    Column("status", Integer),
    Index(None, "tenant", "at"),
    Index(None, "session_id", "at"),
)


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


@dataclass
class AuditRow:
    """A change that somebody asks for."""

    id: str
    at: datetime
    tenant: str
    caller: str
    user: str | None
    role: str
    operation: str
    action: str
    session_id: str | None = None
    message_id: str | None = None
    call_id: str | None = None
    key_id: str | None = None
    fields: tuple[str, ...] = ()
    status: int | None = None
    """The outcome, as the status of an answer; None: it is not known, or not yet."""


@dataclass(frozen=True)
class AuditFilter:
    """Which entries of a tenant; None: all."""

    tenant: str
    session_id: str | None = None
    user: str | None = None
    action: str | None = None
    since: datetime | None = None


Position = tuple[int, str]
"""Of an entry in the list: its time in microseconds since 1970, and its id."""


class Audit:
    """All entries. Every method raises `StoreUnavailableError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, rows: Sequence[AuditRow]) -> None:
        """Add entries, and complete those that had no outcome, in one transaction; all others stay as they are."""
        values = [_values(row) for row in rows]
        if values:
            await self._database.write(lambda connection: _put(connection, values))

    async def page(self, which: AuditFilter, *, before: Position | None, limit: int) -> list[AuditRow]:
        """Return at most `limit` entries, newest first, from `before` on."""
        query = select(AUDIT).where(*_conditions(which)).order_by(AUDIT.c.at.desc(), AUDIT.c.id.desc()).limit(limit)
        if before:
            query = query.where(tuple_(AUDIT.c.at, AUDIT.c.id) < before)
        return [_entry(row) for row in await self._database.read(lambda connection: connection.execute(query).all())]


def position_of(row: AuditRow) -> Position:
    """Return where the page after `row` begins."""
    return (microseconds(row.at), row.id)


def put_entry(connection: Connection, row: AuditRow) -> None:
    """Add an entry in this transaction."""
    _put(connection, [_values(row)])


def _put(connection: Connection, values: Sequence[dict[str, Any]]) -> None:
    insert = insert_into(connection.dialect.name, AUDIT)
    completed = {name: insert.excluded[name] for name in ("session_id", "message_id", "status")}
    has_no_outcome = AUDIT.c.status.is_(None)
    connection.execute(
        insert.on_conflict_do_update(index_elements=["id"], set_=completed, where=has_no_outcome), values
    )


def _conditions(which: AuditFilter) -> list[ColumnElement[bool]]:
    values = {"session_id": which.session_id, "user": which.user, "action": which.action}
    conditions = [AUDIT.c.tenant == which.tenant]
    conditions += [AUDIT.c[name] == value for name, value in values.items() if value is not None]
    if which.since is not None:
        conditions.append(AUDIT.c.at >= microseconds(which.since))
    return conditions


def _values(row: AuditRow) -> dict[str, Any]:
    return {**asdict(row), "at": microseconds(row.at), "fields": ",".join(row.fields)}


def _entry(row: Row[Any]) -> AuditRow:
    values = row._asdict()
    return AuditRow(**{**values, "at": moment_of(row.at), "fields": tuple(filter(None, row.fields.split(",")))})
