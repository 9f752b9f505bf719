"""What each route and each MCP method needs: one table, in which nothing may be missing (API-4).

A route that is not in the table is refused, to everybody and also without authentication. So a new route is noticed at
its first request, and can't be open by mistake.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from fastapi.routing import iter_route_contexts
from pydantic import BaseModel
from starlette._utils import get_route_path  # as the router does it: two ways to read a path would be a way around
from starlette.routing import BaseRoute, Mount
from starlette.types import Scope

from turnkeeper.api.callers import Caller, Role
from turnkeeper.api.problems import FieldError, ProblemError, problem
from turnkeeper.models.ids import is_id

Access = Role | Literal["open"]
"""The role that a route needs; `open`: none, and no credential."""

ROUTES: dict[str, Access] = {
    # The page without any data, and what says whether to log in.
    "GET /": "open",
    "GET /static/{path:path}": "open",
    "GET /me": "open",
    "POST /login": "open",
    "POST /logout": "open",
    # Load balancers have no key.
    "GET /healthz": "open",
    "GET /readyz": "open",
    "GET /statusz": "reader",
    # Sessions
    "POST /workflow": "writer",
    "GET /workflow": "reader",
    "GET /workflow/{id}": "reader",
    "PATCH /workflow/{id}": "writer",
    "POST /workflow/{id}/cancel": "writer",
    "POST /workflow/{id}/end": "writer",
    "DELETE /workflow/{id}": "admin",
    "GET /workflow/{id}/export": "reader",
    "GET /workflow/{id}/copy": "reader",
    "POST /workflow/import": "writer",
    "POST /workflow/{id}/fork": "writer",
    # Conversation
    "POST /workflow/{id}/prompt": "writer",
    "POST /workflow/{id}/retry": "writer",
    "POST /chat": "writer",
    "GET /workflow/{id}/conversation": "reader",
    "GET /workflow/{id}/conversation/full": "reader",
    "GET /workflow/{id}/queue": "reader",
    "GET /workflow/{id}/queue/{message_id}": "reader",
    "DELETE /workflow/{id}/queue/{message_id}": "writer",
    "GET /workflow/{id}/events": "reader",
    "GET /workflow/{id}/context": "reader",
    "GET /workflow/{id}/blobs/{hash}": "reader",
    "POST /workflow/{id}/attachments": "writer",
    "GET /workflow/{id}/attachments/{hash}": "reader",
    # Approvals
    "GET /workflow/{id}/approvals": "reader",
    "POST /workflow/{id}/approvals/{call_id}": "approver",
    # Tasks
    "POST /tasks/preview": "reader",
    "POST /tasks": "writer",
    "GET /tasks": "reader",
    "GET /tasks/{id}": "reader",
    "POST /tasks/{id}/messages": "writer",
    "POST /tasks/{id}/cancel": "writer",
    # Adapters. Decisions in the AI SDK's messages, and tools and methods of MCP, need more.
    "POST /api/chat": "writer",
    "GET /api/chat/{id}/stream": "reader",
    "GET /api/chat/{id}/messages": "reader",
    "POST /mcp": "reader",
    # The page's rendering, and the description of the API
    "POST /markdown": "reader",
    "GET /openapi.json": "reader",
    "GET /docs": "reader",
    "GET /docs/redoc.js": "reader",
    "GET /docs/files": "reader",
    "GET /docs/assets": "reader",
    "GET /redoc": "reader",
    "GET /audit": "admin",
    # Temporal's Web UI, which can do everything
    **{f"{method} /temporal{{path:path}}": "admin" for method in ("GET", "POST", "PUT", "PATCH", "DELETE")},
}
"""The access to each route. That of GET is that of HEAD; a mount has GET only."""

MCP_METHODS: dict[str, Role] = {
    "initialize": "reader",
    "notifications/initialized": "reader",
    "notifications/cancelled": "reader",
    "ping": "reader",
    "server/discover": "reader",
    "tools/list": "reader",
    "tools/call": "reader",  # each tool has a role of its own
    "tasks/get": "reader",
    "tasks/update": "approver",
    "tasks/cancel": "writer",
}
"""The role that each method of MCP needs; any other method is refused."""

APPROVER_FIELDS = ("tool_policy", "unattended")
"""Fields of a body that decide on tool calls in advance."""


def require(caller: Caller, role: Role) -> None:
    """Raise `ProblemError` 403 unless the caller may do what `role` may."""
    if not caller.has(role):
        raise problem("forbidden", f"This needs the {role} role; yours is {caller.role}.", caller=caller)


def require_for_fields(caller: Caller, body: BaseModel) -> None:
    """Raise `ProblemError` 403 naming a field of `body` that the caller may not set."""
    for field in APPROVER_FIELDS:
        if field in body.model_fields_set and not caller.has("approver"):
            raise _forbidden_field(field, caller)


def require_for_copy(caller: Caller, configuration: BaseModel, *, path: str = "") -> None:
    """Raise `ProblemError` 403 naming a field below `path` that has a value, and that the caller may not set."""
    for field in APPROVER_FIELDS:
        if getattr(configuration, field) and not caller.has("approver"):
            raise _forbidden_field(f"{path}{field}", caller)


def _forbidden_field(field: str, caller: Caller) -> ProblemError:
    errors = [FieldError(field=field, reason="may be set by the role approver only")]
    detail = f"Setting {field} needs the approver role; yours is {caller.role}."
    return problem("forbidden", detail, errors=errors, caller=caller)


@dataclass(frozen=True)
class RoutePattern:
    """A route of the application: its methods, and which paths it has."""

    path: str
    methods: frozenset[str]
    regex: re.Pattern[str]

    @property
    def names(self) -> list[str]:
        """Return the route's names in `ROUTES`."""
        return [f"{method} {self.path}" for method in sorted(self.methods - {"HEAD"})]


def route_patterns(routes: Sequence[BaseRoute]) -> list[RoutePattern]:
    """Return all routes in the order in which the router tries them."""
    return [
        RoutePattern(
            path=context.path or "",
            methods=frozenset({"GET"} if isinstance(context.original_route, Mount) else context.methods or ()),
            regex=context.path_regex,
        )
        for context in iter_route_contexts(routes)
    ]


@dataclass(frozen=True)
class RequestedRoute:
    """What a request is about: the route's name in `ROUTES`, and the session or task in its path."""

    name: str
    session_id: str | None = None


NO_ROUTE = RequestedRoute("no route")


class RouteAccess:
    """Finds the route of a request, and what it needs."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        """`routes` are the application's, which may still be added to until the first request."""
        self._routes = routes

    @cached_property
    def _patterns(self) -> list[RoutePattern]:
        return route_patterns(self._routes)

    def route_of(self, scope: Scope) -> RequestedRoute:
        """Return the route; `NO_ROUTE` for a path or method that no route has."""
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        path = get_route_path(scope)
        for route in self._patterns:
            if method in route.methods and (match := route.regex.match(path)):
                session_id = match.groupdict().get("id")
                return RequestedRoute(f"{method} {route.path}", session_id if is_id(session_id) else None)
        return NO_ROUTE

    def access_to(self, route: RequestedRoute) -> Access:
        """Return what a request for the route needs. A path or method that no route has needs any credential.

        Raises `ProblemError` 403 if the route has no entry in the table.
        """
        if route is NO_ROUTE:
            return "reader"
        access = ROUTES.get(route.name)
        if access is None:
            raise problem("forbidden", f"{route.name} has no role, so nobody may use it. This is a bug of the gateway.")
        return access
