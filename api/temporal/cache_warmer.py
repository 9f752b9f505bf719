"""Makes a worker load a watched session, once the worker that had it in memory is gone (API-3).

Temporal sends a session's tasks and queries to the worker that has the session in memory: the one that completed its
last workflow task. Once that worker is gone, each query goes to another worker with the whole history, which is
replayed from the beginning every time, until there is a next workflow task. In an idle session that may take months. An
update that the session rejects is a workflow task too, and leaves no trace in the history: after it some worker has the
session in memory again. Measured at 448 events: 30 ms per query before, 4 ms after.

Temporal doesn't say which worker then has the session, only which workers exist. So the session is warmed again when
one of them is gone.
"""

import asyncio
import contextlib
import logging

from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError

from turnkeeper.api.temporal.watch import Watch
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.ids import WorkflowId
from turnkeeper.stores.cancellation import cancel_until_done
from turnkeeper.workflows.hosting.connection import polling_workers

REJECTED_UPDATE = "cancel_turn"
"""Without a turn's id its validator always rejects it (SES-8)."""

_log = logging.getLogger(__name__)


class CacheWarmer:
    """Keeps watched sessions in a worker's memory."""

    def __init__(self, client: Client, task_queue: str, timeouts: Timeouts) -> None:
        self._client = client
        self._timeouts = timeouts
        self._task_queue = task_queue
        self._workers: frozenset[str] = frozenset()
        self._listed_at = float("-inf")
        self._worker_list_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def warm(self, workflow_id: WorkflowId, watch: Watch) -> None:
        """Start to warm the session, unless a worker has it in memory. Returns at once."""
        if watch.is_live and watch.workers and not watch.is_being_warmed:
            watch.is_being_warmed = True
            warming = asyncio.create_task(self._warm_if_worker_left(workflow_id, watch))
            self._tasks.add(warming)
            warming.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        await cancel_until_done(self._tasks)

    async def _warm_if_worker_left(self, workflow_id: WorkflowId, watch: Watch) -> None:
        try:
            before, present = watch.workers, await self._present_workers()
            if not present or before <= present:
                return
            await self._send_rejected_update(workflow_id)
            if watch.workers == before:  # else there was a workflow task meanwhile
                watch.workers = present
        except (RPCError, TimeoutError, RuntimeError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
            _log.debug("session %s could not be warmed", workflow_id, exc_info=error)
        finally:
            watch.is_being_warmed = False

    async def _send_rejected_update(self, workflow_id: WorkflowId) -> None:
        handle = self._client.get_workflow_handle(workflow_id)
        with contextlib.suppress(WorkflowUpdateFailedError):  # expected: the update is rejected
            async with asyncio.timeout(self._timeouts.call):
                await handle.execute_update(REJECTED_UPDATE, {}, rpc_timeout=self._timeouts.rpc)

    async def _present_workers(self) -> frozenset[str]:
        loop = asyncio.get_running_loop()
        async with self._worker_list_lock:
            if loop.time() > self._listed_at + self._timeouts.worker_list:
                self._workers = frozenset(await polling_workers(self._client, self._task_queue))
                self._listed_at = loop.time()
        return self._workers
