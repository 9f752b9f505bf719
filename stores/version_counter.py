"""A version that grows, and a wait for a later one: how all who wait in this process learn of a change."""

import asyncio
from collections.abc import Callable


class VersionCounter:
    """Counts changes. Nothing is queued: a waiter that is slow goes on from the newest version."""

    def __init__(self) -> None:
        self.version = 0
        self._notified = asyncio.Event()

    def advance(self) -> None:
        """Count a change, and wake everyone who waits."""
        self.version += 1
        self.notify()

    def notify(self) -> None:
        """Make everyone who waits check their condition again; the version stays."""
        self._notified.set()
        self._notified = asyncio.Event()

    async def wait_beyond(self, version: int, *, until: float | None = None) -> bool:
        """Wait for a version later than `version`. Returns `False` when the loop's clock reaches `until` first."""
        return await self.wait_for(lambda: self.version > version, until=until)

    async def wait_for(self, condition: Callable[[], bool], *, until: float | None = None) -> bool:
        """Wait until `condition` holds. Returns `False` when the loop's clock reaches `until` first.

        It is checked at once and with every `notify`: whoever changes what it reads has to notify.
        """
        while not condition():
            try:
                async with asyncio.timeout_at(until):
                    await self._notified.wait()
            except TimeoutError:
                return False
        return True
