"""Reports rejections to callers of updates and queries (SES-10)."""

from collections.abc import Iterator
from contextlib import contextmanager

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.errors import REJECTION_PREFIX, RejectedError


@contextmanager
def report_rejections() -> Iterator[None]:
    """Turn a `RejectedError` into the caller's error; nothing enters the history.

    The error of a failed query arrives as text only; the prefix `REJECTION_PREFIX` distinguishes it from a bug.
    """
    try:
        yield
    except RejectedError as rejection:
        # Without its cause, which Temporal would send too.
        raise ApplicationError(
            f"{REJECTION_PREFIX}{rejection.message}", rejection.field, type=rejection.reason
        ) from None
