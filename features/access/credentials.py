"""Credentials: what a request carries, and whose it is (API-4).

Programs send `Authorization: Bearer` with a key or a token. A browser that has logged in has a cookie, which no script
can read and which no other site's page makes it send. Browsers send a cookie to every server on the same host name,
whatever its port. So the cookie has no key, only a random token that is of use at this gateway alone, until the login
ends.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio
from cachetools import LRUCache
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, cookie_parser

from turnkeeper.api.callers import LOCAL, LOCAL_IDENTITY, Caller, Identity
from turnkeeper.api.coalescer import Coalescer
from turnkeeper.api.problems import NO_CREDENTIAL, problem
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.features.access.tables import (
    PREFIX,
    ApiKey,
    ApiKeys,
    Login,
    Logins,
    digest_of_token,
    has_secret,
    parse_key,
)
from turnkeeper.models.settings.settings import AuthSettings
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.waiting import cancel_until_done

if TYPE_CHECKING:
    from turnkeeper.features.access.oidc import TokenVerifier

MAX_CACHED = 10_000
"""Rows in the cache, missing ones included: a stranger may ask for any number of those."""

Row = TypeVar("Row")


class RecentLookups(Generic[Row]):
    """Finds rows by their ids."""

    def __init__(self, look_up: Callable[[str], Awaitable[Row | None]], timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._look_up = look_up
        self._cache = LRUCache[str, tuple[float, Row | None]](maxsize=MAX_CACHED)
        self._running = Coalescer[str, Row | None]()

    async def find(self, row_id: str) -> Row | None:
        """Return the row, or `None`, as it was at most `Timeouts.lookup_cache` ago. Raises what the lookup raises."""
        looked_up_at, row = self._cache.get(row_id, (float("-inf"), None))
        if time.monotonic() - looked_up_at < self._timeouts.lookup_cache:
            return row
        return await self._running.run(row_id, lambda: self._find(row_id))

    def forget(self, row_id: str) -> None:
        self._cache.pop(row_id, None)

    async def _find(self, row_id: str) -> Row | None:
        # The time before the lookup: the row may change during it.
        started_at = time.monotonic()
        row = await self._look_up(row_id)
        self._cache[row_id] = (started_at, row)
        return row


class KeyVerifier:
    """Verifies keys. A key that can't be looked up is a 503, not a 401: the caller should try again."""

    def __init__(self, keys: ApiKeys, timeouts: Timeouts) -> None:
        self._keys = RecentLookups[ApiKey](lambda key_id: keys.find(key_id), timeouts)

    async def verify(self, text: str) -> Identity:
        """Return whose key it is. Raises `ProblemError` 401 and `StoreUnavailableError`."""
        parts = parse_key(text)
        if parts is None:
            raise problem("unauthenticated")
        key_id, secret = parts
        key = await self._keys.find(key_id)
        is_own = has_secret(key, secret)
        if key is None:
            raise problem("unauthenticated")
        if not is_own:
            raise problem("unauthenticated", caller=_caller_of(key))
        return _identity_of(key)

    async def identity_of(self, key_id: str) -> Identity:
        """Return whose key it is, without its secret. Raises as `verify` does."""
        key = await self._keys.find(key_id)
        if key is None:
            raise problem("unauthenticated")
        return _identity_of(key)

    async def is_valid(self, key_id: str) -> bool:
        """Return whether the key can still be used. Raises `StoreUnavailableError`."""
        key = await self._keys.find(key_id)
        return key is not None and key.is_valid(now=datetime.now(UTC))


def _caller_of(key: ApiKey) -> Caller:
    return Caller(id=f"key:{key.id}", tenant=key.tenant, user=key.user, role=key.role)


def _identity_of(key: ApiKey) -> Identity:
    caller = _caller_of(key)
    if not key.is_valid(now=datetime.now(UTC)):
        raise problem("unauthenticated", caller=caller)
    expires_at = key.expires_at.timestamp() if key.expires_at else None
    return Identity(caller, key_id=key.id, expires_at=expires_at)


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


_log = logging.getLogger(__name__)


