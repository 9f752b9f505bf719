"""Background tasks of a session."""

from collections.abc import Awaitable, Callable

from temporalio import workflow


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
