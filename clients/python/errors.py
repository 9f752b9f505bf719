"""What can go wrong between a client and the gateway.

GatewayError
├── GatewayProblem       the gateway answered with a problem (RFC 9457): it says what is wrong, and who can mend it
├── GatewayUnreachable   nobody answered, or only a proxy that can't reach the gateway either: it may come back
└── GatewayUnreadable    what answered is no gateway, or one of another release: asking again does not help
"""

from pydantic import BaseModel, ValidationError

MAY_PASS = frozenset({429, 502, 503, 504})
"""Statuses of what asking again later may mend: too much at once, or something behind it is away."""


class FieldProblem(BaseModel):
    """A field that is wrong, by its path, and what is allowed; of a task also what was given, in short."""

    field: str
    reason: str
    value: str | None = None


class Problem(BaseModel):
    """An error answer (RFC 9457). `type` is stable; `errors` names every field of an invalid request."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldProblem] | None = None

    @property
    def name(self) -> str:
        """Return the last word of `type`, by which problems are told apart.

        >>> Problem(type="urn:turnkeeper:problem:unknown-session", title="", status=404, detail="").name
        'unknown-session'
        """
        return self.type.rpartition(":")[2]


class GatewayError(Exception):
    """A call that did not do what it says."""


class GatewayProblem(GatewayError):
    """The gateway answered, with a problem. `retry_after`: seconds after which asking again makes sense, if it said."""

    def __init__(self, problem: Problem, *, retry_after: float | None = None) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.retry_after = retry_after

    @property
    def may_pass(self) -> bool:
        """The same call may work later: Temporal or the workers are down, or there were too many."""
        return self.problem.status in MAY_PASS


class GatewayUnreachable(GatewayError):
    """No gateway answered at `url`; `reason` says how that was noticed."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"The gateway at {url} can't be reached: {reason}")
        self.url = url
        self.reason = reason


class GatewayUnreadable(GatewayError):
    """What answers at `url` is no gateway, or one of another release."""

    def __init__(self, url: str) -> None:
        super().__init__(f"What answers at {url} is no Turnkeeper gateway that this client understands.")
        self.url = url


def problem_in(body: bytes, *, status: int) -> Problem | None:
    """Return the problem that an answer holds; `None` where it is of something that is no gateway.

    >>> problem_in(b"<html>Bad gateway</html>", status=502) is None
    True
    """
    try:
        problem = Problem.model_validate_json(body)
    except ValidationError:
        return None
    return problem if problem.status == status else None
