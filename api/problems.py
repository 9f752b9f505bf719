"""Every error answer of the gateway: RFC 9457 `application/problem+json` with a stable `type` (API-2).

    400 malformed-request
    403 foreign-host, foreign-origin
    404 unknown-session, unknown-prompt, unknown-turn, unknown-call, unknown-blob, not-found
    405 method-not-allowed
    409 session-exists, session-ended, state-full, not-waiting, not-running, not-failed, not-awaiting-approval,
        other-arguments
    408 request-timeout         413 too-large          422 invalid
    429 queue-full, rate-limited                       431 head-too-large
    500 internal
    503 temporal-unreachable, archive-unavailable, deletion-refused, stopping, too-many-connections, and at /readyz
        no-worker
    504 no-worker, session-stuck

Nothing internal and nothing a caller sent is repeated in them, but for ids, paths, field names, and in short a foreign
host or origin and what a parameter of a task was given (TSK-1).
"""

from http import HTTPStatus
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from turnkeeper.api.http.body_limits import MOST_BODY_BYTES
from turnkeeper.api.http.methods import allowed_methods, original_method
from turnkeeper.models.errors import RejectedError, RejectionReason, TaskValidationError, preview
from turnkeeper.models.field_paths import field_path
from turnkeeper.models.invalid_values import reason_of
from turnkeeper.stores.database.database import StoreUnavailableError

ProblemName = Literal[
    "malformed-request",
    "foreign-host",
    "foreign-origin",
    "unknown-session",
    "unknown-prompt",
    "unknown-turn",
    "unknown-call",
    "unknown-blob",
    "not-found",
    "method-not-allowed",
    "session-exists",
    "session-ended",
    "state-full",
    "not-waiting",
    "not-running",
    "not-failed",
    "not-awaiting-approval",
    "other-arguments",
    "request-timeout",
    "too-large",
    "head-too-large",
    "too-many-connections",
    "invalid",
    "queue-full",
    "rate-limited",
    "temporal-unreachable",
    "archive-unavailable",
    "deletion-refused",
    "stopping",
    "no-worker",
    "session-stuck",
    "internal",
]


class FieldError(BaseModel):
    """A field that is wrong, by its path, and what is allowed; of a task also what was given, in short."""

    field: str
    reason: str
    value: str | None = None


class Problem(BaseModel):
    """An error answer (RFC 9457). `type` is stable; `errors` names every field of an invalid request."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:turnkeeper:problem:unknown-session",
                    "title": "Unknown session",
                    "status": 404,
                    "detail": "There is no session 'support-42'.",
                }
            ]
        }
    )

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldError] | None = None


class ProblemError(Exception):
    """Ends a request with a problem."""

    def __init__(
        self,
        status: int,
        name: ProblemName,
        detail: str,
        *,
        errors: list[FieldError] | None = None,
        retry_after: int | None = None,
    ) -> None:
        """Answer with `status`; `detail` is a sentence for people, `retry_after` is in seconds."""
        super().__init__(detail)
        self.problem = Problem(
            type=f"urn:turnkeeper:problem:{name}",
            title=name.replace("-", " ").capitalize(),
            status=status,
            detail=detail,
            errors=errors,
        )
        self.headers = {"Retry-After": str(retry_after)} if retry_after else {}


def foreign_host(host: str | None) -> ProblemError:
    """403: the gateway is not known by the name it was asked by; None: there was no name, or there were several."""
    name = "no single host" if host is None else f"the host {preview(host)}"
    return ProblemError(
        403,
        "foreign-host",
        f"The request names {name}. This gateway answers to localhost, 127.0.0.1, [::1], api_host and the host of "
        "public_url; add other names to the setting allowed_hosts.",
    )


def foreign_origin(origin: str | None) -> ProblemError:
    """403: a page that is not the gateway's own sends the request; None: its browser does not say which."""
    page = "A web page of another site" if origin is None else f"A web page of the origin {preview(origin)}"
    return ProblemError(
        403,
        "foreign-origin",
        f"{page} sends this request, and only the gateway's own page may. If people reach the gateway at that address, "
        "set public_url to it.",
    )


