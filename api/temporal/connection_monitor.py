"""Whether Temporal still answers, while sessions are watched (API-2, API-3).

A watch is a long poll: that it brings nothing may mean that nothing happens, or that the connection hangs, which gRPC
notices after 20 s. So while anything is watched, one call that costs the server next to nothing is always on its way,
or was answered half a second ago:

    answered within the last second or so     results from the cache are current
    not answered for about 1.5 s              every poll asks Temporal itself
    not answered for 2.5 s                    Temporal can't be reached, and all who wait are informed

A busy server answers late, but it answers. Only whole half seconds in which the event loop ran count, and the answer to
any watch counts too. So neither a busy server nor a pause of this process is taken for an outage.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.client import Client
from temporalio.service import RPCError

from turnkeeper.api.temporal.temporal_calls import DOWN
from turnkeeper.stores.cancellation import cancel_until_done

TICK_SECONDS = 0.5
MAX_MISSED_BEFORE_STALE = 1
MIN_MISSED_OF_OUTAGE = 4
"""Ticks without an answer. With the tick before the call, an outage is noticed after 2.5 s (API-2: within 3 s)."""

CALL_TIMEOUT = timedelta(seconds=30)
"""Of one call, which may wait longer than an outage takes to be noticed: its late answer ends the outage."""


class ConnectionMonitor:
    """Calls Temporal again and again while it runs. `on_change` is called when an outage begins and when it ends."""

    def __init__(self, client: Client, on_change: Callable[[], None]) -> None:
        self._client = client
        self._on_change = on_change
        self._missed = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def is_current(self) -> bool:
        """Return whether Temporal has answered just now, so that a change would have been noticed."""
        return self._missed <= MAX_MISSED_BEFORE_STALE

    @property
    def is_unreachable(self) -> bool:
        return self._missed >= MIN_MISSED_OF_OUTAGE

    def start(self) -> None:
        """Start to call Temporal, unless it has started."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Stop, as nothing is watched any more."""
        if self._task is not None:
            self._task.cancel()
            self._task, self._missed = None, 0

    async def close(self) -> None:
        if self._task is not None:
            await cancel_until_done([self._task])

    def note_answer(self) -> None:
        """Note that Temporal has answered a call."""
        was_unreachable, self._missed = self.is_unreachable, 0
        if was_unreachable:
            self._on_change()

    def _note_silence(self) -> None:
        self._missed += 1
        if self._missed == MIN_MISSED_OF_OUTAGE:
            self._on_change()

    async def _run(self) -> None:
        while True:
            call = asyncio.create_task(self._is_answered())
            try:
                while not (await asyncio.wait([call], timeout=TICK_SECONDS))[0]:
                    self._note_silence()
            finally:
                call.cancel()
            if call.result():
                self.note_answer()
            else:
                self._note_silence()
            await asyncio.sleep(TICK_SECONDS)

    async def _is_answered(self) -> bool:
        try:
            await self._client.workflow_service.get_system_info(GetSystemInfoRequest(), timeout=CALL_TIMEOUT)
        except RPCError as error:
            return error.status not in DOWN
        except RuntimeError:  # a client that never connected
            return False
        return True
