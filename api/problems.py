"""Every error response of the gateway: RFC 9457 `application/problem+json` with a stable `type` (API-2).

`KINDS` has a row for each: status, title, meaning, and the text with what to do next. The types are public API; the
texts are for people and may change. A new problem is a row and its name in `ProblemName`.

They contain nothing internal and nothing that the caller sent, except for ids, paths, field names, and shortened: a
foreign host or origin, and the value of a task's parameter (TSK-1).
"""

from dataclasses import dataclass
from typing import Any, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict
from starlette.requests import ClientDisconnect

from turnkeeper.api.callers import Caller
from turnkeeper.models.errors import (
    RejectedError,
    RejectionReason,
    TaskErrorType,
    TaskValidationError,
    TurnkeeperError,
    preview,
)
from turnkeeper.models.ids import WorkflowId, session_id_of
from turnkeeper.models.wire import error_type_of, field_path, reason_of
from turnkeeper.stores.database.database import StoreUnavailableError


@dataclass(frozen=True)
class Kind:
    """A row of the table of problems."""

    status: int
    title: str
    meaning: str = ""
    """For the OpenAPI document; empty: no operation names the problem, any request may get it."""
    text: str = ""
    """What went wrong and what to do next, with the names of values in braces; empty: the place that raises it says."""
    retry_after: int | None = None
    """In seconds."""


# fmt: off
ProblemName = Literal[
    "malformed-request", "unauthenticated", "forbidden", "foreign-host", "foreign-origin", "proxied", "unknown-session",
    "unknown-task", "unknown-prompt", "unknown-turn", "unknown-call", "unknown-blob", "unknown-agent", "not-found",
    "method-not-allowed", "request-timeout", "session-exists", "session-ended", "no-longer-retained", "state-full",
    "not-waiting", "not-running", "not-failed", "not-awaiting-approval", "other-arguments", "idempotency-key-reused",
    "too-large", "invalid", "queue-full", "rate-limited", "head-too-large", "internal", "temporal-unreachable",
    "archive-unavailable", "issuer-unavailable", "deletion-refused", "stopping", "too-many-connections", "no-worker",
    "session-stuck",
]
"""The keys of `KINDS`."""
# fmt: on

