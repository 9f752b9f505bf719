"""Maps a model's failure to one of four reactions (AGT-9). Limits on resent requests are in `model_calls.py`.

retry soon             an `ApplicationError` that Temporal retries after the given delay
retry later            `wait_seconds`: the workflow sleeps on a timer and shows until when
change and retry       `repeat`: the workflow shortens the request and sends it again
give up                a non-retryable `ApplicationError`; the turn ends with its `type`
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import TypeGuard, get_args

from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeout

from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.activities.running_activity import WORKER_DIED
from turnkeeper.models.errors import RETRYABLE, ErrorType
from turnkeeper.models.transcript.model_call import ModelCallOutcome

FIRST_DELAY = 0.5
MAX_RETRY_DELAY = 5.0
"""A longer delay is not left to Temporal's retries: the workflow waits on a timer, visibly."""

MAX_ATTEMPTS = 8
"""Attempts of one model call that end with an error. Workers that die or stop are not counted; the turn's time limits
those."""

MAX_QUICK_ATTEMPTS = 4
"""Quick attempts in a row. After that it is an outage that the workflow waits out, however soon the vendor says to
retry: otherwise Temporal's attempts would be used up during the outage."""

MAX_WAIT = 600.0
"""The maximum of a vendor's `retry-after`, in seconds."""

MAX_WAITS = 10
"""How often the workflow waits before it retries one request, until the turn fails."""

TOO_LONG_STATUSES = frozenset({400, 413, 422})
"""Statuses of a request that is too long, in whatever words."""

NEVER_RETRIED: frozenset[str] = frozenset({"auth", "quota"})
"""Errors that only a person can fix, whatever the vendor says about retrying."""


def judge(
    error: ModelError, *, attempt: int, vendor_waits: int, unclear: int = 1, may_be_too_long: bool = False
) -> ModelCallOutcome:
    """Return the outcome for the workflow to act on. Raises the `ApplicationError` for Temporal to act on.

    `attempt` counts this activity's attempts from 1, `vendor_waits` the workflow's waits for the vendor before it, and
    `unclear` the unclear answers to the request, including this one. Other failures and dead workers don't count there.
    `may_be_too_long`: it was the largest request so far, so that its length may be why it was refused.
    """
    if error.error_type == "context_too_long":
        return ModelCallOutcome(repeat="context_too_long")
    if may_be_too_long and error.is_unexplained and error.refusal and error.refusal.status in TOO_LONG_STATUSES:
        return ModelCallOutcome(repeat="maybe_too_long")
    if not _may_be_retried(error, unclear=unclear):
        raise ApplicationError(error.message, type=error.error_type, non_retryable=True)
    delay = _delay(error, attempt=attempt, vendor_waits=vendor_waits)
    if delay <= MAX_RETRY_DELAY:
        raise ApplicationError(error.message, type=error.error_type, next_retry_delay=timedelta(seconds=delay))
    if vendor_waits >= MAX_WAITS:
        raise ApplicationError(error.message, type=error.error_type, non_retryable=True)
    return ModelCallOutcome(wait_seconds=delay, wait_reason=reason_of(error))


def _may_be_retried(error: ModelError, *, unclear: int) -> bool:
    if error.max_attempts is not None and unclear >= error.max_attempts:
        return False
    if error.should_retry is None or error.error_type in NEVER_RETRIED:
        return error.error_type in RETRYABLE
    return error.should_retry


def _delay(error: ModelError, *, attempt: int, vendor_waits: int) -> float:
    requested_delay = max(error.retry_after or 0.0, 0.0)
    attempt = min(attempt, MAX_ATTEMPTS)  # more only if workers died
    if attempt > MAX_QUICK_ATTEMPTS:
        # The first wait of an outage continues where the quick attempts left off; each further one doubles.
        return min(max(requested_delay, FIRST_DELAY * 2.0 ** (attempt - 1 + vendor_waits)), MAX_WAIT)
    # Attempts 1 to 4 double from half a second to four.
    return min(FIRST_DELAY * 2.0 ** (attempt - 1) if error.retry_after is None else requested_delay, MAX_WAIT)


_PROBLEMS: dict[str, str] = {
    "rate_limited": "{} is limiting requests",
    "overloaded": "{} is overloaded",
    "provider_error": "{} had an error",
    "connection": "the connection to {} failed",
    "timeout": "the model did not answer in time",
    "auth": "{} did not accept the credentials",
    "not_found": "the model was not found",
    "bad_request": "{} did not accept the request",
    "quota": "the account with {} has no quota left",
    "refusal": "the model refused to answer",
    "context_too_long": "the conversation is too long for the model",
    "too_large": "the answer was too large to keep",
}
"""What happened, by `error_type`; `{}` is the vendor."""

MAX_REASON_CHARS = 500
"""Maximum characters of the reason why a model is unavailable: it is shown beside other facts of the session."""


def reason_of(error: ModelError) -> str:
    """Return why the model is unavailable, as a sentence that names the vendor and is safe to show.

    >>> reason_of(ModelError("overloaded", "HTTP 529, request req_1", vendor="Anthropic"))
    'Anthropic is overloaded: HTTP 529, request req_1.'
    """
    sentence = _sentence(error.error_type, error.message, vendor=error.vendor or "the model's provider")
    return sentence if len(sentence) <= MAX_REASON_CHARS else f"{sentence[: MAX_REASON_CHARS - 1]}…"


def _sentence(error_type: str, message: str, *, vendor: str = "the model's provider") -> str:
    what = _PROBLEMS.get(error_type, "the turn failed").format(vendor)
    whole = f"{what[0].upper()}{what[1:]}: {message}"
    return whole if whole.endswith(".") else f"{whole}."


_WORKER_DIED_SENTENCE = "The worker died while the model was answering, and no time was left for another attempt."


def is_reported_death(cause: BaseException | None) -> TypeGuard[ApplicationError]:
    """Return whether the process that watches the worker failed the attempt, because the worker died."""
    return isinstance(cause, ApplicationError) and cause.type == WORKER_DIED


def has_worker_died(error: ActivityError) -> bool:
    """Return whether the worker of the last attempt died: its death was reported, or its heartbeats stopped."""
    cause = error.cause
    is_silent = isinstance(cause, ActivityTimeout) and cause.type == TimeoutType.HEARTBEAT
    return is_silent or is_reported_death(cause)


def describe_failure(error: ActivityError) -> tuple[ErrorType, str]:
    """Return the `error_type` of a failed model call, and a sentence that is safe to show."""
    cause = error.cause
    if has_worker_died(error):
        return "timeout", _WORKER_DIED_SENTENCE
    if isinstance(cause, ActivityTimeout):
        return "timeout", "The model did not answer in time."
    if isinstance(cause, ApplicationError) and cause.type in get_args(ErrorType):
        error_type: ErrorType = cause.type  # type: ignore[assignment]  # just checked against the closed set
        return error_type, _sentence(error_type, cause.message)
    kind = cause.type if isinstance(cause, ApplicationError) else type(cause).__name__
    return "internal", f"An internal error ended the turn ({kind}). It is in the worker's log and in Temporal."


def with_details(failure: ApplicationError, details: Sequence[object]) -> ApplicationError:
    """Return the same failure with these details, in which the workflow finds what its attempts have cost."""
    if not details:
        return failure
    return ApplicationError(
        failure.message,
        *details,
        type=failure.type,
        non_retryable=failure.non_retryable,
        next_retry_delay=failure.next_retry_delay,
    )
