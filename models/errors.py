"""Everything that can go wrong, sorted by who can fix it. All our exceptions derive from `TurnkeeperError`.

the caller    RejectedError           nothing enters the session; the gateway answers 4xx
                                      (`models/session/prompts.py`, validators of updates)
              TaskValidationError     no task is created; the gateway answers 422 (TSK-1)
the operator  SettingsError           the process does not start (`models/settings/settings.py`)
the world     ErrorType               judged once, in `activities/failures.py`: the turn ends, not the session (AGT-9)
a tool        ToolResult.status       a result that the model sees, never a failed turn (AGT-7)
us            any other exception     the workflow task fails, stays visible, and resumes after the fix (SES-10)

Inside a workflow a turn leaves its loop without an answer in one of three ways:

TurnExitError
    TurnFailedError     it ends with an `ErrorType`
    TurnStoppedError    somebody or something stopped it
    TurnPausedError     the next run continues it
"""

import json
from collections.abc import Iterator, Mapping
from itertools import islice
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
"""Failures after which the same request may succeed later."""


class TurnkeeperError(Exception):
    """Base class of our exceptions."""


class TurnExitError(TurnkeeperError):
    """A turn leaves its loop without an answer. Each of the three subclasses is raised in one place."""


class TurnFailedError(TurnExitError):
    """The turn ends with an `error_type` and a sentence for people. Raised by `fail`."""

    def __init__(self, error_type: ErrorType, sentence: str) -> None:
        super().__init__(sentence)
        self.error_type = error_type
        self.sentence = sentence


class TurnStoppedError(TurnExitError):
    """The turn ends as cancelled, for a `reason` from outside. Raised by `TurnScope.check_stop`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TurnPausedError(TurnExitError):
    """The turn continues in the session's next run. Raised by `TurnRunner._check_next_step`."""


def fail(error_type: ErrorType, sentence: str) -> NoReturn:
    """End the running turn with `error_type`; the `sentence` says what happened and what to do next."""
    raise TurnFailedError(error_type, sentence)


RejectionReason = Literal[
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
"""Why a session rejected something; the `type` of the failure on the wire."""


REJECTION_PREFIX = "Refused: "
"""Prefix of a rejection's message. A failed query returns its text only; this tells it from a bug of ours."""

NO_SESSION_YET = "The session is being made, and can't be read before that is done."
"""What a workflow that becomes a session later answers to queries and updates. For clients there is no session yet."""

ARCHIVE_UNAVAILABLE = "archive_unavailable"
"""`type` of an activity's failure when the archive is down: it is retried later."""

DELETION_REFUSED = "deletion_refused"


class RejectedError(TurnkeeperError):
    """A caller sent something wrong, and nothing was done. The message says what is allowed."""

    def __init__(self, reason: RejectionReason, message: str, *, field: str | None = None) -> None:
        """`reason` is for programs, `message` is a sentence, `field` the path of the wrong field, if it is one."""
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = field


TaskErrorType = Literal["type_error", "missing_field", "invalid_value", "too_long"]


class TaskValidationError(TurnkeeperError):
    """A parameter of a task is wrong, and no task is created (CTX-10, TSK-1)."""

    def __init__(self, field: str, reason: str, value: str, error_type: TaskErrorType) -> None:
        """`field` is a path; `reason` says what is wrong and what is allowed; `value` comes from `preview`."""
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason
        self.value = value
        self.error_type = error_type


def preview(value: object) -> str:
    """Return a caller's value as one short line of ASCII, for an error message.

    >>> preview("system"), preview(None), preview([1, 2]), preview("x" * 5_000)[-24:]
    ("'system'", 'null', 'an array of 2', "xx' ... 5,000 characters")
    >>> preview(True), preview(17), preview(10**5_000)
    ('true', '17', 'a huge number')
    >>> preview({"contnet": "x", "metadata": {}}), preview({})
    ("an object with the keys 'contnet', 'metadata'", 'an object without keys')
    """
    if isinstance(value, str):
        return ascii(value) if len(value) <= 60 else f"{value[:60]!a} ... {len(value):,} characters"
    if isinstance(value, list | tuple):
        return f"an array of {len(value)}"
    if isinstance(value, Mapping):
        return _preview_of_keys(value)
    if isinstance(value, int) and abs(value) >= _HUGE:
        return "a huge number"
    return json.dumps(value) if isinstance(value, int | float | None) else "no JSON value"


def _preview_of_keys(value: Mapping[object, object]) -> str:
    """Return the first keys, so that a misspelt one is seen."""
    if not value:
        return "an object without keys"
    keys = ", ".join(ascii(str(key)[:MAX_KEY_CHARS]) for key in islice(value, MAX_KEYS))
    more = f" and {len(value) - MAX_KEYS:,} more" if len(value) > MAX_KEYS else ""
    return f"an object with the keys {keys}{more}"


MAX_KEYS = 8
MAX_KEY_CHARS = 32
"""Limits of an object in an error message."""

_HUGE = 2**63
"""Python itself raises for numbers of some thousand digits."""


def growing_pauses(first: float, longest: float) -> Iterator[float]:
    """Yield pauses in seconds, endlessly: `first`, then each twice the one before, up to `longest`.

    >>> pauses = growing_pauses(0.5, 3.0)
    >>> [next(pauses) for _ in range(5)]
    [0.5, 1.0, 2.0, 3.0, 3.0]
    """
    pause = first
    while True:
        yield pause
        pause = min(2 * pause, longest)