def unknown_session(session_id: str) -> ProblemError:
    """404: never existed, was deleted, or is someone else's."""
    return ProblemError(404, "unknown-session", f"There is no session {session_id!r}.")


def unknown_prompt(message_id: str) -> ProblemError:
    """404: the session has never accepted a prompt with this id."""
    return ProblemError(404, "unknown-prompt", f"The session knows no prompt {message_id!r}.")


def unknown_turn(turn_id: str) -> ProblemError:
    """404: neither the session nor the archive has it."""
    return ProblemError(404, "unknown-turn", f"The session has no turn {turn_id!r}.")


def not_failed(detail: str) -> ProblemError:
    """409: there is no failed turn to send again."""
    return ProblemError(409, "not-failed", detail)


def unknown_blob(name: str) -> ProblemError:
    """404: the session keeps no text with that hash."""
    return ProblemError(404, "unknown-blob", f"The session keeps no text {name!r}.")


def session_ended(session_id: str) -> ProblemError:
    """409: it is closed; it can still be read."""
    return ProblemError(409, "session-ended", f"Session {session_id!r} has ended; it takes nothing more.")


def id_was_used(session_id: str) -> ProblemError:
    """409: another session has or had this id."""
    return ProblemError(409, "session-exists", f"The id {session_id!r} was used before; choose another.")


def temporal_unreachable() -> ProblemError:
    """503: nothing can be said about any session."""
    return ProblemError(
        503,
        "temporal-unreachable",
        "Temporal can't be reached. Nothing was changed that was not confirmed; try again.",
        retry_after=2,
    )


def stopping() -> ProblemError:
    """503: this gateway is about to end."""
    return ProblemError(503, "stopping", "This gateway is stopping; come back to the next one.", retry_after=2)


def archive_unavailable(reason: str) -> ProblemError:
    """503: what is asked for is in the archive only; the session itself goes on."""
    return ProblemError(503, "archive-unavailable", reason, retry_after=5)


def deletion_refused(reason: str) -> ProblemError:
    """503: Temporal does not let workers terminate or delete workflows."""
    return ProblemError(503, "deletion-refused", reason, retry_after=30)


def no_worker(session_id: str) -> ProblemError:
    """504: the session exists, and nobody answers for it."""
    return ProblemError(
        504,
        "no-worker",
        f"No worker answered for session {session_id!r}. What it has accepted is safe and goes on when one is back.",
        retry_after=2,
    )


def session_stuck(session_id: str) -> ProblemError:
    """504: its workflow task keeps failing; a bug of ours, mended by a deploy."""
    return ProblemError(
        504,
        "session-stuck",
        f"Session {session_id!r} is stuck: its workflow task keeps failing. Nothing is lost; it goes on after a fix.",
        retry_after=30,
    )


def malformed() -> ProblemError:
    """400: what came is no HTTP request; the connection is closed."""
    return ProblemError(400, "malformed-request", "This is not a valid HTTP request.")


def renderer_busy() -> ProblemError:
    """429: so many texts are being rendered that this one would take too long; it can be shown as it is."""
    return ProblemError(429, "rate-limited", "Too many texts are being rendered at once.", retry_after=1)


REFUSALS: dict[RejectionReason, tuple[int, ProblemName]] = {
    "invalid": (422, "invalid"),
    "blank": (422, "invalid"),
    "too_long": (422, "invalid"),
    "queue_full": (429, "queue-full"),
    "state_full": (409, "state-full"),
    "ending": (409, "session-ended"),
    "unknown_prompt": (404, "unknown-prompt"),
    "not_waiting": (409, "not-waiting"),
    "not_open": (409, "not-running"),
    "unknown_call": (404, "unknown-call"),
    "not_awaiting": (409, "not-awaiting-approval"),
    "other_arguments": (409, "other-arguments"),
}


def refused(reason: RejectionReason, message: str, *, field: str | None = None) -> ProblemError:
    status, name = REFUSALS[reason]
    errors = [FieldError(field=field, reason=message)] if field and status == 422 else None
    return ProblemError(status, name, message, errors=errors, retry_after=5 if status == 429 else None)


