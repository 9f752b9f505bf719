"""Notes requests in the audit that were refused before anything of them was read (API-4)."""

from typing import Any

from starlette.types import Scope

from turnkeeper.api.callers import Caller
from turnkeeper.api.roles import NO_ROUTE, RequestedRoute


def note_refusal(scope: Scope, caller: Caller, status: int) -> None:
    """Note that a request of `caller` was answered with `status`. Before the gateway has started, there is no audit."""
    # `Services`, which this module can't name: they know of authentication, and it doesn't know them.
    services: Any = getattr(scope["app"].state, "services", None) if "app" in scope else None
    if services is not None:
        route: RequestedRoute = scope["state"].get("route", NO_ROUTE)
        services.audit.note_refusal(caller, operation=route.name, status=status, session_id=route.session_id)
