"""Every error response of the gateway: RFC 9457 `application/problem+json` with a stable `type` (API-2).

    400 malformed-request       401 unauthenticated
    403 forbidden, foreign-host, foreign-origin
    404 unknown-session, unknown-task, unknown-prompt, unknown-turn, unknown-call, unknown-blob, not-found
    405 method-not-allowed
    409 session-exists, session-ended, state-full, not-waiting, not-running, not-failed, not-awaiting-approval,
        other-arguments, idempotency-key-reused
    408 request-timeout         410 no-longer-retained
    413 too-large          422 invalid
    429 queue-full, rate-limited                       431 head-too-large
    500 internal
    503 temporal-unreachable, archive-unavailable, issuer-unavailable, deletion-refused, stopping,
        too-many-connections
    504 no-worker, session-stuck

They contain nothing internal and nothing that the caller sent, except for ids, paths, field names, and shortened: a
foreign host or origin, and the value of a task's parameter (TSK-1). The texts are in `problem_texts.py`.
"""

from http import HTTPStatus
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from turnkeeper.api import problem_texts as texts
from turnkeeper.api.callers import Caller
from turnkeeper.api.http.body_limits import MAX_BODY_BYTES
from turnkeeper.api.http.methods import allowed_methods, original_method
from turnkeeper.api.http.response_headers import HEADERS
from turnkeeper.api.problem_texts import ProblemName
from turnkeeper.models.errors import (
    RejectedError,
    RejectionReason,
    TaskErrorType,
    TaskValidationError,
    TurnkeeperError,
    preview,
)
from turnkeeper.models.field_paths import field_path
from turnkeeper.models.ids import WorkflowId, session_id_of
from turnkeeper.models.invalid_values import error_type_of, reason_of
from turnkeeper.models.settings.roles import Role
from turnkeeper.stores.database.database import StoreUnavailableError

LimitName = Literal["rate_limit", "prompt_rate_limit", "max_streams_per_key", "max_open_sessions"]
"""The settings that limit what callers may ask for."""


class FieldError(BaseModel):
    """An invalid field: its path, what is allowed, what kind of error it is, and for tasks the shortened value."""

    field: str
    reason: str
    error_type: TaskErrorType | None = None
    """For programs; absent where only the session knows the field."""
    value: str | None = None


class Problem(BaseModel):
    """An error response (RFC 9457). `type` is stable; `errors` names every invalid field."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:turnkeeper:problem:unknown-session",
                    "title": "Session not found",
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
    limit: LimitName | None = None
    """Of `rate-limited`: the setting that limits the request."""


class ProblemError(TurnkeeperError):
    """Ends a request with a problem."""

    def __init__(
        self,
        status: int,
        name: ProblemName,
        detail: str,
        *,
        errors: list[FieldError] | None = None,
        limit: LimitName | None = None,
        retry_after: int | None = None,
    ) -> None:
        """Respond with `status`. `detail` is a sentence for people, `retry_after` is in seconds."""
        super().__init__(detail)
        self.problem = Problem(
            type=f"urn:turnkeeper:problem:{name}",
            title=texts.TITLES[name],
            status=status,
            detail=detail,
            errors=errors,
            limit=limit,
        )
        self.headers = {"Retry-After": str(retry_after)} if retry_after else {}
        self.caller: Caller | None = None
        """Of 401 and 403: who was refused, if that is known; for the audit."""


def no_credential() -> ProblemError:
    """401: the request has neither key nor token."""
    return _unauthenticated(texts.NO_CREDENTIAL)


def bad_credential(caller: Caller | None = None) -> ProblemError:
    """401: the key or token is not valid. It is not said why: the reason would help a caller who tries some out.

    With `caller`: whose key was named.
    """
    problem = _unauthenticated(texts.BAD_CREDENTIAL)
    problem.caller = caller
    return problem


def _unauthenticated(detail: str) -> ProblemError:
    problem = ProblemError(401, "unauthenticated", detail)
    problem.headers["WWW-Authenticate"] = "Bearer"
    return problem


def forbidden(role: Role, caller: Caller, *, field: str | None = None) -> ProblemError:
    """403: the caller's role is below `role`. With `field`, for that field of the body."""
    if field is None:
        problem = ProblemError(403, "forbidden", texts.FORBIDDEN.format(role=role, own=caller.role))
    else:
        errors = [FieldError(field=field, reason=texts.MAY_NOT_SET.format(role=role))]
        detail = texts.FORBIDDEN_FIELD.format(field=field, role=role, own=caller.role)
        problem = ProblemError(403, "forbidden", detail, errors=errors)
    problem.caller = caller
    return problem


