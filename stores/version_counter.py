"""A version counter that tasks of this process can wait on."""

import asyncio
from collections.abc import Callable


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
