"""Logins of browsers: from the cookie of the page to its caller (API-4).

Browsers send a cookie to every server on the same host name, whatever its port. So the cookie has no key, only a random
token that is of use at this gateway alone, until the login ends.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from turnkeeper.api.callers import Caller, Identity
from turnkeeper.api.problems import problem
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.features.access.auth.keys import KeyVerifier
from turnkeeper.features.access.auth.logins import Login, Logins, digest_of_token
from turnkeeper.features.access.auth.recent_lookups import RecentLookups

LIFETIME = timedelta(days=7)
"""How long a browser stays logged in, unless its key or token ends before."""

SECURE_PREFIX = "__Host-"
"""Browsers accept a cookie of such a name only over https, and from this host itself."""


def cookie_name(headers: Headers, *, is_secure: bool) -> str:
    """Return the name of the cookie, with the port: gateways at other ports of this host name have their own.

    >>> cookie_name(Headers({"host": "127.0.0.1:8080"}), is_secure=False)
    'turnkeeper_8080'
    """
    port = headers.get("host", "").rpartition(":")[2]
    name = f"turnkeeper_{port}" if port.isdecimal() else "turnkeeper"
    return f"{SECURE_PREFIX}{name}" if is_secure else name


def login_token(headers: Headers) -> str | None:
    """Return the token in a browser's cookie; `None` if there is none."""
    cookies: dict[str, str] = {}
    for header in headers.getlist("cookie"):
        cookies = {**cookie_parser(header), **cookies}
    names = (cookie_name(headers, is_secure=is_secure) for is_secure in (True, False))
    return next((cookies[name] for name in names if name in cookies), None)


class LoginVerifier:
    """Creates, verifies and ends logins. One that ended is refused within a second."""

    def __init__(self, logins: Logins, keys: KeyVerifier | None, timeouts: Timeouts) -> None:
        self._logins = logins
        self._recent = RecentLookups[Login](logins.find, timeouts)
        self._keys = keys

    async def create(self, identity: Identity) -> str:
        """Log a caller in, and return the cookie's token. Raises `StoreUnavailableError`."""
        now, caller = datetime.now(UTC), identity.caller
        expires_at = now + LIFETIME
        if identity.expires_at is not None:
            expires_at = min(expires_at, datetime.fromtimestamp(identity.expires_at, UTC))
        return await self._logins.create(
            lambda digest: Login(
                digest, identity.key_id, caller.id, caller.tenant, caller.user, caller.role, expires_at
            ),
            now=now,
        )

    async def verify(self, token: str) -> Identity:
        """Return whose login it is. Raises `ProblemError` 401 and `StoreUnavailableError`."""
        digest = digest_of_token(token)
        login = await self._recent.find(digest) if digest else None
        if login is None or datetime.now(UTC) >= login.expires_at:
            raise problem("unauthenticated")
        expires_at = login.expires_at.timestamp()
        if login.key_id is None:
            caller = Caller(id=login.caller_id, tenant=login.tenant, user=login.user, role=login.role)
            return Identity(caller, login=login.digest, expires_at=expires_at)
        if self._keys is None:  # keys were accepted when it began
            raise problem("unauthenticated")
        identity = await self._keys.identity_of(login.key_id)
        return replace(identity, login=login.digest, expires_at=expires_at)

    async def end(self, token: str) -> None:
        """Log out. Raises `StoreUnavailableError`."""
        if digest := digest_of_token(token):
            await self._logins.delete(digest)
            self._recent.forget(digest)

    async def is_valid(self, digest: str) -> bool:
        """Return whether the login was not ended. Raises `StoreUnavailableError`."""
        return await self._recent.find(digest) is not None
