"""Deleting a session permanently: all runs, archived turns, large texts and partial output (API-1).

A workflow does it (`workflows/delete_session.py`), so the deletion survives this gateway, and every gateway finds it by
the session's id. While the archive is unavailable, no deletion begins; if the archive fails later, the response says
so.
"""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError

from turnkeeper.api.problems import ProblemError, problem
from turnkeeper.api.store_calls import read_store, seconds_from_now
from turnkeeper.api.temporal.deletions import Deletion, find_deletion, find_first_run
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.api.temporal.temporal_calls import call_temporal
from turnkeeper.models.backoff import growing_pauses
from turnkeeper.models.http_responses import DeletionReceipt
from turnkeeper.models.ids import DELETION_TYPE, WorkflowId, session_id_of
from turnkeeper.models.session.messages import FIRST_RUN, DeletionOrder, DeletionProgress, deletion_id
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.stores import Stores

FIRST_PAUSE_SECONDS = 0.02
MAX_PAUSE_SECONDS = 0.2
"""Between two queries to a deletion that doesn't know yet what to delete."""


class SessionDeleter:
    """Starts deletions and reports their progress. Temporal removes a closed run within about a minute."""

    def __init__(self, settings: Settings, reader: SessionReader, stores: Stores) -> None:
        self._settings = settings
        self._reader = reader
        self._stores = stores
        self._client: Client = reader.client
        self._timeouts = reader.timeouts

    async def delete(self, workflow_id: WorkflowId) -> DeletionReceipt:
        """Start to delete a session, or return the progress of the deletion.

        Raises 404 if there is no such session, and 503 while the archive can't be reached.
        """
        deletion = await find_deletion(self._client, workflow_id, self._timeouts)
        first_run_id = await find_first_run(self._client, workflow_id, self._timeouts)
        if deletion is None or not await self._is_of(deletion, workflow_id, first_run_id):
            await self._begin(workflow_id, first_run_id, instead_of=deletion)
        is_done, progress = False, DeletionProgress()
        try:
            async with asyncio.timeout(self._timeouts.call):
                is_done, progress = await self._progress(workflow_id)
        except TimeoutError:
            pass
        finally:
            self._reader.forget(workflow_id)
        if progress.runs is None and first_run_id is not None:
            # No worker has begun. The session must not accept prompts that would then be deleted.
            await self._stop(workflow_id, first_run_id)
        return DeletionReceipt(
            workflow_id=session_id_of(workflow_id),
            status="deleted" if is_done else "deleting",
            runs=progress.runs,
            remaining=progress.remaining,
            archived_turns=progress.archived_turns,
        )

    # ---- starting

    async def _is_of(self, deletion: Deletion, workflow_id: WorkflowId, first_run_id: str | None) -> bool:
        """Return whether the deletion is that of the session which has the id now."""
        if first_run_id is not None:
            return first_run_id == deletion.first_run_id
        if not deletion.is_done:
            return True
        # An archive restored from a backup has the deleted turns again.
        try:
            return not await self._stores_have(workflow_id)
        except StoreUnavailableError:
            return True

    async def _begin(self, workflow_id: WorkflowId, first_run_id: str | None, *, instead_of: Deletion | None) -> None:
        """Start the workflow, unless another gateway starts it at the same moment."""
        await self._raise_if_unknown(workflow_id, first_run_id)
        if instead_of:
            await self._end(workflow_id, instead_of)
        start_call = self._client.start_workflow(
            DELETION_TYPE,
            DeletionOrder(first_run_id=first_run_id or ""),
            id=deletion_id(workflow_id),
            task_queue=self._settings.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            task_timeout=timedelta(seconds=self._settings.task_timeout),
            memo={FIRST_RUN: first_run_id or ""},
            rpc_timeout=self._timeouts.rpc,
        )
        await call_temporal(start_call, workflow_id, seconds=self._timeouts.call)

    async def _raise_if_unknown(self, workflow_id: WorkflowId, first_run_id: str | None) -> None:
        """Raise 404 if neither Temporal nor the stores have the session, and 503 if they can't be read."""
        try:
            is_stored = await self._stores_have(workflow_id)
        except StoreUnavailableError as error:
            raise problem("archive-unavailable", f"{error} Nothing was deleted. Try again.") from error
        if first_run_id is None and not is_stored:
            # No turn was archived, but large texts may have been stored.
            with suppress(StoreUnavailableError):
                await read_store(self._stores.delete(workflow_id), until=seconds_from_now(self._timeouts.deletion))
            raise problem("unknown-session", workflow_id=workflow_id)

    async def _stores_have(self, workflow_id: WorkflowId) -> bool:
        return await read_store(self._stores.has(workflow_id), until=seconds_from_now(self._timeouts.deletion))

    async def _end(self, workflow_id: WorkflowId, deletion: Deletion) -> None:
        """End the deletion of an earlier session with the id: it only waits for what Temporal deletes by itself."""
        handle = self._client.get_workflow_handle(deletion_id(workflow_id), run_id=deletion.run_id)
        await self._terminate(workflow_id, handle, reason="the id was used again")

    async def _stop(self, workflow_id: WorkflowId, first_run_id: str) -> None:
        """Try to terminate the session now; otherwise the deletion does it."""
        handle = self._client.get_workflow_handle(workflow_id, first_execution_run_id=first_run_id)
        with suppress(ProblemError):
            await self._terminate(workflow_id, handle, reason="deleted by request")

    # ---- progress

    async def _progress(self, workflow_id: WorkflowId) -> tuple[bool, DeletionProgress]:
        """Wait until the deletion knows what to delete; return whether it is done, and its progress.

        Raises 503 while the archive is unavailable, or Temporal doesn't permit the deletion.
        """
        pauses = growing_pauses(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while True:
            deletion = await find_deletion(self._client, workflow_id, self._timeouts)
            if deletion is None:
                return False, DeletionProgress()  # it has just failed: the next request starts another
            if deletion.problem:
                raise deletion.problem
            handle = self._client.get_workflow_handle(
                deletion_id(workflow_id), run_id=deletion.run_id, result_type=DeletionProgress
            )
            if deletion.is_done:
                return True, await call_temporal(
                    handle.result(rpc_timeout=self._timeouts.rpc), workflow_id, seconds=self._timeouts.call
                )
            with suppress(RPCError, WorkflowQueryFailedError):  # no worker answers
                progress = await handle.query(
                    "get_receipt", result_type=DeletionProgress, rpc_timeout=self._timeouts.rpc
                )
                if progress.runs is not None:
                    return False, progress
            await asyncio.sleep(next(pauses))

    async def _terminate(self, workflow_id: WorkflowId, handle: WorkflowHandle[Any, Any], *, reason: str) -> None:
        """Terminate a workflow, unless it has ended already. Raises 503."""
        try:
            await call_temporal(
                handle.terminate(reason=reason, rpc_timeout=self._timeouts.rpc),
                workflow_id,
                seconds=self._timeouts.call,
            )
        except ProblemError as problem:
            if problem.problem.status not in (404, 409):
                raise