def unlisted_route(name: str) -> ProblemError:
    """403: the table of roles lacks the route."""
    return ProblemError(403, "forbidden", texts.UNLISTED_ROUTE.format(route=name))


def issuer_unavailable() -> ProblemError:
    """503: a token can't be verified without the issuer's keys."""
    return ProblemError(503, "issuer-unavailable", texts.ISSUER_UNAVAILABLE, retry_after=2)


def foreign_host(host: str | None) -> ProblemError:
    """403: `host` is not a name of the gateway. `None`: the request has no `Host`, or several."""
    name = texts.NO_SINGLE_HOST if host is None else texts.NAMED_HOST.format(host=preview(host))
    return ProblemError(403, "foreign-host", texts.FOREIGN_HOST.format(host=name))


def foreign_origin(origin: str | None) -> ProblemError:
    """403: a page of another site sent the request. `None`: the browser doesn't say which."""
    page = texts.PAGE_OF_ANOTHER_SITE if origin is None else texts.PAGE_OF_ORIGIN.format(origin=preview(origin))
    return ProblemError(403, "foreign-origin", texts.FOREIGN_ORIGIN.format(page=page))


def proxied(header: str) -> ProblemError:
    """403: without keys, a request came through a proxy, which has added `header`."""
    return ProblemError(403, "proxied", texts.PROXIED.format(header=header))


def unknown_session(workflow_id: WorkflowId) -> ProblemError:
    """404: it never existed, was deleted, or is another tenant's."""
    return ProblemError(404, "unknown-session", texts.UNKNOWN_SESSION.format(session_id=session_id_of(workflow_id)))


def unknown_task(workflow_id: WorkflowId) -> ProblemError:
    """404: there is no such session, or it is no task."""
    return ProblemError(404, "unknown-task", texts.UNKNOWN_TASK.format(task_id=session_id_of(workflow_id)))


def idempotency_key_reused(key: str) -> ProblemError:
    """409: another task was created with this key."""
    return ProblemError(409, "idempotency-key-reused", texts.IDEMPOTENCY_KEY_REUSED.format(key=key))


def unknown_prompt(message_id: str) -> ProblemError:
    """404: the session has never accepted a prompt with this id."""
    return ProblemError(404, "unknown-prompt", texts.UNKNOWN_PROMPT.format(message_id=message_id))


def unknown_turn(turn_id: str) -> ProblemError:
    """404: neither session nor archive has it."""
    return ProblemError(404, "unknown-turn", texts.UNKNOWN_TURN.format(turn_id=turn_id))


def not_running() -> ProblemError:
    return ProblemError(409, "not-running", texts.NOT_RUNNING)


def not_failed(detail: str) -> ProblemError:
    """409: there is no failed turn to retry."""
    return ProblemError(409, "not-failed", detail)


def unknown_blob(name: str) -> ProblemError:
    """404: the session has no text with this hash."""
    return ProblemError(404, "unknown-blob", texts.UNKNOWN_BLOB.format(name=name))


def session_ended(workflow_id: WorkflowId) -> ProblemError:
    """409: it has ended. It can still be read."""
    return ProblemError(409, "session-ended", texts.SESSION_ENDED.format(session_id=session_id_of(workflow_id)))


def no_longer_retained(workflow_id: WorkflowId) -> ProblemError:
    """410: it has ended, and neither Temporal nor the archive has its turns any more."""
    return ProblemError(
        410, "no-longer-retained", texts.NO_LONGER_RETAINED.format(session_id=session_id_of(workflow_id))
    )


def id_was_used(workflow_id: WorkflowId) -> ProblemError:
    """409: another session has or had the id."""
    return ProblemError(409, "session-exists", texts.ID_WAS_USED.format(session_id=session_id_of(workflow_id)))


def id_is_being_deleted(workflow_id: WorkflowId) -> ProblemError:
    """409: the session that has the id is being deleted; then the id is free."""
    return ProblemError(409, "session-exists", texts.ID_IS_BEING_DELETED.format(session_id=session_id_of(workflow_id)))


