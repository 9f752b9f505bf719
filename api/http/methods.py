"""The methods of a path: `HEAD` wherever there is `GET`, and `Allow` with all of them (API-2, API-7)."""

from collections.abc import Sequence

import anyio
import anyio.lowlevel
from starlette.routing import BaseRoute, Match, Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def allowed_methods(routes: Sequence[BaseRoute], scope: Scope) -> list[str]:
    """Return the methods that the path of a request supports; none if there is no such path."""
    # A mount that the request passed has appended its own path to the root's.
    scope = {**scope, "root_path": scope.get("app_root_path", scope.get("root_path", ""))}
    methods = [method for method in _METHODS if _is_allowed(routes, {**scope, "method": method})]
    if not methods:
        return []
    return sorted({*methods, "OPTIONS", *(["HEAD"] if "GET" in methods else [])})


def _is_allowed(routes: Sequence[BaseRoute], scope: Scope) -> bool:
    # A mount matches every method, but only files are mounted here.
    candidates = [route for route in routes if scope["method"] == "GET" or not isinstance(route, Mount)]
    return any(route.matches(dict(scope))[0] is Match.FULL for route in candidates)


def original_method(scope: Scope) -> str:
    """Return the method that the client sent, which is `HEAD` even where `HeadRequestMiddleware` made it `GET`."""
    method: str = scope.get("original_method", scope["method"])
    return method


class HeadRequestMiddleware:
    """Responds to `HEAD` with the status and headers of `GET`, without its body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
            await anyio.lowlevel.checkpoint()  # raises the cancellation

    return send_headers
