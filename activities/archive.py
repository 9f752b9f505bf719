"""What leaves a session: parts of it to the archive and back, and all of it when it is deleted (API-1, SES-6, SES-15).

**Moving**: `move_to_archive`, and `unpark` for parked prompts.

**Deleting**: `stop_session`, `clear_stores` and `delete_runs`. Each finds the session by the id of the deletion
workflow. If another session has started with the same id since, it is not touched: the deletion fails, and the next
request starts a deletion of that session.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest, GetWorkflowExecutionHistoryRequest
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.activities.activity_context import (
    WorkflowSilentError,
    current_run_id,
    current_session_id,
    heartbeating,
    query_own_workflow,
)
from turnkeeper.activities.model_client import MOVES, CacheKey
from turnkeeper.models.errors import ARCHIVE_UNAVAILABLE, DELETION_REFUSED
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.archive import (
    ArchiveMove,
    ArchiveMoveQuery,
    ArchiveOrder,
    UnparkedPrompts,
    UnparkOrder,
)
from turnkeeper.models.session.messages import DeletionOrder, SessionRuns, StoppedSession, deleted_session
from turnkeeper.stores.archive import ArchivedTurn
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.partials.carrier import PartialCarrier
from turnkeeper.stores.session_index import PAUSE_SECONDS, IndexedSession
from turnkeeper.stores.stores import Stores


@contextmanager
def store_failures() -> Iterator[None]:
    """Convert `StoreUnavailableError` to the retryable failure that workflows and gateways recognise."""
    try:
        yield
    except StoreUnavailableError as error:
        raise ApplicationError(str(error), type=ARCHIVE_UNAVAILABLE) from error


class ArchiveActivities:
    """Activities of the archive."""

    def __init__(self, stores: Stores, client: Client) -> None:
        self._stores = stores
        self._client = client

    @activity.defn
    async def move_to_archive(self, order: ArchiveOrder) -> None:
        """Write exactly what the order names to the archive.

        A second attempt writes the same data to the same keys, which changes nothing: a turn is archived once (SES-15).
        """
        key = CacheKey(current_run_id(), order.move, order.digest)
        move = MOVES.get(key) or await self._ask_workflow(order)
        with store_failures():
            await self._store(current_session_id(), move)
        MOVES.discard(key)

    @activity.defn
    async def unpark(self, order: UnparkOrder) -> UnparkedPrompts:
        """Return the next parked prompts. They stay parked until the session has recorded that it has them.

        A second attempt deletes and returns the same prompts.
        """
        session_id, prompts = current_session_id(), self._stores.prompts
        with store_failures():
            await prompts.forget_parked(session_id, below=order.forget_below)
            parked = await prompts.parked(
                session_id, first=order.first, max_prompts=order.max_prompts, max_bytes=order.max_bytes
            )
        return UnparkedPrompts(prompts=parked)

    async def _store(self, session_id: WorkflowId, move: ArchiveMove) -> None:
        # The texts first: once the turns are gone, the model view refers to them.
        if move.texts:
            await self._stores.blobs.put(session_id, move.texts)
        if move.steps_of is not None:
            await self._stores.archive.put_steps(session_id, move.steps_of, move.first, move.steps)
        if move.turns:
            turns = [ArchivedTurn(number=number, turn=turn) for number, turn in enumerate(move.turns, start=move.first)]
            await self._stores.archive.put_turns(session_id, turns)
        prompts = self._stores.prompts
        await prompts.put_fates(session_id, move.fates)
        await prompts.park(session_id, first=move.first, prompts=move.prompts)
        if move.forget_below:
            await prompts.forget_parked(session_id, below=move.forget_below)
        if move.entry:
            await self._stores.index.put([IndexedSession.of_entry(session_id, move.entry, now=datetime.now(UTC))])

    async def _ask_workflow(self, order: ArchiveOrder) -> ArchiveMove:
        try:
            query = ArchiveMoveQuery(move=order.move)
            move = await query_own_workflow(self._client, "internal_archive_move", query, ArchiveMove)
        except WorkflowSilentError as error:
            raise ApplicationError(str(error), type=ARCHIVE_UNAVAILABLE) from error
        if move.digest != order.digest:
            raise ApplicationError(
                "the move has changed since it was ordered", type="digest_mismatch", non_retryable=True
            )
        return move


# ---- deletion

RPC_TIMEOUT = timedelta(seconds=5)


class DeletionActivities:
    """Activities that delete a session from Temporal and from the stores."""

    def __init__(self, client: Client, stores: Stores, partials: PartialCarrier) -> None:
        self._client = client
        self._stores = stores
        self._partials = partials

    @activity.defn
    async def stop_session(self, order: DeletionOrder) -> StoppedSession:
        """Terminate the session, if it still runs, and return its runs and number of archived turns.

        A second attempt finds it terminated, and must assume that it was busy.
        """
        async with heartbeating():
            before = await self._own_session(order)
            if before is not None:
                await self._terminate(order)
            # Described again: until it was terminated it could continue as new.
            last = await self._own_session(order)
            if last is not None and last.status == WorkflowExecutionStatus.RUNNING:
                raise ApplicationError("The session could not be stopped.", type="still_running")
            with store_failures():
                archived_turns = await self._stores.archive.count(_session())
            if before is None or last is None:
                return StoppedSession(archived_turns=archived_turns)
            runs = await self._runs_back_from(last.run_id or "")
        busy_at = None if _is_idle_before_stop(before, last) else last.close_time
        return StoppedSession(runs=runs, archived_turns=archived_turns, busy_at=busy_at)

    @activity.defn
    async def clear_stores(self, order: DeletionOrder) -> int:
        """Delete the session from archive, large texts, prompts and partial output; return the number of turns.

        A second attempt deletes what the first one left, or what was written since.
        """
        async with heartbeating():
            await self._own_session(order)  # raises if another session has the id: stores have only ids
            # Leftover partial output would count as newer than that of a later session with this id.
            await self._partials.forget(_session())
            self._stores.index_writer.forget(_session())
            await asyncio.sleep(2 * PAUSE_SECONDS)  # another worker may be about to write to the index
            with store_failures():
                return await self._stores.delete(_session())

    @activity.defn
    async def delete_runs(self, session: SessionRuns) -> SessionRuns:
        """Request the deletion of closed runs, and return those that Temporal still has; it takes up to a minute.

        The newest is deleted last, since it keeps the id in use. A second attempt does the same.
        """
        async with heartbeating():
            return SessionRuns(runs=[run_id for run_id in session.runs if await self._delete_run(run_id)])

    async def _own_session(self, order: DeletionOrder) -> WorkflowExecutionDescription | None:
        """Describe the newest run of the session to delete; `None` if Temporal no longer has it.

        Raises:
            ApplicationError: Another session has started with its id.
        """
        try:
            description = await self._client.get_workflow_handle(_session()).describe(rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return None
            raise
        first_run_id = description.raw_description.workflow_execution_info.first_run_id or description.run_id
        if first_run_id != order.first_run_id:
            raise ApplicationError(
                "another session has begun under this id", type="another_session", non_retryable=True
            )
        return description

    async def _terminate(self, order: DeletionOrder) -> None:
        session = self._client.get_workflow_handle(_session(), first_execution_run_id=order.first_run_id)
        try:
            await session.terminate(reason="deleted by request", rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:  # it had ended already
                _raise_if_not_allowed(error)
                raise

    async def _runs_back_from(self, newest: str) -> list[str]:
        """Return the ids of all runs of the session that Temporal still has, oldest first."""
        runs, run_id = list[str](), newest
        while run_id:
            request = GetWorkflowExecutionHistoryRequest(
                namespace=self._client.namespace, execution=_run(run_id), maximum_page_size=1
            )
            service = self._client.workflow_service
            try:
                history = await service.get_workflow_execution_history(request, timeout=RPC_TIMEOUT)
            except RPCError as error:
                if error.status != RPCStatusCode.NOT_FOUND:
                    raise
                break  # past Temporal's retention, or deleted by an earlier attempt
            runs.insert(0, run_id)
            start_event = history.history.events[0].workflow_execution_started_event_attributes
            run_id = start_event.continued_execution_run_id
        return runs

    async def _delete_run(self, run_id: str) -> bool:
        request = DeleteWorkflowExecutionRequest(namespace=self._client.namespace, workflow_execution=_run(run_id))
        try:
            await self._client.workflow_service.delete_workflow_execution(request, timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return False
            _raise_if_not_allowed(error)
            raise
        return True


def _raise_if_not_allowed(error: RPCError) -> None:
    if error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED):
        raise ApplicationError(f"Temporal answered {error.status.name}.", type=DELETION_REFUSED) from error


def _session() -> WorkflowId:
    return deleted_session(current_session_id())


def _run(run_id: str) -> WorkflowExecution:
    return WorkflowExecution(workflow_id=_session(), run_id=run_id)


def _is_idle_before_stop(before: WorkflowExecutionDescription, last: WorkflowExecutionDescription) -> bool:
    """Return whether no activity was running when the session was terminated, just after `before`."""
    was_at_rest = before.status == WorkflowExecutionStatus.RUNNING and not before.raw_description.pending_activities
    return was_at_rest and last.run_id == before.run_id and last.history_length == before.history_length + 1