def no_web_ui() -> ProblemError:
    """404: the gateway serves no Web UI of Temporal, or not to this caller."""
    return ProblemError(404, "not-found", texts.NO_WEB_UI)


def temporal_unreachable() -> ProblemError:
    """503: the state of sessions is unknown."""
    return ProblemError(503, "temporal-unreachable", texts.TEMPORAL_UNREACHABLE, retry_after=2)


def stopping() -> ProblemError:
    """503: this gateway is shutting down."""
    return ProblemError(503, "stopping", texts.STOPPING, retry_after=2)


def cut_short() -> ProblemError:
    """503: this gateway is shutting down, and the request was not finished. It may have changed something."""
    return ProblemError(503, "stopping", texts.CUT_SHORT, retry_after=2)


def archive_unavailable(reason: str) -> ProblemError:
    """503: only the archive has the answer. The session itself continues."""
    return ProblemError(503, "archive-unavailable", reason, retry_after=5)


def login_not_ended(reason: str) -> ProblemError:
    """503: the browser is logged out, but its login can't be deleted."""
    return ProblemError(503, "archive-unavailable", texts.LOGIN_NOT_ENDED.format(reason=reason))


def deletion_refused(reason: str) -> ProblemError:
    """503: workers may not terminate or delete workflows."""
    return ProblemError(503, "deletion-refused", reason, retry_after=30)


def no_worker(workflow_id: WorkflowId) -> ProblemError:
    """504: the session exists, but no worker answers."""
    return ProblemError(504, "no-worker", texts.NO_WORKER.format(session_id=session_id_of(workflow_id)), retry_after=2)


def session_stuck(workflow_id: WorkflowId) -> ProblemError:
    """504: the session's workflow task keeps failing. That is a bug of ours; a deployment fixes it."""
    return ProblemError(
        504, "session-stuck", texts.SESSION_STUCK.format(session_id=session_id_of(workflow_id)), retry_after=30
    )


def malformed() -> ProblemError:
    """400: the bytes are not an HTTP request. The connection is closed."""
    return ProblemError(400, "malformed-request", texts.MALFORMED)


def temporal_rate_limit() -> ProblemError:
    """429: Temporal accepts no further requests of this namespace at the moment."""
    return ProblemError(429, "rate-limited", texts.TEMPORAL_RATE_LIMIT, retry_after=1)


def renderer_busy() -> ProblemError:
    """429: the renderer is busy. The text can be shown as it is."""
    return ProblemError(429, "rate-limited", texts.RENDERER_BUSY, retry_after=1)


def imports_busy() -> ProblemError:
    """429: other documents are being imported. Nothing was imported."""
    return ProblemError(429, "rate-limited", texts.IMPORTS_BUSY, retry_after=5)


def over_limit(name: LimitName, limit: float, *, retry_after: int) -> ProblemError:
    """429: the caller asks for more than the setting `name` allows. Nothing was done."""
    detail = texts.OVER_LIMIT[name].format(limit=f"{limit:,g}", seconds=retry_after)
    return ProblemError(429, "rate-limited", detail, limit=name, retry_after=retry_after)


def audit_unavailable(reason: str) -> ProblemError:
    """503: the change can't be recorded, so it was not made."""
    return ProblemError(503, "archive-unavailable", texts.AUDIT_DOWN.format(reason=reason), retry_after=5)


