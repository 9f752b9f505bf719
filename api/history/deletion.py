"""Deleting a session for good: every run of it, its archived turns, its large texts and partial output (API-1).

Theory of operation. An id is free for another session once Temporal has forgotten the last run, and what the stores
keep under an id then is that session's. So the stores are cleared first, while the terminated session still holds its
id, and the newest run is deleted last.

An activity that was under way when the session was terminated may still write: it learns of the termination with its
next heartbeat, or has a short timeout. So the stores are cleared at once, and again `QUIET_SECONDS` after the end;
where nothing was under way, once is enough.

Nothing is promised before it is true: if the archive can't be reached, nothing is begun; if it fails later, who asks
for the receipt is told so, and it is tried again. After a restart of the gateway whoever asks begins again where it
stopped.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from weakref import WeakValueDictionary

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
    DescribeWorkflowExecutionRequest,
    GetWorkflowExecutionHistoryRequest,
)
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.api import problems
from turnkeeper.api.bodies import DeletionReceipt
from turnkeeper.api.problems import ProblemError
from turnkeeper.api.session_ids import workflow_id
from turnkeeper.api.store_calls import read_store, seconds_from_now
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.api.temporal.temporal_calls import CALL_SECONDS, call_temporal
from turnkeeper.stores.database.database import OPERATION_SECONDS, StoreUnavailableError
from turnkeeper.stores.partials.carrier import PartialCarrier
from turnkeeper.stores.stores import Stores
from turnkeeper.workflows.activity_options import ARCHIVE_TIMEOUT

CHECK_SECONDS = 2.0
GIVE_UP_SECONDS = 180.0
ARCHIVE_SECONDS = 1.0
MAX_DELETIONS = 10_000
"""Receipts that are kept."""

RPC_TIMEOUT = timedelta(seconds=CALL_SECONDS)

QUIET_SECONDS = ARCHIVE_TIMEOUT.total_seconds() + OPERATION_SECONDS
"""After so long no activity of a session that has ended writes any more."""


@dataclass
class _Deletion:
    """How far a deletion is."""

    runs: list[str] = field(default_factory=list)
    """All of the session's, oldest first."""
    remaining: list[str] = field(default_factory=list)
    """Those Temporal still has."""
    quiet_in: float = 0.0
    """Seconds after which nothing is written any more; 0: nothing is now."""
    archived_turns: int = 0
    archive_error: str | None = None
    """Why the stores can't be cleared now."""
    is_done: bool = False


