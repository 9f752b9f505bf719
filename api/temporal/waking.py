"""Waking a watched session after its worker has gone (API-3).

Theory of operation. Temporal sends a session's tasks and queries to the worker that has it in memory: the one that
completed its last workflow task. Once that worker is gone, every query is sent to another together with the whole
history, to be read from the beginning each time, until there is a next workflow task; an idle session may have none for
months. An update that the session refuses is a workflow task too, and leaves no trace in the history: after it the
session is in some worker's memory again. Measured at 448 events: 30 ms a query before, 4 ms after.

Which worker has taken the session then is not said anywhere, only which ones there were: the session is woken again
when one of these has gone.
"""

import asyncio
import contextlib
import logging
from datetime import timedelta

from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError

from turnkeeper.api.temporal.temporal_calls import CALL_SECONDS
from turnkeeper.api.temporal.watch import Watch
from turnkeeper.workflows.hosting.connection import polling_workers

LOOK_SECONDS = 5.0
"""How long it is remembered which workers there are. Temporal itself tells only after a minute that one has gone."""

REFUSED_UPDATE = "cancel_turn"
"""Without the id of a turn it is refused by its validator, always (SES-8)."""

_log = logging.getLogger(__name__)


class Wakes:
    """Wakes sessions for all who watch them."""

    def __init__(self, client: Client, task_queue: str) -> None:
        """Wake through `client` the sessions of `task_queue`."""
        self._client = client
        self._task_queue = task_queue
        self._workers: frozenset[str] = frozenset()
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()
        self._under_way: set[asyncio.Task[None]] = set()

    def consider(self, workflow_id: str, watch: Watch) -> None:
        """Have the session woken if no worker has it in memory any more; returns at once. Who watches keeps `watch`."""
        if watch.is_live and watch.holders and not watch.is_being_woken:
            watch.is_being_woken = True
            waking = asyncio.create_task(self._wake_if_left(workflow_id, watch))
            self._under_way.add(waking)
            waking.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        """Wake nobody any more."""
        for waking in self._under_way:
            waking.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _wake_if_left(self, workflow_id: str, watch: Watch) -> None:
        try:
            holders, workers = watch.holders, await self._present_workers()
            if not workers or holders <= workers:
                return
            await self._wake(workflow_id)
            if watch.holders == holders:  # else there was a workflow task meanwhile
                watch.holders = workers
        except (RPCError, TimeoutError, RuntimeError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
            _log.debug("session %s could not be woken", workflow_id, exc_info=error)
        finally:
            watch.is_being_woken = False

    async def _wake(self, workflow_id: str) -> None:
        handle = self._client.get_workflow_handle(workflow_id)
        with contextlib.suppress(WorkflowUpdateFailedError):  # that is what it is sent for
            async with asyncio.timeout(CALL_SECONDS):
                await handle.execute_update(REFUSED_UPDATE, {}, rpc_timeout=timedelta(seconds=CALL_SECONDS))

    async def _present_workers(self) -> frozenset[str]:
        loop = asyncio.get_running_loop()
        async with self._looking:
            if loop.time() > self._looked_at + LOOK_SECONDS:
                self._workers = frozenset(await polling_workers(self._client, self._task_queue))
                self._looked_at = loop.time()
        return self._workers
