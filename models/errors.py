"""Everything that can go wrong, told apart by who can mend it.

the caller    Refused                 nothing enters the session; the gateway answers 4xx (`models/prompts.py`,
                                      validators of updates)
the world     ErrorType               judged once, in `activities/failures.py`; a turn ends with it, the session
                                      goes on (AGT-9)
a tool        ToolResult.status       a result the model sees, never a failed turn (AGT-7)
us            any other exception     the workflow task fails, stays visible, and resumes after the fix (SES-10)
"""

from typing import Literal

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

RefusalReason = Literal[
    "invalid", "blank", "too_long", "queue_full", "state_full", "ending", "unknown_prompt", "not_waiting", "not_open"
]
"""Why the session refused something a caller sent; the `type` of the refusal on the wire."""


REFUSED = "Refused: "
"""How the text of a refusal begins where only its text arrives."""


class Refused(Exception):
    """The caller's to mend: nothing was done. `field` names where, the message says what is allowed."""

    def __init__(self, reason: RefusalReason, message: str, *, field: str | None = None) -> None:
        """Keep `reason` (machine-readable), `message` (a sentence) and `field` (a path, where one is to blame)."""
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = field