KINDS: dict[ProblemName, Kind] = {
    "malformed-request": Kind(400, "Malformed request", text="This is not a valid HTTP request."),
    "unauthenticated": Kind(
        401,
        "Key needed",
        "the request has no key or token, or one that is not valid",
        # It is not said why: the reason would help a caller who tries some out.
        "This key or token is not valid: it is unknown, was revoked or has expired.",
    ),
    "forbidden": Kind(403, "Not allowed", "the caller's role may not do this; the text names the role that may"),
    "foreign-host": Kind(
        403,
        "Unknown host",
        "the `Host` is not one of the gateway's names",
        "This gateway does not answer to {host}. It answers to localhost, 127.0.0.1, [::1], api_host and the host of "
        "public_url; add other names to the setting allowed_hosts.",
    ),
    "foreign-origin": Kind(
        403,
        "Request from another site",
        "a web page of another site sent the request",
        "{page} sent this request, and only the gateway's own page may. If people open the gateway at that address, "
        "set public_url to it.",
    ),
    "proxied": Kind(
        403,
        "Request through a proxy",
        "the request came through a proxy, and the gateway asks nobody for a key",
        "This request came through a proxy: it has the header {header}. The gateway asks nobody for a key, so everyone "
        "at the other side of the proxy would be an admin. Set auth.keys=true and create keys with `turnkeeper keys "
        "create`, or set auth.oidc.issuer.",
    ),
    "unknown-session": Kind(
        404, "Session not found", "there is no such session", "There is no session {session_id!r}."
    ),
    "unknown-task": Kind(404, "Task not found", "there is no such task", "There is no task {session_id!r}."),
    "unknown-prompt": Kind(
        404, "Prompt not found", "the session never had this prompt", "The session has no prompt {message_id!r}."
    ),
    "unknown-turn": Kind(404, "Turn not found", "the session has no such turn", "The session has no turn {turn_id!r}."),
    "unknown-call": Kind(404, "Tool call not found", "the session has no such tool call"),
    "unknown-blob": Kind(404, "Text not found", "the session has no such text", "The session has no text {name!r}."),
    "unknown-agent": Kind(404, "Agent not found", "there is no such agent", "There is no agent {name!r}."),
    "not-found": Kind(404, "Not found", text="There is nothing at {path}."),
    "method-not-allowed": Kind(
        405, "Method not allowed", text="{path} doesn't support {method}. Supported: {allowed}."
    ),
    "request-timeout": Kind(408, "Request timed out", text="The rest of the request did not arrive in time."),
    "session-exists": Kind(
        409,
        "Session id already used",
        "the id was used before",
        "The id {session_id!r} was used before. Choose another.",
    ),
    "session-ended": Kind(
        409,
        "Session ended",
        "the session has ended, or is ending",
        "Session {session_id!r} has ended. It can still be read.",
    ),
    "no-longer-retained": Kind(
        410,
        "Session no longer retained",
        "the session has ended, and its turns are neither in Temporal nor in the archive",
        "Session {session_id!r} has ended, and its turns are no longer retained.",
    ),
    "state-full": Kind(409, "Session full", "the session is full"),
    "not-waiting": Kind(
        409,
        "Prompt no longer queued",
        "the prompt is no longer in the queue",
        "Prompt {message_id!r} was {fate}. Send it with a new id.",
    ),
    "not-running": Kind(409, "No turn is running", "no turn is running", "No turn is running."),
    "not-failed": Kind(409, "Turn did not fail", "the turn did not fail", "Turn {turn_id!r} did not fail."),
    "not-awaiting-approval": Kind(409, "No approval pending", "the call no longer waits for a decision"),
    "other-arguments": Kind(
        409, "Arguments have changed", "the call has other arguments than those that were decided on"
    ),
    "idempotency-key-reused": Kind(
        409,
        "Key already used",
        "the key was used for another task",
        "The idempotency_key {key!r} was used for another task. Send the same request again, or choose another key.",
    ),
    "too-large": Kind(
        413,
        "Request too large",
        "the body is over 1 MiB, or over 10 MiB where a history or attachments are sent",
        "The request's body is over the limit of {mib} MiB.",
    ),
    "invalid": Kind(422, "Invalid request", "a parameter or field is invalid; `errors` names each"),
    "queue-full": Kind(
        429, "Queue full", "too many prompts are waiting in the session; see `Retry-After`", retry_after=5
    ),
    "rate-limited": Kind(
        429,
        "Too many requests",
        "too many requests right now; see `Retry-After`",
        "Temporal is limiting requests. Try again in a moment.",
        retry_after=1,
    ),
    "head-too-large": Kind(
        431, "Request headers too large", text="The request's headers are over the limit of {max_bytes:,} bytes."
    ),
    "internal": Kind(500, "Internal error", text="Internal error. The gateway's log has the details."),
    "temporal-unreachable": Kind(
        503,
        "Temporal unreachable",
        "Temporal can't be reached",
        "Temporal can't be reached. Only confirmed changes were made; try again.",
        retry_after=2,
    ),
    "archive-unavailable": Kind(
        503,
        "Archive unavailable",
        "the archive can't be reached, and only the archive has the answer",
        "{reason} Nothing is lost; the session itself continues.",
        retry_after=5,
    ),
    "issuer-unavailable": Kind(
        503,
        "Issuer unavailable",
        "the keys of the tokens' issuer can't be read",
        "The keys of the tokens' issuer can't be read now. Try again.",
        retry_after=2,
    ),
    "deletion-refused": Kind(
        503, "Deletion not permitted", "Temporal doesn't allow workers to delete workflows", retry_after=30
    ),
    "stopping": Kind(
        503,
        "Gateway stopping",
        "this gateway is stopping",
        "This gateway is stopping. Connect again.",
        retry_after=2,
    ),
    "too-many-connections": Kind(
        503,
        "Too many connections",
        text="The gateway already has {count:,} connections. Try again, or set api_max_connections to allow more.",
        retry_after=1,
    ),
    "no-worker": Kind(
        504,
        "No worker",
        "no worker answered; accepted prompts are safe",
        "No worker answered for session {session_id!r}. Accepted prompts are safe and run as soon as a worker is back.",
        retry_after=2,
    ),
    "session-stuck": Kind(
        504,
        "Session stuck",
        "the session's workflow task keeps failing",
        "Session {session_id!r} is stuck: its workflow task keeps failing. Nothing is lost; it continues after a fix.",
        retry_after=30,
    ),
}

