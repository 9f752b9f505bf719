"""Everything that can go wrong, told apart by who can mend it.

the caller    Refused                 nothing enters the session; the gateway answers 4xx
                                      (`models/session/queue/prompts.py`, validators of updates)
              TaskValidationError     no task is created; the gateway answers 422 (TSK-1)
the world     ErrorType               judged once, in `activities/failures.py`; a turn ends with it, the session
                                      goes on (AGT-9); within the workflow it is a `TurnFailed`, one of the three
                                      ways in which a turn leaves its loop without an answer (`TurnExit`)
a tool        ToolResult.status       a result the model sees, never a failed turn (AGT-7)
us            any other exception     the workflow task fails, stays visible, and resumes after the fix (SES-10)
"""

import json
from typing import Literal, NoReturn

ErrorType = Literal[
    "rate_limited",
    "overloaded",
    "provider_error",
    "connection",
    "timeout",
    "auth",
    "not_found",
    "bad_request",
    "quota",
    "refusal",
    "context_too_long",
    "too_large",
    "max_steps",
    "budget",
    "cancelled",
    "internal",
]
"""The closed set of a turn's `error_type` (AGT-9)."""

RETRYABLE: frozenset[ErrorType] = frozenset({"rate_limited", "overloaded", "provider_error", "connection", "timeout"})
"""Failures that the same request may survive later."""


class TurnExit(Exception):
    """A turn leaves its loop without an answer. Each of the three ways out is raised in one place."""


class TurnFailed(TurnExit):
    """The turn ends with an `error_type` and a sentence for people. Raised by `fail`."""

    def __init__(self, error_type: ErrorType, sentence: str) -> None:
        super().__init__(sentence)
        self.error_type = error_type
        self.sentence = sentence


class TurnStopped(TurnExit):
    """The turn ends as cancelled, for a `reason` from outside. Raised by `TurnContext.check_stop`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TurnPaused(TurnExit):
    """The turn goes on in the session's next run. Raised by `Turn._check_next_step`."""


def fail(error_type: ErrorType, sentence: str) -> NoReturn:
    """End the running turn with `error_type`, and a `sentence` that says what happened and what can be done."""
    raise TurnFailed(error_type, sentence)


RefusalReason = Literal[
    "invalid",
    "blank",
    "too_long",
    "queue_full",
    "state_full",
    "ending",
    "unknown_prompt",
    "not_waiting",
    "not_open",
    "unknown_call",
    "not_awaiting",
    "other_arguments",
]
"""Why the session refused something a caller sent; the `type` of the refusal on the wire."""


REFUSED = "Refused: "
"""How the text of a refusal begins where only its text arrives."""

ARCHIVE_UNAVAILABLE = "archive_unavailable"
DELETION_REFUSED = "deletion_refused"
"""`type` of an activity's failure that is the archive's: it is tried again later."""


class Refused(Exception):
    """The caller's to mend: nothing was done. `field` names where, the message says what is allowed."""

    def __init__(self, reason: RefusalReason, message: str, *, field: str | None = None) -> None:
        """Keep `reason` (machine-readable), `message` (a sentence) and `field` (a path, where one is to blame)."""
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = field


TaskErrorType = Literal["type_error", "missing_field", "invalid_value", "too_long"]


class TaskValidationError(Exception):
    """A parameter of a task is wrong, which the caller can mend: no task is created (CTX-10, TSK-1)."""

    def __init__(self, field: str, reason: str, value: str, error_type: TaskErrorType) -> None:
        """Keep the `field` as a path, the `reason` as what is wrong and allowed, and the `value` as `shown`."""
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason
        self.value = value
        self.error_type = error_type


def shown(value: object) -> str:
    """Return what an error repeats of a caller's value: one short line of ASCII, whatever it is.

    >>> shown("system"), shown(None), shown([1, 2]), shown("x" * 5_000)[-24:]
    ("'system'", 'null', 'an array of 2', "xx' ... 5,000 characters")
    >>> shown(True), shown(17), shown(10**5_000)
    ('true', '17', 'a huge number')
    """
    if isinstance(value, str):
        return ascii(value) if len(value) <= 60 else f"{value[:60]!a} ... {len(value):,} characters"
    if isinstance(value, list | tuple):
        return f"an array of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    if isinstance(value, int) and abs(value) >= _HUGE:
        return "a huge number"
    return json.dumps(value) if isinstance(value, int | float | None) else "no JSON value"


_HUGE = 2**63
"""Python itself refuses to write numbers of some thousand digits."""