REJECTIONS: dict[RejectionReason, tuple[int, ProblemName]] = {
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


def rejected(reason: RejectionReason, message: str, *, field: str | None = None) -> ProblemError:
    status, name = REJECTIONS[reason]
    errors = [FieldError(field=field, reason=message)] if field and status == 422 else None
    return ProblemError(status, name, message, errors=errors, retry_after=5 if status == 429 else None)


def prompt_not_waiting(message_id: str, fate: str) -> ProblemError:
    """409: the prompt was withdrawn, discarded or steered before."""
    return rejected("not_waiting", texts.NOT_WAITING.format(message_id=message_id, fate=fate))


def invalid(field: str, reason: str) -> ProblemError:
    """422: one field is invalid."""
    return _invalid(f"{field}: {reason}", [FieldError(field=field, reason=reason)])


def _invalid(detail: str, errors: list[FieldError]) -> ProblemError:
    return ProblemError(422, "invalid", detail, errors=errors)


MEDIA_TYPE = "application/problem+json"


def install(app: FastAPI) -> None:
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


def response(problem: Problem, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse(
        problem.model_dump(exclude_none=True),
        status_code=problem.status,
        headers={**HEADERS, **(headers or {})},
        media_type=MEDIA_TYPE,
    )


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    problem = problem_of(error, is_of_task=request.url.path.startswith("/tasks"))
    return response(problem.problem, problem.headers)


def problem_of(error: Exception, *, is_of_task: bool) -> ProblemError:
    """Return the problem of an exception; for tasks, its errors include the value."""
    match error:
        case ProblemError():
            return error
        case RejectedError():
            return rejected(error.reason, error.message, field=error.field)
        case TaskValidationError():
            field = FieldError(field=error.field, reason=error.reason, error_type=error.error_type, value=error.value)
            return _invalid(str(error), [field])
        case StoreUnavailableError():
            return archive_unavailable(texts.ARCHIVE_DOWN.format(reason=error))
        case RequestValidationError():
            fields = [_field_error(one, is_of_task=is_of_task) for one in error.errors()[:20]]
            return _invalid("; ".join(f"{one.field}: {one.reason}" for one in fields), fields)
        case ClientDisconnect():  # nobody reads the answer, and it is no error of ours
            return request_timeout()
        case _:
            return ProblemError(500, "internal", texts.INTERNAL)


def _field_error(error: dict[str, Any], *, is_of_task: bool) -> FieldError:
    # The path begins with the part of the request. For JSON that can't be parsed, a character position follows.
    path = [] if error["type"] == "json_invalid" else error["loc"][1:]
    value = preview(error["input"]) if is_of_task else None
    return FieldError(
        field=field_path(path) or "body", reason=reason_of(error), error_type=error_type_of(error), value=value
    )


async def _on_http_error(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    if status == 400:  # FastAPI's response to a body that it can't parse at all
        return response(invalid("body", texts.NOT_JSON).problem)
    if status == 413:
        return response(ProblemError(413, "too-large", str(getattr(error, "detail", ""))).problem)
    if status == 405:
        return await _on_other_method(request)
    name: ProblemName = "not-found" if status == 404 else "invalid"
    template = texts.NOTHING_THERE if status == 404 else texts.OTHER_HTTP_ERROR
    detail = template.format(
        method=original_method(request.scope), path=request.url.path, phrase=HTTPStatus(status).phrase.lower()
    )
    headers = getattr(error, "headers", None) or {}
    return response(ProblemError(status, name, detail).problem, dict(headers))


def request_timeout() -> ProblemError:
    """408: the rest of the request did not arrive in time."""
    return ProblemError(408, "request-timeout", texts.REQUEST_TIMEOUT)


def head_too_large(limit: int) -> ProblemError:
    """431: the request's headers are over the limit."""
    return ProblemError(431, "head-too-large", texts.HEAD_TOO_LARGE.format(limit=limit))


def too_many_connections(limit: int) -> ProblemError:
    """503: the gateway accepts further connections once others are closed."""
    detail = texts.TOO_MANY_CONNECTIONS.format(limit=limit)
    return ProblemError(503, "too-many-connections", detail, retry_after=1)


async def _on_other_method(request: Request) -> Response:
    """Respond to a method that the path doesn't support; to `OPTIONS` with those that it supports."""
    allowed = ", ".join(allowed_methods(request.app.routes, request.scope))
    headers = {"Allow": allowed} if allowed else {}
    if request.method == "OPTIONS":
        return Response(status_code=204, headers=headers)
    detail = texts.METHOD_NOT_ALLOWED.format(
        path=request.url.path, method=original_method(request.scope), allowed=allowed or "none"
    )
    return response(ProblemError(405, "method-not-allowed", detail).problem, headers)


def too_large(max_bytes: int = MAX_BODY_BYTES) -> ProblemError:
    """413: the body is over the route's limit. It was not read completely."""
    return ProblemError(413, "too-large", texts.TOO_LARGE.format(mib=max_bytes // 1024**2))


def content_too_large(max_bytes: int) -> ProblemError:
    """413: one attachment is over the limit."""
    return ProblemError(413, "too-large", texts.CONTENT_TOO_LARGE.format(limit=max_bytes))
