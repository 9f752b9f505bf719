"""What all responses have in common: security headers, problems, `HEAD` and `Allow` (API-2, API-4, API-7).

Every response, also of middleware, has the headers that say what browsers must not do with it. Every error is answered
with a problem. There is `HEAD` wherever there is `GET`, and `Allow` names all methods of a path.
"""

from collections.abc import Sequence
from http import HTTPStatus

import anyio
import anyio.lowlevel
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match, Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnkeeper.api.http.streams import EVENT_STREAM
from turnkeeper.api.problems import ProblemError, invalid, problem, problem_of
from turnkeeper.models.errors import RejectedError, TaskValidationError
from turnkeeper.stores.database.database import StoreUnavailableError

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


HEADERS = {
    "Cache-Control": "no-store",
    # No browser may guess that a text of a tool is a page or a script.
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
"""A response may have its own of these, as the page and its files do."""

_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class ResponseHeadersMiddleware:
    """Adds `HEADERS` to responses that don't have their own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _complete(message["headers"])}
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


def _complete(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    own = {name.lower(): value for name, value in headers}
    if own.get(b"content-type", b"").startswith(EVENT_STREAM.encode()):
        # FastAPI's own header for event streams allows storing them.
        headers = [(name, value) for name, value in headers if name.lower() != b"cache-control"]
        own.pop(b"cache-control", None)
    return [*headers, *((name, value) for name, value in _RAW_HEADERS if name not in own)]


MEDIA_TYPE = "application/problem+json"


def problem_response(error: ProblemError, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return the response of a problem, with more `headers` than its own."""
    return JSONResponse(
        error.problem.model_dump(exclude_none=True),
        status_code=error.problem.status,
        headers={**HEADERS, **error.headers, **(headers or {})},
        media_type=MEDIA_TYPE,
    )


def install_problem_handlers(app: FastAPI) -> None:
    """Make `app` respond to every error with a problem."""
    for kind in (
        ProblemError,
        RejectedError,
        TaskValidationError,
        StoreUnavailableError,
        RequestValidationError,
        ClientDisconnect,
        Exception,
    ):
        app.add_exception_handler(kind, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    return problem_response(problem_of(error, is_of_task=request.url.path.startswith("/tasks")))


async def _on_http_error(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    headers = dict(getattr(error, "headers", None) or {})
    path, method = request.url.path, original_method(request.scope)
    match status:
        case 400:  # FastAPI's response to a body that it can't parse at all
            return problem_response(invalid("body", "is not valid JSON"))
        case 404:
            return problem_response(problem("not-found", path=path), headers)
        case 405:
            allowed = ", ".join(allowed_methods(request.app.routes, request.scope))
            headers = {"Allow": allowed} if allowed else {}
            if request.method == "OPTIONS":
                return Response(status_code=204, headers=headers)
            wrong = problem("method-not-allowed", path=path, method=method, allowed=allowed or "none")
            return problem_response(wrong, headers)
        case 413:
            return problem_response(problem("too-large", str(getattr(error, "detail", ""))))
        case _:
            other = problem("invalid", f"{method} {path}: {HTTPStatus(status).phrase.lower()}.")
            other.problem.status = status
            return problem_response(other, headers)