class Deletions:
    """Deletions that this gateway has begun, and their receipts.

    Temporal removes a closed run within about a minute of being told to. Asking again shows how far it is.
    """

    def __init__(self, reader: SessionReader, stores: Stores, partials: PartialCarrier) -> None:
        """Delete sessions that `reader` finds, and what `stores` and `partials` keep of them."""
        self._reader = reader
        self._stores = stores
        self._partials = partials
        self._client: Client = reader.client
        self._deletions: dict[str, _Deletion] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()

    async def delete(self, session_id: str) -> DeletionReceipt:
        """Begin to delete a session, or say how far it is. Raises 503 while the archive can't be reached."""
        async with self._locks.setdefault(session_id, asyncio.Lock()):
            deletion = self._deletions.get(session_id)
            if deletion is None or await self._is_another_session(session_id, deletion):
                deletion = await self._begin(session_id)
        if deletion.archive_error:
            raise problems.archive_unavailable(
                f"{deletion.archive_error} The session is stopped and not deleted yet; it will be when the archive is "
                "back. Ask again."
            )
        return DeletionReceipt(
            workflow_id=session_id,
            status="deleted" if deletion.is_done else "deleting",
            runs=len(deletion.runs),
            remaining=len(deletion.remaining),
            archived_turns=deletion.archived_turns,
        )

    async def has_taken(self, session_id: str) -> bool:
        """Return whether the session is being deleted, and no other has begun under its id. Raises 503."""
        deletion = self._deletions.get(session_id)
        if deletion is None or deletion.is_done or deletion.archive_error:
            return False
        return not await self._is_another_session(session_id, deletion)

    async def close(self) -> None:
        """Stop what is under way; who asks again, begins again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _is_another_session(self, session_id: str, deletion: _Deletion) -> bool:
        """Tell whether the id was used again since that deletion."""
        try:
            return (await self._reader.describe(session_id)).run_id not in deletion.runs
        except ProblemError as problem:
            if problem.problem.status == 404:
                return False
            raise

    # ---- beginning

    async def _begin(self, session_id: str) -> _Deletion:
        archived_turns = await self._count_archived(session_id)
        try:
            deletion = await self._terminated(session_id)
        except ProblemError as problem:
            if problem.problem.status != 404:
                raise
            deletion = await self._forgotten(session_id, archived_turns, unknown=problem)
        deletion.archived_turns = archived_turns
        self._deletions[session_id] = deletion
        self._forget_oldest()
        task = asyncio.create_task(self._carry_out(session_id, deletion))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return deletion

    async def _count_archived(self, session_id: str) -> int:
        """Count what the archive has. Raises 503 where it can't be reached: then nothing is begun."""
        counting = self._stores.archive.count(workflow_id(session_id))
        try:
            return await read_store(counting, until=seconds_from_now(ARCHIVE_SECONDS))
        except StoreUnavailableError as error:
            raise problems.archive_unavailable(f"{error} Nothing was deleted.") from error

    async def _terminated(self, session_id: str) -> _Deletion:
        """Terminate the session and find its runs. Raises 404 where Temporal does not know it."""
        before = await self._reader.describe(session_id)
        await self._terminate(session_id)
        # Described again only now: until it was terminated it could go on in another run.
        last = await self._reader.describe(session_id)
        runs = await self._runs_back_from(session_id, last.run_id)
        return _Deletion(runs=runs, remaining=list(runs), quiet_in=_seconds_until_quiet(before, last))

    async def _forgotten(self, session_id: str, archived_turns: int, *, unknown: ProblemError) -> _Deletion:
        """Delete what is kept of a session that Temporal has forgotten. Raises `unknown` where no turn of it is."""
        if not archived_turns:
            # Its turns were never archived, but large texts may have been kept.
            clearing = self._stores.delete(workflow_id(session_id))
            await read_store(clearing, until=seconds_from_now(ARCHIVE_SECONDS))
            raise unknown
        return _Deletion()

    async def _terminate(self, session_id: str) -> None:
        handle = self._client.get_workflow_handle(workflow_id(session_id))
        try:
            await call_temporal(handle.terminate("deleted by request", rpc_timeout=RPC_TIMEOUT), session_id)
        except ProblemError as problem:
            if problem.problem.status != 409:  # it had ended already
                raise

    def _forget_oldest(self) -> None:
        while len(self._deletions) > MAX_DELETIONS:
            del self._deletions[next(iter(self._deletions))]

    async def _runs_back_from(self, session_id: str, newest: str) -> list[str]:
        """Return the ids of all runs of the chain, oldest first."""
        runs, run_id = [newest], newest
        while run_id:
            run_id = await self._run_before(session_id, run_id)
            if run_id:
                runs.insert(0, run_id)
        return runs

    async def _run_before(self, session_id: str, run_id: str) -> str:
        request = GetWorkflowExecutionHistoryRequest(
            namespace=self._client.namespace, execution=_run(session_id, run_id), maximum_page_size=1
        )
        reading = self._client.workflow_service.get_workflow_execution_history(request, timeout=RPC_TIMEOUT)
        try:
            history = await call_temporal(reading, session_id)
        except ProblemError as problem:
            if problem.problem.status == 404:
                return ""  # an earlier deletion got this far
            raise
        return history.history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id

    async def _delete_run(self, session_id: str, run_id: str) -> None:
        request = DeleteWorkflowExecutionRequest(
            namespace=self._client.namespace, workflow_execution=_run(session_id, run_id)
        )
        deleting = self._client.workflow_service.delete_workflow_execution(request, timeout=RPC_TIMEOUT)
        try:
            await call_temporal(deleting, session_id)
        except ProblemError as problem:
            if problem.problem.status != 404:  # it is gone already
                raise

    # ---- carrying it out

    async def _carry_out(self, session_id: str, deletion: _Deletion) -> None:
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                await self._clear_stores(session_id, deletion)
                if deletion.quiet_in:
                    await asyncio.sleep(deletion.quiet_in)
                    await self._clear_stores(session_id, deletion)
                await self._delete_runs(session_id, deletion)
            deletion.is_done = True
        except TimeoutError:
            pass
        finally:
            self._reader.forget(session_id)
            if not deletion.is_done and self._deletions.get(session_id) is deletion:
                del self._deletions[session_id]  # who asks again begins again

    async def _clear_stores(self, session_id: str, deletion: _Deletion) -> None:
        # What a killed worker had shown would be taken for later than all that a next session under this id shows.
        await self._partials.forget(workflow_id(session_id))
        while True:
            try:
                deleted = await self._stores.delete(workflow_id(session_id))
            except StoreUnavailableError as error:
                deletion.archive_error = str(error)
                await asyncio.sleep(CHECK_SECONDS)
            else:
                deletion.archive_error = None
                deletion.archived_turns = max(deletion.archived_turns, deleted)
                return

    async def _delete_runs(self, session_id: str, deletion: _Deletion) -> None:
        """Have Temporal delete every run, the newest last: it holds the id, and leads to the others."""
        told = 0
        while deletion.remaining:
            with suppress(ProblemError):  # Temporal can't be reached: later
                while told < len(deletion.runs):
                    await self._delete_run(session_id, deletion.runs[told])
                    told += 1
            await asyncio.sleep(CHECK_SECONDS)
            deletion.remaining = [run for run in deletion.remaining if await self._exists(session_id, run)]

    async def _exists(self, session_id: str, run_id: str) -> bool:
        request = DescribeWorkflowExecutionRequest(namespace=self._client.namespace, execution=_run(session_id, run_id))
        try:
            await self._client.workflow_service.describe_workflow_execution(request, timeout=RPC_TIMEOUT)
        except RPCError as error:
            return error.status != RPCStatusCode.NOT_FOUND
        return True


def _run(session_id: str, run_id: str) -> WorkflowExecution:
    return WorkflowExecution(workflow_id=workflow_id(session_id), run_id=run_id)


def _seconds_until_quiet(before: WorkflowExecutionDescription, last: WorkflowExecutionDescription) -> float:
    """Say in how long no activity of a session writes any more; `before` was seen just before it was terminated."""
    was_idle = before.status == WorkflowExecutionStatus.RUNNING and not before.raw_description.pending_activities
    only_ended = last.run_id == before.run_id and last.history_length == before.history_length + 1
    if was_idle and only_ended:
        return 0.0
    ago = (datetime.now(UTC) - last.close_time).total_seconds() if last.close_time else 0.0
    return min(QUIET_SECONDS, max(0.0, QUIET_SECONDS - ago))
