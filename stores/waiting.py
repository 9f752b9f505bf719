"""Waiting for a change, and for the end of tasks of our own (OPS-2).

Before Python 3.12, `asyncio.wait_for` loses a cancellation that comes as its call completes. We and our libraries use
it, so a task that works in a loop may go on after `cancel`, and a process that waits for it would never stop.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any


class VersionCounter:
    """Counts changes. Nothing is queued: a slow waiter sees the newest version only."""

    def __init__(self) -> None:
        self.version = 0
        self._notified = asyncio.Event()

    def advance(self) -> None:
        """Increment the version and wake all waiters."""
        self.version += 1
        self.notify()

    def notify(self) -> None:
        """Make all waiters check their condition again, without a new version."""
        self._notified.set()
        self._notified = asyncio.Event()

    def is_beyond(self, version: int) -> bool:
        return self.version > version

    async def wait_beyond(self, version: int, *, until: float | None = None) -> bool:
        """Wait for a version later than `version`. Returns `False` when the loop's clock reaches `until` first."""
        return await self.wait_for(lambda: self.is_beyond(version), until=until)

    async def wait_for(self, condition: Callable[[], bool], *, until: float | None = None) -> bool:
        """Wait until `condition` holds. Returns `False` when the loop's clock reaches `until` first.

        It is checked at once and after every `notify`, which must follow each change of what it reads.
        """
        while not condition():
            try:
                async with asyncio.timeout_at(until):
                    await self._notified.wait()
            except TimeoutError:
                return False
        return True


REPEAT_SECONDS = 1.0
"""A task that has not ended in this time is cancelled again. Ending takes milliseconds."""


async def cancel_until_done(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks, and return when all of them have ended, however they did."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=REPEAT_SECONDS)
