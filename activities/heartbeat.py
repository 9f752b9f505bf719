"""Heartbeats from a timer, so that a silent vendor or a slow tool does not look like a dead worker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio import activity

HEARTBEAT_SECONDS = 1.0


@asynccontextmanager
async def heartbeating() -> AsyncIterator[None]:
    """Heartbeat every second inside the block; a cancellation is delivered with the answer to a heartbeat (OPS-8)."""
    beating = asyncio.create_task(_beat())
    try:
        yield
    finally:
        beating.cancel()


async def _beat() -> None:
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        activity.heartbeat()