def invalid(field: str, reason: str) -> ProblemError:
    """422: one field is wrong."""
    return _invalid(f"{field}: {reason}", [FieldError(field=field, reason=reason)])


def _invalid(detail: str, errors: list[FieldError]) -> ProblemError:
    return ProblemError(422, "invalid", detail, errors=errors)


MEDIA_TYPE = "application/problem+json"


def install(app: FastAPI) -> None:
    """Let every error of `app` be answered as a problem."""
    for kind in (
        ProblemError,
        RejectedError,
        TaskValidationError,
        StoreUnavailableError,
        RequestValidationError,
        Exception,
    ):
        app.add_exception_handler(kind, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)


def answer(problem: Problem, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse(
        problem.model_dump(exclude_none=True),
        status_code=problem.status,
        headers={"Cache-Control": "no-store", **(headers or {})},
        media_type=MEDIA_TYPE,
    )


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    problem = _problem_of(error, is_of_task=request.url.path.startswith("/tasks"))
    return answer(problem.problem, problem.headers)


def _problem_of(error: Exception, *, is_of_task: bool) -> ProblemError:
    match error:
        case ProblemError():
            return error
        case RejectedError():
            return refused(error.reason, error.message, field=error.field)
        case TaskValidationError():
            return _invalid(str(error), [FieldError(field=error.field, reason=error.reason, value=error.value)])
        case StoreUnavailableError():
            return archive_unavailable(f"{error} Nothing is lost; the session itself goes on.")
        case RequestValidationError():
            fields = [_field_error(one, is_of_task=is_of_task) for one in error.errors()[:20]]
            return _invalid("; ".join(f"{one.field}: {one.reason}" for one in fields), fields)
        case _:
            return ProblemError(500, "internal", "An internal error. It is in the gateway's log.")


def _field_error(error: dict[str, Any], *, is_of_task: bool) -> FieldError:
    # The path begins with the part of the request; of JSON that can't be parsed, a character's place follows.
    path = [] if error["type"] == "json_invalid" else error["loc"][1:]
    value = preview(error["input"]) if is_of_task else None
    return FieldError(field=field_path(path) or "body", reason=reason_of(error), value=value)


async def _on_http_error(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    if status == 400:  # FastAPI's answer to a body it can't parse at all
        return answer(invalid("body", "is not valid JSON").problem)
    if status == 413:
        return answer(ProblemError(413, "too-large", str(getattr(error, "detail", ""))).problem)
    if status == 405:
        return await _on_other_method(request)
    name: ProblemName = "not-found" if status == 404 else "invalid"
    detail = f"{original_method(request.scope)} {request.url.path}: {HTTPStatus(status).phrase.lower()}."
    headers = getattr(error, "headers", None) or {}
    return answer(ProblemError(status, name, detail).problem, dict(headers))


def request_timeout() -> ProblemError:
    """408: the rest of the request did not come in time."""
    return ProblemError(408, "request-timeout", "The rest of the request did not come in time.")


def head_too_large(limit: int) -> ProblemError:
    """431: the head of the request has no end within the limit."""
    return ProblemError(431, "head-too-large", f"The request's head has over {limit:,} bytes.")


def too_many_connections(limit: int) -> ProblemError:
    """503: further connections are taken once others are closed."""
    detail = f"The gateway has {limit:,} connections already; set api_max_connections to allow more."
    return ProblemError(503, "too-many-connections", detail, retry_after=1)


async def _on_other_method(request: Request) -> Response:
    """Answer a request by a method that its path does not have; to `OPTIONS`, say which it has."""
    allowed = ", ".join(allowed_methods(request.app.routes, request.scope))
    headers = {"Allow": allowed} if allowed else {}
    if request.method == "OPTIONS":
        return Response(status_code=204, headers=headers)
    detail = f"{request.url.path} takes no {original_method(request.scope)} request; allowed: {allowed or 'none'}."
    return answer(ProblemError(405, "method-not-allowed", detail).problem, headers)


def too_large(most_bytes: int = MOST_BODY_BYTES) -> ProblemError:
    """413: the body is over the route's limit; it was not read to its end."""
    return ProblemError(413, "too-large", f"The request's body is over {most_bytes // 1024**2} MiB.")
