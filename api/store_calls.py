"""Store reads with a time limit (API-2): a hanging disk must not delay what Temporal has answered in time."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from turnkeeper.stores.database.database import StoreUnavailableError

Answer = TypeVar("Answer")


async def read_store(reading: Awaitable[Answer], *, until: float) -> Answer:
    """Return the result of `reading`. Raises `StoreUnavailableError` once the loop's clock reaches `until`."""
    try:
        async with asyncio.timeout_at(until):
            return await reading
    except TimeoutError:
        raise StoreUnavailableError("The store did not answer in time.") from None


def seconds_from_now(seconds: float) -> float:
    """Return the time in `seconds`, on the loop's clock."""
    return asyncio.get_running_loop().time() + seconds
