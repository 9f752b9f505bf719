"""Credentials: what a request carries, and whose it is (API-4).

Programs send `Authorization: Bearer` with a key or a token. A browser that has logged in has a cookie, which no script
can read and which no other site's page makes it send (`browser_logins.py`).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from turnkeeper.api.callers import LOCAL, LOCAL_IDENTITY, Identity
from turnkeeper.api.problems import NO_CREDENTIAL, problem
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.features.access.auth.api_keys import PREFIX, ApiKeys
from turnkeeper.features.access.auth.browser_logins import LoginVerifier, login_token
from turnkeeper.features.access.auth.keys import KeyVerifier
from turnkeeper.features.access.auth.logins import Logins
from turnkeeper.models.settings.settings import AuthSettings
from turnkeeper.stores.cancellation import cancel_until_done
from turnkeeper.stores.database.database import StoreUnavailableError

if TYPE_CHECKING:
    from turnkeeper.features.access.auth.oidc import TokenVerifier

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
            from turnkeeper.features.access.auth.oidc import TokenVerifier

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
