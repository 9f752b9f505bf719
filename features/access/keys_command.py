"""`turnkeeper keys`: creates, lists and revokes the keys of the gateway's callers (API-4).

They are in the database of the archive, so any machine whose settings name it can do this, with no gateway running.
"""

import getpass
import json
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from uuid import uuid4

from sqlalchemy import Connection

from turnkeeper.features.access.tables import ApiKey, ApiKeys, AuditRow, put_entry
from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.http_responses import ROLES, Action, Role, parse_role
from turnkeeper.models.ids import TENANT_PATTERN, is_tenant
from turnkeeper.models.session.messages import USER_PATTERN
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.stores import Stores

_DURATION = re.compile(r"(?P<count>[0-9]{1,5})(?P<unit>[hd])")
_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1)}

COMMAND = "command"
"""The caller of what a command does in the database itself."""

NOTE = "Key {id} was created. It is not shown again."
NOT_NEEDED = "The gateway needs no key until auth.keys is true."
NO_KEYS = "There are no keys."
REVOKED = "Key {id} is revoked. It is refused within a second, and streams that it opened end within five."
UNKNOWN_KEY = "There is no key {id!r}. `turnkeeper keys list` lists all."
BAD_EXPIRY = "--expires {text!r} must be a duration (12h, 90d) or a date (2027-01-31)."
PAST_EXPIRY = "--expires {text!r} is in the past."
BAD_TENANT = "--tenant {tenant!r} is not a tenant's name; it must match {pattern}."
BAD_USER = "--user {user!r} is not a user's name; it must match {pattern}."
BAD_ROLE = "--role {role!r} is not a role; use one of {roles}."


class KeyOptionError(TurnkeeperError):
    """An option of `turnkeeper keys` is not valid."""


@dataclass(frozen=True)
class NewKey:
    """What a new key is to be."""

    tenant: str
    user: str | None
    role: Role
    expires_at: datetime | None

    @classmethod
    def of(cls, *, tenant: str, user: str | None, role: str, expires: str | None) -> "NewKey":
        """Check the options. Raises `KeyOptionError`."""
        checked_role = parse_role(role)
        if checked_role is None:
            raise KeyOptionError(BAD_ROLE.format(role=role, roles=", ".join(ROLES)))
        if not is_tenant(tenant):
            raise KeyOptionError(BAD_TENANT.format(tenant=tenant, pattern=TENANT_PATTERN))
        if user is not None and not re.fullmatch(USER_PATTERN, user):
            raise KeyOptionError(BAD_USER.format(user=user, pattern=USER_PATTERN))
        return cls(tenant, user, checked_role, expiry(expires, now=datetime.now(UTC)) if expires else None)


def expiry(text: str, *, now: datetime) -> datetime:
    """Return the moment that `text` names: after a number of hours or days, or at the beginning of a date in UTC.

    >>> now = datetime(2026, 11, 23, tzinfo=UTC)
    >>> expiry("12h", now=now).isoformat(), expiry("2027-01-31", now=now).isoformat()
    ('2026-11-23T12:00:00+00:00', '2027-01-31T00:00:00+00:00')

    Raises:
        KeyOptionError: It is neither, or in the past.
    """
    if duration := _DURATION.fullmatch(text):
        moment = now + int(duration["count"]) * _UNITS[duration["unit"]]
    else:
        try:
            day = date.fromisoformat(text)
        except ValueError:
            raise KeyOptionError(BAD_EXPIRY.format(text=text)) from None
        moment = datetime(day.year, day.month, day.day, tzinfo=UTC)
    if moment <= now:
        raise KeyOptionError(PAST_EXPIRY.format(text=text))
    return moment


async def create_key(settings: Settings, new: NewKey, *, as_json: bool) -> tuple[str, list[str]]:
    """Create a key. Return its text, or JSON with it, and notes for people. Raises `StoreUnavailableError`."""
    async with Stores.of(settings) as stores:
        key, text = await ApiKeys(stores.database).create(
            tenant=new.tenant,
            user=new.user,
            role=new.role,
            now=datetime.now(UTC),
            expires_at=new.expires_at,
            with_key=partial(_record, action="create_key"),
        )
    if as_json:
        return json.dumps({**_fields(key), "key": text}), []
    return text, [NOTE.format(id=key.id), *([] if settings.auth.keys else [NOT_NEEDED])]


async def list_keys(settings: Settings, *, as_json: bool) -> list[str]:
    """Return a line for each key, without its secret. Raises `StoreUnavailableError`."""
    async with Stores.of(settings) as stores:
        keys = await ApiKeys(stores.database).list()
    if as_json:
        return [json.dumps(_fields(key)) for key in keys]
    return [_line(key, now=datetime.now(UTC)) for key in keys] or [NO_KEYS]


async def lacks_key(settings: Settings) -> bool:
    """Return whether callers need a key, and there is none that is valid. Raises `StoreUnavailableError`."""
    if not settings.auth.keys or settings.auth.oidc.issuer:
        return False
    if settings.archive_url is None and not (settings.state_dir / "archive.db").exists():
        return True
    async with Stores.of(settings) as stores:
        return not any(key.is_valid(now=datetime.now(UTC)) for key in await ApiKeys(stores.database).list())


async def revoke_key(settings: Settings, key_id: str, *, as_json: bool) -> str:
    """Revoke a key; repeating it has no effect. Raises `KeyOptionError` and `StoreUnavailableError`."""
    async with Stores.of(settings) as stores:
        key = await ApiKeys(stores.database).revoke(
            key_id, now=datetime.now(UTC), with_key=partial(_record, action="revoke_key")
        )
    if key is None:
        raise KeyOptionError(UNKNOWN_KEY.format(id=key_id))
    return json.dumps(_fields(key)) if as_json else REVOKED.format(id=key.id)


def _record(connection: Connection, key: ApiKey, *, action: Action) -> None:
    """Write into the audit of the key's tenant what is done with it, and by which user of this machine.

    In the same transaction: otherwise a key could be valid that nobody was shown and the audit does not have.
    """
    row = AuditRow(
        id=uuid4().hex,
        at=datetime.now(UTC),
        tenant=key.tenant,
        caller=COMMAND,
        user=_user_of_this_machine(),
        role="admin",
        operation=f"keys:{action}",
        action=action,
        key_id=key.id,
        status=200,
    )
    put_entry(connection, row)


def _user_of_this_machine() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return None


def _fields(key: ApiKey) -> dict[str, str | None]:
    return {
        "id": key.id,
        "tenant": key.tenant,
        "user": key.user,
        "role": key.role,
        "created_at": key.created_at.isoformat(),
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
        "revoked_at": key.revoked_at.isoformat() if key.revoked_at else None,
    }


def _line(key: ApiKey, *, now: datetime) -> str:
    if key.revoked_at:
        state = f"revoked {key.revoked_at:%Y-%m-%d}"
    elif key.expires_at:
        state = f"{'expires' if key.is_valid(now=now) else 'expired'} {key.expires_at:%Y-%m-%d}"
    else:
        state = "does not expire"
    return f"{key.id}  {key.role:<8}  {key.tenant or '-':<12}  {state:<19}  {key.user or '-'}"
