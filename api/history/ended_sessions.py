"""Sessions that are deleted, and those that Temporal has forgotten (API-1, OPS-13, SES-15).

**Deletion** removes all runs, archived turns, large texts and partial output. A workflow does it
(`workflows/delete_session.py`), so the deletion survives this gateway, and every gateway finds it by the session's id.
While the archive is unavailable, no deletion begins; if the archive fails later, the response says so.

**Forgotten sessions** are read from archive and index. Temporal deletes an ended session after the retention of its
namespace. The archive has its turns, so the session is put together again from there, and answers every query itself,
with the same rules as when it was running. What only its workflow had is lost: which turns the model saw, and a turn
that a termination interrupted.

In the same way, the turns of a session that no worker answers for are read, as of the last one that was archived.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError

from turnkeeper.api.problems import ProblemError, problem
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.api.temporal.temporal_calls import Deletion, call_temporal, find_deletion, find_first_run
from turnkeeper.api.timeouts import Timeouts, read_store, seconds_from_now
from turnkeeper.models.errors import growing_pauses
from turnkeeper.models.http_responses import DeletionReceipt
from turnkeeper.models.ids import DELETION_TYPE, WorkflowId, session_id_of
from turnkeeper.models.session.messages import (
    FIRST_RUN,
    CarriedState,
    DeletionOrder,
    DeletionProgress,
    SessionInput,
    deletion_id,
)
from turnkeeper.models.session.prompt_queue import QueueState
from turnkeeper.models.session.prompts import Fate
from turnkeeper.models.session.session import Session, SessionPart
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import NO_PARENT, ConversationMessage, TaskView, Usage
from turnkeeper.models.transcript.transcript import TranscriptState
from turnkeeper.stores.archive import ArchivedTurn
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.session_index import IndexedSession
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


PAGE_BYTES = 1_000_000
"""JSON of the newest turns that a session has in itself; the archive has the others."""

MAX_FATES = 200


class ForgottenSessions:
    """Finds sessions by what the stores have of them."""

    def __init__(self, client: Client, stores: Stores, timeouts: Timeouts) -> None:
        self._client = client
        self._timeouts = timeouts
        self._stores = stores

    async def find(self, workflow_id: WorkflowId) -> Session | None:
        """Return a session that Temporal has forgotten; `None`: there is none, or it is being deleted.

        Raises 410 if its turns are lost too, 503 if the archive or Temporal can't be reached.
        """
        try:
            row, turns = await self._stored(workflow_id)
            if row is None and not turns:
                return None
            newest_fates = self._stores.prompts.newest_fates(workflow_id, limit=MAX_FATES)
            is_forgotten, fates = await asyncio.gather(self._is_forgotten(workflow_id), newest_fates)
        except StoreUnavailableError as error:
            raise problem("archive-unavailable", reason=error) from error
        if not is_forgotten:
            return None
        if row is not None and row.turn_count and not turns:
            raise problem("no-longer-retained", workflow_id=workflow_id)
        return _session(workflow_id, row, turns, fates)

    async def find_archived(self, workflow_id: WorkflowId) -> Session | None:
        """Return a session that Temporal still has as the archive has it; `None` if that has no turns of it now."""
        try:
            row, turns = await self._stored(workflow_id)
            deletion = await find_deletion(self._client, workflow_id, self._timeouts) if turns else None
        except (StoreUnavailableError, ProblemError):
            return None
        if not turns or (deletion and not deletion.is_done):
            return None
        session = _session(workflow_id, row, turns, [])
        session.closed = None
        return session

    async def exists(self, workflow_id: WorkflowId) -> bool:
        """Return whether the stores have a session that Temporal has forgotten; it may be a 410. Raises 503."""
        try:
            row, turns = await self._stored(workflow_id, limit=1)
        except StoreUnavailableError as error:
            raise problem("archive-unavailable", reason=error) from error
        if not (row or turns):
            return False
        return await self._is_forgotten(workflow_id)

    async def _stored(
        self, workflow_id: WorkflowId, *, limit: int | None = None
    ) -> tuple[IndexedSession | None, list[ArchivedTurn]]:
        """Return the row and at most `limit` of the newest turns. Raises `StoreUnavailableError`."""
        page = self._stores.archive.page(workflow_id, before=None, limit=limit, max_bytes=PAGE_BYTES)
        both = asyncio.gather(self._stores.index.find(workflow_id), page)
        row, turns = await read_store(both, until=seconds_from_now(self._timeouts.restore))
        return row, turns

    async def _is_forgotten(self, workflow_id: WorkflowId) -> bool:
        first_run_id, deletion = await asyncio.gather(
            find_first_run(self._client, workflow_id, self._timeouts),
            find_deletion(self._client, workflow_id, self._timeouts),
        )
        # Otherwise it is being deleted, or another session has just started with the id.
        return first_run_id is None and (deletion is None or deletion.is_done)


class _EndedTask(SessionPart):
    """The task that a session was, as far as the index has it."""

    def __init__(self, view: TaskView) -> None:
        self._view = view

    @property
    def task(self) -> TaskView:
        return self._view


def _session(
    workflow_id: WorkflowId, row: IndexedSession | None, archived: Sequence[ArchivedTurn], fates: Sequence[Fate]
) -> Session:
    """Return the session with its newest turns, as it was when it had ended."""
    turns = [one.turn for one in archived]
    began_at = row.started_at if row else turns[0].timestamp
    carried = CarriedState(
        created_at=began_at,
        revision=max([row.revision if row else 0, *(turn.revision for turn in turns)]),
        usage=_usage(row, turns),
        tasks_usage=sum((turn.tasks_usage for turn in turns if turn.tasks_usage), Usage()),
        transcript=TranscriptState(turns=turns, archived=archived[0].number - 1 if archived else 0),
        queue=QueueState(fates=_last_fates(turns, fates)),
    )
    session = Session(session_id_of(workflow_id), _input(row, carried), now=began_at)
    if row and row.parent:
        parent = None if row.parent == NO_PARENT else row.parent
        session.parts.append(_EndedTask(TaskView(parent=parent, context=row.hand_off)))
    session.closed = row.status if row and row.status in ("cancelled", "terminated") else "ended"
    return session


def _last_fates(turns: Sequence[ConversationMessage], others: Sequence[Fate]) -> list[Fate]:
    started = [Fate(id=turn.id, fate="started", turn_id=turn.id, at=turn.timestamp) for turn in turns]
    return sorted([*others, *started], key=lambda fate: fate.at)[-MAX_FATES:]


def _input(row: IndexedSession | None, carried: CarriedState) -> SessionInput:
    if row is None:
        return SessionInput(carried=carried)
    return SessionInput(
        title=row.title,
        user=row.user,
        carried=carried,
        **({"model": row.model} if row.model else {}),
    )


def _usage(row: IndexedSession | None, turns: Sequence[ConversationMessage]) -> Usage:
    """Return the tokens of the newest turns, and the cost of all."""
    usage = sum((turn.usage for turn in turns if turn.usage), Usage())
    return usage.model_copy(update={"cost": row.cost}) if row else usage
