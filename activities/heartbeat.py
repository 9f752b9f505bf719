"""Heartbeats from a timer, so that a silent vendor or a slow tool does not look like a dead worker."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from temporalio import activity

HEARTBEAT_SECONDS = 1.0


@asynccontextmanager
async def heartbeating(
    details: Callable[[], Sequence[object]] = tuple, *, seconds: float = HEARTBEAT_SECONDS
) -> AsyncIterator[None]:
    """Heartbeat every `seconds` inside the block; a cancellation is delivered with the answer to a heartbeat (OPS-8).

    Each has the `details` of its moment: those that an activity sends with heartbeats of its own have to be among them,
    since the server keeps what the newest one had, if only nothing.
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
