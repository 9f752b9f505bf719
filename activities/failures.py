"""Maps a model's failure to one of three reactions (AGT-9). Limits on resent requests are in `model_calls.py`.

retry later            `wait_seconds`: the workflow sleeps on a timer, and shows until when and why
change and retry       `repeat`: the workflow shortens the request and sends it again
give up                a non-retryable `ApplicationError`; the turn ends with its `type`

Temporal's own retries are for workers that die or stop, and for bugs of ours: the workflow can't see them, so a failure
of a vendor that they hid would have no reason to show.

How long a failure is waited out depends on its nature:

passes         overload, rate limit, connection, silence, a page or an error in     `MAX_FAILURES` in a row: about
               general words (`vendor_errors.py` has the table)                     55 minutes
may last       an error in words of its own, an unreadable or unclear answer, no    `MAX_SAME_FAILURES` that are the
               answer within `limits.model_timeout`: `ModelError.lasting` is set    same, whatever fails in between
lasts          a key, a quota, a refused request                                    none
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import TypeGuard, get_args

from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeout

from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.models.errors import RETRYABLE, ErrorType
from turnkeeper.models.transcript.model_call import ModelCallOutcome

FIRST_DELAY = 0.5
DELAY_GROWTH = 1.5
"""Seconds after the first failure of a request, and their factor for each further one, up to `MAX_WAIT`."""

MAX_WAIT = 600.0
"""The maximum of a vendor's `retry-after`, in seconds."""

QUICK_FAILURES = 4
"""After this many failures it is an outage: the delay grows however soon the vendor says to retry."""

MAX_FAILURES = 21
"""How often the workflow waits before it retries one request, until the turn fails."""

MAX_SAME_FAILURES = 3
"""Attempts that fail in the same way, if that may last."""

MAX_ATTEMPTS = 8
"""Temporal's attempts of one model call that end with a bug of ours. Workers that die or stop are not counted; the
turn's time limits those."""

MAX_QUICK_DELAY = 5.0
"""A summary and a condensed text are not worth a longer wait."""

TOO_LONG_STATUSES = frozenset({400, 413, 422})
"""Statuses of a request that is too long, in whatever words."""

NEVER_RETRIED: frozenset[str] = frozenset({"auth", "quota"})
"""Errors that only a person can fix, whatever the vendor says about retrying."""


def judge(error: ModelError, *, failures: int, same: int = 0, may_be_too_long: bool = False) -> ModelCallOutcome:
    """Return the outcome for the workflow to act on. Raises the `ApplicationError` that ends the turn.

    `failures` counts the vendor's failures of this request before this one, `same` those that are the same as this one,
    itself included, if it may last. Dead workers don't count there.
    `may_be_too_long`: it was the largest request so far, so that its length may be why it was refused.
    """
    if error.error_type == "context_too_long":
        return ModelCallOutcome(repeat="context_too_long")
    if may_be_too_long and error.is_unexplained and error.refusal and error.refusal.status in TOO_LONG_STATUSES:
        return ModelCallOutcome(repeat="maybe_too_long")
    if same >= MAX_SAME_FAILURES:
        raise ApplicationError(f"{error.message}, {same} times", type=error.error_type, non_retryable=True)
    if failures >= MAX_FAILURES or not _may_be_retried(error):
        raise ApplicationError(error.message, type=error.error_type, non_retryable=True)
    delay = _delay(error, failures=failures)
    return ModelCallOutcome(wait_seconds=delay, wait_reason=reason_of(error), wait_type=error.error_type)


def raise_if_retried_soon(error: ModelError, *, attempt: int, same: int) -> None:
    """Raise the `ApplicationError` that Temporal retries, if a quick retry of an activity may help.

    For activities whose caller can do without them. `attempt` counts the activity's attempts from 1.
    """
    try:
        delay = judge(error, failures=attempt - 1, same=same).wait_seconds
    except ApplicationError:
        return
    if delay is not None and delay <= MAX_QUICK_DELAY:
        raise ApplicationError(error.message, type=error.error_type, next_retry_delay=timedelta(seconds=delay))


def _may_be_retried(error: ModelError) -> bool:
    if error.should_retry is None or error.error_type in NEVER_RETRIED:
        return error.error_type in RETRYABLE
    return error.should_retry


def _delay(error: ModelError, *, failures: int) -> float:
    grown = FIRST_DELAY * DELAY_GROWTH**failures
    requested = error.retry_after
    if requested is None:
        return min(grown, MAX_WAIT)
    return min(max(requested, grown if failures >= QUICK_FAILURES else 0.0), MAX_WAIT)


def asked_again(reason: str, times: int) -> str:
    """Return the `reason` of a retry while the model is asked for the n-th time.

    >>> asked_again("Anthropic is overloaded: HTTP 529.", 2)
    'Anthropic is overloaded: HTTP 529; asked again (2nd time).'
    """
    ending = "th" if times % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(times % 10, "th")
    return f"{reason.removesuffix('.')}; asked again ({times}{ending} time)."


_PROBLEMS: dict[str, str] = {
    "rate_limited": "{} is limiting requests",
    "overloaded": "{} is overloaded",
    "provider_error": "{} had an error",
    "connection": "the connection to {} failed",
    "timeout": "no answer in time",
    "auth": "{} did not accept the credentials",
    "not_found": "the model was not found",
    "bad_request": "{} did not accept the request",
    "quota": "the account with {} has no quota left",
    "refusal": "the model refused to answer",
    "context_too_long": "the conversation is too long for the model",
    "too_large": "the answer was too large to keep",
}
"""A sentence for each `error_type`; `{}` is the vendor."""

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


WORKER_DIED = "worker_died"
"""The `type` of an attempt's failure if `turnkeeper up` saw the worker's process end."""


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
        return "timeout", "The worker died while the model was answering, and no time was left for another attempt."
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
