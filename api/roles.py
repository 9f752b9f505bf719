"""What each route needs, said beside its function (API-4).

A route without it is refused, to everybody and also without authentication. So a new route is noticed at its first
request, and can't be open by mistake.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar

from fastapi.routing import iter_route_contexts
from pydantic import BaseModel
from starlette._utils import get_route_path  # as the router does it: two ways to read a path would be a way around
from starlette.routing import BaseRoute, Mount
from starlette.types import Scope

from turnkeeper.api.callers import Caller, Role
from turnkeeper.api.http.streams import EVENT_STREAM
from turnkeeper.api.problems import FieldError, ProblemError, problem
from turnkeeper.models.ids import is_id
from turnkeeper.models.settings.settings import Settings

Access = Role | Literal["open"]
"""The role that a route needs; `open`: none, and no credential."""

MAX_BODY_BYTES = 1024 * 1024
MAX_HISTORY_BYTES = 10 * 1024 * 1024
"""For routes that accept a conversation or attachments."""

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


def access(needed: Access, *, max_body: Callable[[Settings], int] | None = None) -> Callable[[Endpoint], Endpoint]:
    """Declare what a route's function needs; a route without this is refused to everybody.

    `max_body`: the bytes of its body, if they depend on the settings; otherwise it is the route's `max_body_size`.

    >>> @access("writer")
    ... def end_session() -> None: ...
    >>> end_session.access
    'writer'
    """

    def mark(endpoint: Endpoint) -> Endpoint:
        vars(endpoint).update(access=needed, max_body=max_body)
        return endpoint

    return mark


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
    errors = [FieldError(field=field, reason="may be set by an approver only")]
    detail = f"Setting {field} needs the approver role; yours is {caller.role}."
    return problem("forbidden", detail, errors=errors, caller=caller)


@dataclass(frozen=True)
class GatewayRoute:
    """A method of a path of the application, with what it needs."""

    method: str
    path: str
    regex: re.Pattern[str]
    access: Access | None
    """None: nobody has said it, so nobody may use the route."""
    max_body_bytes: int
    is_stream: bool
    """Whether it is answered for as long as its client likes."""

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"


def gateway_routes(routes: Sequence[BaseRoute], settings: Settings) -> list[GatewayRoute]:
    """Return all routes in the order in which the router tries them. GET is HEAD too; a mount has GET only."""
    result: list[GatewayRoute] = []
    for context in iter_route_contexts(routes):
        route = context.original_route
        # Of a route that is none of FastAPI's: a function, an application of its own, or mounted files.
        endpoint = getattr(route, "endpoint", None) or getattr(route, "app", None)
        max_body: Callable[[Settings], int] | None = getattr(endpoint, "max_body", None)
        max_body_size: int | None = getattr(context, "max_body_size", None) or getattr(endpoint, "max_body_size", None)
        is_stream = getattr(context, "response_class", endpoint)
        methods = {"GET"} if isinstance(route, Mount) else (context.methods or set()) - {"HEAD"}
        result += [
            GatewayRoute(
                method=method,
                path=context.path or "",
                regex=context.path_regex,
                access=getattr(endpoint, "access", None),
                max_body_bytes=max_body(settings) if max_body else max_body_size or MAX_BODY_BYTES,
                is_stream=getattr(is_stream, "media_type", None) == EVENT_STREAM,
            )
            for method in sorted(methods)
        ]
    return result


@dataclass(frozen=True)
class RequestedRoute:
    """What a request is about: its route, and the session or task in its path."""

    route: GatewayRoute | None = None
    """None: a path or method that no route has."""
    session_id: str | None = None

    @property
    def name(self) -> str:
        return self.route.name if self.route else "no route"

    @property
    def access(self) -> Access:
        """Return what the request needs. A path or method that no route has needs any credential.

        Raises `ProblemError` 403 if nobody has said what the route needs.
        """
        if self.route is None:
            return "reader"
        if self.route.access is None:
            raise problem("forbidden", f"{self.name} has no role, so nobody may use it. This is a bug of the gateway.")
        return self.route.access


def requested_route(scope: Scope) -> RequestedRoute:
    """Return what the request of an ASGI `scope` is about, as `RouteFinder` has found it."""
    requested: RequestedRoute = scope.get("state", {}).get("route", RequestedRoute())
    return requested


class RouteFinder:
    """Finds the route of a request."""

    def __init__(self, routes: Sequence[BaseRoute], settings: Settings) -> None:
        """`routes` are the application's, which may still be added to until the first request."""
        self._routes = routes
        self._settings = settings

    @cached_property
    def all(self) -> list[GatewayRoute]:
        return gateway_routes(self._routes, self._settings)

    def find(self, scope: Scope) -> RequestedRoute:
        """Return what a request is about."""
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        path = get_route_path(scope)
        for route in self.all:
            if method == route.method and (match := route.regex.match(path)):
                session_id = match.groupdict().get("id")
                return RequestedRoute(route, session_id if is_id(session_id) else None)
        return RequestedRoute()
