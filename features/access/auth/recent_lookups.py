"""Rows of the store that requests need again and again: looked up once a second."""

import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from cachetools import LRUCache

from turnkeeper.api.coalescer import Coalescer
from turnkeeper.api.timeouts import Timeouts

MAX_CACHED = 10_000
"""Rows in the cache, missing ones included: a stranger may ask for any number of those."""

Row = TypeVar("Row")


class RecentLookups(Generic[Row]):
    """Finds rows by their ids."""

    def __init__(self, look_up: Callable[[str], Awaitable[Row | None]], timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._look_up = look_up
        self._cache = LRUCache[str, tuple[float, Row | None]](maxsize=MAX_CACHED)
        self._running = Coalescer[str, Row | None]()

    async def find(self, row_id: str) -> Row | None:
        """Return the row, or `None`, as it was at most `Timeouts.lookup_cache` ago. Raises what the lookup raises."""
        looked_up_at, row = self._cache.get(row_id, (float("-inf"), None))
        if time.monotonic() - looked_up_at < self._timeouts.lookup_cache:
            return row
        return await self._running.run(row_id, lambda: self._find(row_id))

    def forget(self, row_id: str) -> None:
        self._cache.pop(row_id, None)

    async def _find(self, row_id: str) -> Row | None:
        # The time before the lookup: the row may change during it.
        started_at = time.monotonic()
        row = await self._look_up(row_id)
        self._cache[row_id] = (started_at, row)
        return row
