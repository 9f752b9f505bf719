"""Background tasks of a session."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.errors import REJECTION_PREFIX, RejectedError


async def run_in_background(work: Callable[[], Awaitable[None]]) -> None:
    """Run a background task; an error in it is a bug and fails the workflow task (SES-10)."""
    try:
        await work()
    except Exception as error:  # noqa: BLE001  # it fails the workflow task below
        failure = error  # `error` is unbound after this block

        def fail() -> bool:
            # `RuntimeError`, since some of Temporal's errors would fail the workflow.
            raise RuntimeError("Work beside the session's main loop failed.") from failure

        # The SDK only logs an error in a task; an error in a condition fails the workflow task, even if nothing wakes
        # the main loop.
        await workflow.wait_condition(fail)


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
