"""Cancelling tasks of our own, so that they end (OPS-2).

Before Python 3.12, `asyncio.wait_for` loses a cancellation that comes as its call completes. We and our libraries use
it, so a task that works in a loop may go on after `cancel`, and a process that waits for it would never stop.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

REPEAT_SECONDS = 1.0
"""A task that has not ended in this time is cancelled again. Ending takes milliseconds."""


async def cancel_until_done(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks, and return when all of them have ended, however they did."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=REPEAT_SECONDS)
