"""The end of the gateway: every wait of a request ends at once, with what it returns when its time is up (API-2).

A prompt that is waited for is a 202, a poll returns an update without news, a task is returned as it is, and a stream
ends. Requests that are still not answered `Timeouts.stop` later are answered with a problem (`http/server.py`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from turnkeeper.stores.version_counter import VersionCounter


class Closing:
    """Whether the gateway closes, and the time limits that end with it."""

    def __init__(self) -> None:
        self.has_begun = False
        self._limits: dict[asyncio.Timeout, float] = {}
        """The open time limits, each with its grace."""

    def begin(self) -> None:
        """End every wait, now and from now on."""
        self.has_begun = True
        for limit, grace in self._limits.items():
            _shorten(limit, grace)

    def is_time_up(self, until: float) -> bool:
        """Return whether a request that waits until a time on the loop's clock has to answer now."""
        return self.has_begun or asyncio.get_running_loop().time() >= until

    @asynccontextmanager
    async def time_limit(self, until: float | None = None, *, grace: float = 0.0) -> AsyncIterator[None]:
        """Raise `TimeoutError` once the loop's clock reaches `until`, or `grace` seconds after closing has begun."""
        async with asyncio.timeout_at(until) as limit:
            if self.has_begun:
                _shorten(limit, grace)
            self._limits[limit] = grace
            try:
                yield
            finally:
                del self._limits[limit]

    async def wait_for(
        self, counter: VersionCounter, condition: Callable[[], bool], *, until: float | None = None
    ) -> bool:
        """Wait until `condition` holds, as `counter.wait_for` does; `False` also once closing has begun."""
        try:
            async with self.time_limit(until):
                return await counter.wait_for(condition)
        except TimeoutError:
            return False

    async def sleep(self, *, until: float) -> None:
        """Sleep until the loop's clock reaches `until`, or closing begins."""
        with suppress(TimeoutError):
            async with self.time_limit(until):
                await asyncio.Event().wait()


def _shorten(limit: asyncio.Timeout, grace: float) -> None:
    """Shorten `limit` so that it ends in at most `grace` seconds."""
    end, before = asyncio.get_running_loop().time() + grace, limit.when()
    if not limit.expired() and (before is None or end < before):
        limit.reschedule(end)
