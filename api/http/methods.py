"""Which methods a path has: `HEAD` wherever `GET` is, and `Allow` with all of them (API-2, API-7)."""

from collections.abc import Sequence

import anyio
import anyio.lowlevel
from starlette.routing import BaseRoute, Match, Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def allowed_methods(routes: Sequence[BaseRoute], scope: Scope) -> list[str]:
    """Return the methods that the path of a request has; none where no route has the path."""
    # A mount that the request went through has added its own path to the root's.
    scope = {**scope, "root_path": scope.get("app_root_path", scope.get("root_path", ""))}
    methods = [method for method in _METHODS if _is_allowed(routes, {**scope, "method": method})]
    if not methods:
        return []
    return sorted({*methods, "OPTIONS", *(["HEAD"] if "GET" in methods else [])})


def _is_allowed(routes: Sequence[BaseRoute], scope: Scope) -> bool:
    # Whatever is mounted are files: a mount itself takes every method.
    candidates = [route for route in routes if scope["method"] == "GET" or not isinstance(route, Mount)]
    return any(route.matches(dict(scope))[0] is Match.FULL for route in candidates)


def original_method(scope: Scope) -> str:
    """Return the method by which the client asked: `HEAD` also where the request is answered as `GET`."""
    method: str = scope.get("original_method", scope["method"])
    return method


class HeadRequestMiddleware:
    """Answers `HEAD` with the status and the headers that `GET` has, and without its body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; a `HEAD` ends with the headers, also where a stream would begin."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        with anyio.CancelScope() as request:
            get_scope = {**scope, "method": "GET", "original_method": "HEAD"}
            await self._app(get_scope, receive, _headers_only(send, request))


def _headers_only(send: Send, request: anyio.CancelScope) -> Send:
    async def send_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b""})
            request.cancel()
            await anyio.lowlevel.checkpoint()  # where the cancellation arrives

    return send_headers
