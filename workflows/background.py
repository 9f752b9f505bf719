"""Work beside a session's main loop."""

from collections.abc import Awaitable, Callable

from temporalio import workflow


async def run_in_background(work: Callable[[], Awaitable[None]], *, rules: int) -> None:
    """Do the work of a task that nobody awaits; an error in it, which is a bug, fails the workflow task (SES-10).

    By rules before 3 it only ends this task, unseen.
    """
    try:
        await work()
    except Exception as error:
        if rules < 3:
            raise
        failure = error  # `error` is gone after this block

        def fail() -> bool:
            # As this type: some errors of Temporal's would fail the session instead.
            raise RuntimeError("Work beside the session's main loop failed.") from failure

        # The SDK only logs the error of such a task; that of a condition fails the workflow task, also when nothing
        # wakes the main loop.
        await workflow.wait_condition(fail)
