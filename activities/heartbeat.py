"""Periodic heartbeats, so that a silent vendor or a slow tool doesn't look like a dead worker."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from temporalio import activity

HEARTBEAT_SECONDS = 1.0


@asynccontextmanager
async def heartbeating(
    details: Callable[[], Sequence[object]] = tuple, *, seconds: float = HEARTBEAT_SECONDS
) -> AsyncIterator[None]:
    """Heartbeat every `seconds` inside the block. Cancellations are delivered in response to heartbeats (OPS-8).

    `details` is called for each heartbeat. It must include what the activity sends with heartbeats of its own, since
    the server keeps only the newest details, even if they are empty.
    """
    beating = asyncio.create_task(_beat(details, seconds))
    try:
        yield
    finally:
        beating.cancel()


async def _beat(details: Callable[[], Sequence[object]], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        activity.heartbeat(*details())
