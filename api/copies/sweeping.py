"""Removes in the background what is left of copies that were broken off, and of starts with attachments (SES-18).

Else the contents of a deleted session could stay in a copy of it that nobody sees, for as long as nobody copies
anything. Each gateway does it; two may do it at once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from turnkeeper.api.problems import ProblemError
from turnkeeper.stores.cancellation import cancel_until_done
from turnkeeper.stores.database.database import StoreUnavailableError

_log = logging.getLogger(__name__)

PAUSE_SECONDS = 60.0


class CopySweeper:
    """Sweeps once a minute between `start` and `close`."""

    def __init__(self, sweep: Callable[[], Awaitable[None]], *, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._sweep = sweep
        self._pause_seconds = pause_seconds
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks.append(asyncio.create_task(self._sweep_for_ever()))

    async def close(self) -> None:
        await cancel_until_done(self._tasks)

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._pause_seconds)
            try:
                await self._sweep()
            except (ProblemError, StoreUnavailableError) as error:  # the next sweep finds them again
                _log.info("what is left of broken copies can't be removed now: %s", error)
            except Exception:  # noqa: BLE001  # the sweeps go on: nothing else would start them again
                _log.exception("what is left of broken copies could not be removed")
