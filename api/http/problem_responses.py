"""Problems as responses, and the handlers that respond to every error with one (API-2)."""

from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from turnkeeper.api.http.methods import allowed_methods, original_method
from turnkeeper.api.http.response_headers import HEADERS
from turnkeeper.api.problems import ProblemError, invalid, problem, problem_of
from turnkeeper.models.errors import RejectedError, TaskValidationError
from turnkeeper.stores.database.database import StoreUnavailableError

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