def credential_in(headers: Headers) -> str | None:
    """Return the key or token of a program; `None` if there is none. Raises `ProblemError` 401 if there are several."""
    values = headers.getlist("authorization")
    if len(values) > 1:
        raise problem("unauthenticated")
    scheme, _, credential = (values[0] if values else "").partition(" ")
    return credential.strip() or None if scheme.lower() == "bearer" else None


@dataclass(frozen=True, eq=False)
class _OpenRequest:
    """A part of a request that can be ended: all of it, or its wait."""

    scope: anyio.CancelScope
    may_end: Callable[[], bool]

    def cancel(self) -> None:
        """End it, unless it may not end now. The next check of its credential tries again."""
        if self.may_end():
            self.scope.cancel()


class CredentialAuthenticator:
    """Says whose credential a request carries, and ends requests whose credential has ended."""

    def __init__(self, settings: AuthSettings, keys: ApiKeys, logins: Logins, timeouts: Timeouts) -> None:
        self._settings = settings
        self._timeouts = timeouts
        self._keys = KeyVerifier(keys, timeouts) if settings.keys else None
        self.logins = LoginVerifier(logins, self._keys, timeouts)
        self._tokens: TokenVerifier | None = None
        self._open: dict[Identity, set[_OpenRequest]] = {}

    @property
    def is_on(self) -> bool:
        """Whether requests need a credential."""
        return self._settings.is_on

    async def identify(self, request: HTTPConnection) -> Identity:
        """Return who sends a request.

        Raises `ProblemError` 401 or 503, and `StoreUnavailableError` if keys can't be looked up.
        """
        if not self.is_on:
            return LOCAL_IDENTITY
        if credential := credential_in(request.headers):
            return await self.verify(credential)
        if token := login_token(request.headers):
            return await self.logins.verify(token)
        raise problem("unauthenticated", NO_CREDENTIAL)

    async def verify(self, credential: str) -> Identity:
        """Return whose credential it is. Raises as `identify` does."""
        if credential.startswith(PREFIX) and self._keys:
            return await self._keys.verify(credential)
        if self._settings.oidc.issuer is None:
            raise problem("unauthenticated")
        if self._tokens is None:
            # Slow to load, and not every gateway has an issuer.
            from turnkeeper.features.access.oidc import TokenVerifier

            self._tokens = TokenVerifier(self._settings.oidc, self._timeouts)
        return await self._tokens.verify(credential)

    # ---- requests that last

    @contextlib.contextmanager
    def until_it_ends(
        self, identity: Identity, *, may_end: Callable[[], bool] = lambda: True
    ) -> Iterator[anyio.CancelScope]:
        """Open a scope that is cancelled when the identity's credential ends; later, while `may_end` says no."""
        with anyio.CancelScope() as scope:
            request = _OpenRequest(scope, may_end)
            self._open.setdefault(identity, set()).add(request)
            try:
                yield scope
            finally:
                requests = self._open[identity]
                requests.discard(request)
                if not requests:
                    del self._open[identity]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Check the credentials of open requests while the context is open."""
        if not self.is_on:
            yield
            return
        checks = asyncio.create_task(self._check_open_requests())
        try:
            yield
        finally:
            await cancel_until_done([checks])

    async def _check_open_requests(self) -> None:
        if self._keys:
            # The database's first use may have to create its tables: not while the first caller waits.
            await self._has_ended(Identity(LOCAL, key_id=""))
        while True:
            await asyncio.sleep(self._timeouts.recheck)
            # All at once: a store that hangs delays no other check. It has few slots, which bound the lookups.
            await asyncio.gather(*(self._end_if_over(identity) for identity in list(self._open)))

    async def _end_if_over(self, identity: Identity) -> None:
        if await self._has_ended(identity):
            for request in list(self._open.get(identity, ())):
                request.cancel()

    async def _has_ended(self, identity: Identity) -> bool:
        if identity.expires_at is not None and time.time() >= identity.expires_at:
            return True
        try:
            if identity.login is not None and not await self.logins.is_valid(identity.login):
                return True
            if identity.key_id is None or self._keys is None:
                return False
            return not await self._keys.is_valid(identity.key_id)
        except StoreUnavailableError:
            return False  # the key may be revoked, but a store that is down for a moment ends no streams
        except Exception as error:  # noqa: BLE001  # the other open requests must still be checked
            _log.warning("the key of an open request can't be checked: %s", type(error).__name__)
            return False
