"""Heartbeats, which only show that the worker of a silent vendor or a slow tool is alive (OPS-8).

Temporal delivers a cancellation in response to a heartbeat. So that a stop takes effect at once, the worker that
cancels an activity makes it heartbeat now, if it runs in the same process (`beat_now`). Nothing is cancelled without
Temporal: the workflow task that cancels may be lost, and then the activity goes on. An activity of another process is
cancelled with its next heartbeat.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from temporalio import activity

HEARTBEAT_SECONDS = 3.0
"""Each is a write at the server, and an action where those are billed. `HEARTBEAT_TIMEOUT` follows from it."""

STOP_SECONDS = (0.02, 0.05, *[0.2] * 7)
"""Pauses before the heartbeats after `beat_now`: Temporal knows of the cancellation once the workflow task has been
reported, and the SDK sends at most one heartbeat per 0.2 s."""

_RUNNING: dict[tuple[str, str], "_Heart"] = {}
"""The activities of this process, by the ids of their run and activity. Global: workflows can't be given anything."""


class _Heart:
    """The heartbeats of one running activity."""

    def __init__(self, details: Callable[[], Sequence[object]]) -> None:
        self._details = details
        self._is_stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def beat_now(self) -> None:
        """Heartbeat soon and often; called in any thread."""
        with suppress(RuntimeError):  # the loop is closed, and so is the worker
            self._loop.call_soon_threadsafe(self._is_stopping.set)

    async def beat(self, last: float) -> None:
        """Heartbeat until this is cancelled."""
        last += self._loop.time()
        while True:
            now = self._loop.time()
            due = now + HEARTBEAT_SECONDS
            try:
                async with asyncio.timeout_at(last if now < last < due else due):
                    await self._is_stopping.wait()
            except TimeoutError:
                activity.heartbeat(*self._details())
                continue
            self._is_stopping.clear()
            for pause in STOP_SECONDS:
                await asyncio.sleep(pause)
                activity.heartbeat(*self._details())


@asynccontextmanager
async def heartbeating(
    details: Callable[[], Sequence[object]] = tuple, *, last: float = math.inf
) -> AsyncIterator[None]:
    """Heartbeat every `HEARTBEAT_SECONDS` inside the block, and after `last` seconds.

    `details` is called for each heartbeat. It must include what the activity sends with heartbeats of its own, since
    the server keeps only the newest details, even if they are empty.
    """
    info, heart = activity.info(), _Heart(details)
    key = (info.workflow_run_id or "", info.activity_id)
    _RUNNING[key] = heart
    beating = asyncio.create_task(heart.beat(last))
    try:
        yield
    finally:
        beating.cancel()
        if _RUNNING.get(key) is heart:  # not that of a newer attempt
            del _RUNNING[key]


def beat_now(run_id: str, activity_id: str) -> None:
    """Make an activity heartbeat now, if it runs in this process: Temporal then tells it that it is cancelled."""
    if heart := _RUNNING.get((run_id, activity_id)):
        heart.beat_now()
