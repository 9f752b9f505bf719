"""Errors between a client and the gateway.

GatewayError
├── GatewayProblemError       the gateway answered with a problem (RFC 9457), which says what is wrong
├── GatewayUnreachableError   there was no response, or only a proxy's: trying again may help
├── CopyFailedError           a fork or an import has failed, and nothing is left of it
└── GatewayUnreadableError    another program answered, or a gateway of another version: trying again won't help
"""

from pydantic import BaseModel, ValidationError

from turnkeeper.models.errors import TurnkeeperError

TEMPORARY_STATUSES = frozenset({429, 502, 503, 504})
"""HTTP statuses after which a later call may succeed: too many requests, or a service behind the gateway is down."""


class FieldProblem(BaseModel):
    """An invalid field: its path, and the valid range; for a task also its shortened value."""

    field: str
    reason: str
    value: str | None = None


class Problem(BaseModel):
    """An error response (RFC 9457). `type` is stable; `errors` lists the fields of an invalid request."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldProblem] | None = None
    limit: str | None = None
    """For `rate-limited`: the setting that limits the call, which had no effect."""

    @property
    def name(self) -> str:
        """The last word of `type`, which identifies the problem.

        >>> Problem(type="urn:turnkeeper:problem:unknown-session", title="", status=404, detail="").name
        'unknown-session'
        """
        return self.type.rpartition(":")[2]


class GatewayError(TurnkeeperError):
    """A call of the gateway failed."""


class CopyFailedError(GatewayError):
    """A fork or an import has failed; the message says why."""


class GatewayProblemError(GatewayError):
    """The gateway answered with a problem. `retry_after`: its header in seconds, if there is one."""

    def __init__(self, problem: Problem, *, retry_after: float | None = None) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.retry_after = retry_after

    @property
    def is_temporary(self) -> bool:
        """Whether the same call may succeed later."""
        return self.problem.status in TEMPORARY_STATUSES


class GatewayUnreachableError(GatewayError):
    """No gateway answered at `url`, for a `reason` in words."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"The gateway at {url} can't be reached: {reason}")
        self.url = url
        self.reason = reason


class GatewayUnreadableError(GatewayError):
    """The server at `url` is not a gateway, or is one of another version."""

    def __init__(self, url: str) -> None:
        super().__init__(f"The server at {url} is not a Turnkeeper gateway that this client understands.")
        self.url = url


def parse_problem(body: bytes, *, status: int) -> Problem | None:
    """Return the problem in a response's body; None if the response is not a gateway's.

    >>> parse_problem(b"<html>Bad gateway</html>", status=502) is None
    True
    """
    try:
        problem = Problem.model_validate_json(body)
    except ValidationError:
        return None
    return problem if problem.status == status else None
