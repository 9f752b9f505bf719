"""Reading the stores with a bound (API-2): a dead disk must not hold up an answer that Temporal has given in time."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from turnkeeper.api import problem_texts as texts
from turnkeeper.stores.database.database import StoreUnavailableError

Answer = TypeVar("Answer")

REQUEST_SECONDS = 2.7
"""Everything a request needs of session and stores is there after so long, or it is answered without (API-2)."""

RESTORE_SECONDS = 0.7
"""Most time for restoring an answer that is kept by reference: its excerpt in time is better than all of it late."""


async def read_store(reading: Awaitable[Answer], *, until: float) -> Answer:
    """Return what is read, if it is there before the loop's clock reaches `until`. Raises `StoreUnavailableError`."""
    try:
        async with asyncio.timeout_at(until):
            return await reading
    except TimeoutError:
        raise StoreUnavailableError(texts.STORE_TIMEOUT) from None


def seconds_from_now(seconds: float) -> float:
    """Return that time on the loop's clock."""
    return asyncio.get_running_loop().time() + seconds