NO_CREDENTIAL = (
    "This gateway needs a key or a token: log in at its page, set TURNKEEPER_API_KEY, or send it as Authorization: "
    "Bearer."
)

UNKNOWN_UPLOAD = "no content with this hash was uploaded to this session"

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

    def __init__(self, problem: Problem, headers: dict[str, str], caller: Caller | None) -> None:
        """`caller`: of 401, 403 and 429: who was refused, if that is known; for the audit."""
        super().__init__(problem.detail)
        self.problem = problem
        self.headers = headers
        self.caller = caller


def problem(
    name: ProblemName,
    detail: str | None = None,
    /,
    *,
    errors: list[FieldError] | None = None,
    limit: LimitName | None = None,
    retry_after: int | None = None,
    caller: Caller | None = None,
    workflow_id: WorkflowId | None = None,
    **values: object,
) -> ProblemError:
    """Return the problem `name`. Its text is `detail`, or that of its row with `values` and the session's id.

    >>> problem("unknown-session", workflow_id=WorkflowId("acme:chat-1")).problem.detail
    "There is no session 'chat-1'."
    >>> problem("temporal-unreachable").headers
    {'Retry-After': '2'}
    """
    kind = KINDS[name]
    if workflow_id is not None:
        values["session_id"] = session_id_of(workflow_id)
    body = Problem(
        type=f"urn:turnkeeper:problem:{name}",
        title=kind.title,
        status=kind.status,
        detail=kind.text.format(**values) if detail is None else detail,
        errors=errors,
        limit=limit,
    )
    seconds = retry_after or kind.retry_after
    headers = {"Retry-After": str(seconds)} if seconds else {}
    if kind.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return ProblemError(body, headers, caller)


def invalid(field: str, reason: str) -> ProblemError:
    return problem("invalid", f"{field}: {reason}", errors=[FieldError(field=field, reason=reason)])


REJECTIONS: dict[RejectionReason, ProblemName] = {
    "invalid": "invalid",
    "blank": "invalid",
    "too_long": "invalid",
    "queue_full": "queue-full",
    "state_full": "state-full",
    "ending": "session-ended",
    "unknown_prompt": "unknown-prompt",
    "not_waiting": "not-waiting",
    "not_open": "not-running",
    "unknown_call": "unknown-call",
    "not_awaiting": "not-awaiting-approval",
    "other_arguments": "other-arguments",
}


def rejected(reason: RejectionReason, message: str, *, field: str | None = None) -> ProblemError:
    """Return the problem of a session's rejection. `field`: the one that is invalid."""
    name = REJECTIONS[reason]
    errors = [FieldError(field=field, reason=message)] if field and name == "invalid" else None
    return problem(name, message, errors=errors)


def problem_of(error: Exception, *, is_of_task: bool) -> ProblemError:
    """Return the problem of an exception; for tasks, its errors include the value."""
    match error:
        case ProblemError():
            return error
        case RejectedError():
            return rejected(error.reason, error.message, field=error.field)
        case TaskValidationError():
            field = FieldError(field=error.field, reason=error.reason, error_type=error.error_type, value=error.value)
            return problem("invalid", str(error), errors=[field])
        case StoreUnavailableError():
            return problem("archive-unavailable", reason=error)
        case RequestValidationError():
            fields = [_field_error(one, is_of_task=is_of_task) for one in error.errors()[:20]]
            return problem("invalid", "; ".join(f"{one.field}: {one.reason}" for one in fields), errors=fields)
        case ClientDisconnect():  # nobody reads the answer, and it is no error of ours
            return problem("request-timeout")
        case _:
            return problem("internal")


def _field_error(error: dict[str, Any], *, is_of_task: bool) -> FieldError:
    # The path begins with the part of the request. For JSON that can't be parsed, a character position follows.
    path = [] if error["type"] == "json_invalid" else error["loc"][1:]
    value = preview(error["input"]) if is_of_task else None
    return FieldError(
        field=field_path(path) or "body", reason=reason_of(error), error_type=error_type_of(error), value=value
    )
