"""The check on every request: whose it is, and whether that caller may use the route (API-4)."""

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol

import anyio
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnkeeper.api.callers import LOCAL, LOCAL_IDENTITY, Caller, Identity
from turnkeeper.api.changes import ChangeObserver, Refusal, changes_something
from turnkeeper.api.http.limits import RequestRates
from turnkeeper.api.http.responses import problem_response
from turnkeeper.api.problems import NO_CREDENTIAL, ProblemError, problem, problem_of
from turnkeeper.api.roles import RequestedRoute, RouteFinder, require
from turnkeeper.stores.database.database import StoreUnavailableError

POLICY_VIOLATION = 1008

_WAIT = "until_credential_ends"


class Authenticator(Protocol):
    """Says who sends a request, and ends requests whose credential has ended. A feature may bring its own."""

    @property
    def is_on(self) -> bool:
        """Whether requests need a credential."""

    async def identify(self, request: HTTPConnection) -> Identity:
        """Return who sends a request. Raises `ProblemError` and `StoreUnavailableError`."""

    def until_it_ends(
        self, identity: Identity, *, may_end: Callable[[], bool] = ...
    ) -> AbstractContextManager[anyio.CancelScope]:
        """Open a scope that is cancelled when the identity's credential ends; later, while `may_end` says no."""


class LocalAuthenticator:
    """Takes everyone who reaches the gateway for its admin: only for a gateway that other machines can't reach."""

    is_on = False

    async def identify(self, request: HTTPConnection) -> Identity:
        return LOCAL_IDENTITY

    def until_it_ends(
        self, identity: Identity, *, may_end: Callable[[], bool] = lambda: True
    ) -> AbstractContextManager[anyio.CancelScope]:
        return anyio.CancelScope()


Authenticate = Callable[[HTTPConnection], Awaitable[Caller | None]]
"""Returns who sends a request; `None`: nobody who may use the gateway."""


class HostAuthenticator(LocalAuthenticator):
    """Asks the application that the gateway is mounted in. A stream lasts, also if its caller logs out there."""

    is_on = True

    def __init__(self, authenticate: Authenticate) -> None:
        self._authenticate = authenticate

    async def identify(self, request: HTTPConnection) -> Identity:
        caller = await self._authenticate(request)
        if caller is None:
            raise problem("unauthenticated", NO_CREDENTIAL)
        return Identity(caller)


def until_credential_ends(scope: MutableMapping[str, Any]) -> AbstractContextManager[object]:
    """Open a block for the wait of a request that has changed something: it is left once the credential has ended."""
    wait: Callable[[], AbstractContextManager[anyio.CancelScope]] = scope.get("state", {}).get(_WAIT, nullcontext)
    return wait()


class AuthenticationMiddleware:
    """Lets requests through whose caller may use their route, and sets `request.state.caller`.

    A request that lasts, such as an event stream, is ended once its credential has ended. One that changes something
    is answered before.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticator: Authenticator,
        observers: Sequence[ChangeObserver],
        rates: RequestRates,
        finder: RouteFinder,
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._observers = observers
        self._rates = rates
        self._finder = finder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":  # there are none
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": ""})
        else:
            route = self._finder.find(scope)
            scope = {**scope, "state": {**scope.get("state", {}), "route": route}}
            try:
                identity = await self._admitted(scope, route)
            except (ProblemError, StoreUnavailableError) as reason:
                error = problem_of(reason, is_of_task=False)
                if error.caller:
                    refusal = Refusal(error.caller, route.name, error.problem.status, route.session_id)
                    refusal.show(self._observers)
                await problem_response(error)(scope, receive, send)
                return
            await self._run(scope, receive, send, identity)

    async def _admitted(self, scope: Scope, route: RequestedRoute) -> Identity | None:
        """Return who may use the route; `None`: everybody. Raises `ProblemError` and `StoreUnavailableError`."""
        try:
            access = route.access
        except ProblemError:
            # A stranger learns nothing of routes, not even that one has no role.
            await self._authenticator.identify(HTTPConnection(scope))
            raise
        if access == "open":
            return None
        identity = await self._authenticator.identify(HTTPConnection(scope))
        try:
            require(identity.caller, access)
        except ProblemError:
            # Other requests are counted after this; a caller without the role must not ask as often as it likes.
            self._rates.check(identity.caller)
            raise
        return identity

    async def _run(self, scope: Scope, receive: Receive, send: Send, identity: Identity | None) -> None:
        if identity is None:
            # Nobody was asked who it is, so an open route has no caller, not the local admin.
            caller = None if self._authenticator.is_on else LOCAL
            await self._app({**scope, "state": {**scope.get("state", {}), "caller": caller}}, receive, send)
            return
        scope = {**scope, "state": {**scope.get("state", {}), "caller": identity.caller}}
        if identity == LOCAL_IDENTITY:
            await self._app(scope, receive, send)
            return
        response = _Response(send)
        scope["state"][_WAIT] = partial(self._authenticator.until_it_ends, identity)
        with self._authenticator.until_it_ends(
            identity, may_end=lambda: response.has_begun or not changes_something(scope)
        ) as request:
            await self._app(scope, receive, response.send)
        if request.cancelled_caught:
            await response.end(scope, receive)


class _Response:
    """Notes how far a response is, so that it can be ended properly."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False
        self._is_complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
        elif message["type"] == "http.response.body":
            self._is_complete = not message.get("more_body", False)
        await self._send(message)

    async def end(self, scope: Scope, receive: Receive) -> None:
        """End the response of a request that was cancelled, as its credential has ended."""
        if not self.has_begun:
            await problem_response(problem("unauthenticated"))(scope, receive, self._send)
        elif not self._is_complete:
            await self._send({"type": "http.response.body", "body": b""})
