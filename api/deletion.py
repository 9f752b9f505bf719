"""Deleting a session for good: every run of it, not only the last (API-1)."""

import asyncio
from datetime import timedelta

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
    DescribeWorkflowExecutionRequest,
    GetWorkflowExecutionHistoryRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from api.bodies import DeletionReceipt
from api.problems import ProblemError
from api.session_ids import workflow_id
from api.sessions import KNOWN_SESSIONS, Sessions
from api.temporal_calls import CALL_SECONDS, call_temporal

CHECK_SECONDS = 2.0
GIVE_UP_SECONDS = 180.0
RPC_TIMEOUT = timedelta(seconds=CALL_SECONDS)


class Deletions:
    """Deletions that this gateway has begun, and their receipts.

    Temporal removes a closed run within about a minute of being told to. Asking again shows how far it is; after a
    restart of the gateway it begins again where it stopped, since the newest run is told last.
    """

    def __init__(self, sessions: Sessions) -> None:
        """Delete sessions of `sessions`."""
        self._sessions = sessions
        self._client: Client = sessions.client
        self._runs: dict[str, list[str]] = {}
        self._remaining: dict[str, list[str]] = {}
        self._one_at_a_time = asyncio.Lock()
        self._checks: set[asyncio.Task[None]] = set()

    async def delete(self, session_id: str) -> DeletionReceipt:
        """Begin to delete a session, or say how far it is."""
        async with self._one_at_a_time:
            if session_id not in self._runs or await self._is_another_session(session_id):
                await self._begin(session_id)
        return DeletionReceipt(
            workflow_id=session_id,
            status="deleting" if self._remaining[session_id] else "deleted",
            runs=len(self._runs[session_id]),
            remaining=len(self._remaining[session_id]),
        )

    async def _is_another_session(self, session_id: str) -> bool:
        """Tell whether the id was used again since the deletion that a receipt is held of."""
        try:
            return (await self._sessions.describe(session_id)).run_id not in self._runs[session_id]
        except ProblemError as problem:
            if problem.problem.status == 404:
                return False
            raise

    async def close(self) -> None:
        """Stop looking how far the deletions are; Temporal goes on with them."""
        for check in self._checks:
            check.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)

    async def _begin(self, session_id: str) -> None:
        await self._terminate(session_id)
        # Described only now: until it was terminated it could go on in another run.
        runs = await self._runs_back_from(session_id, (await self._sessions.describe(session_id)).run_id)
        for run_id in runs:
            await self._delete_run(session_id, run_id)
        self._runs[session_id], self._remaining[session_id] = runs, list(runs)
        self._forget_oldest()
        self._sessions.forget(session_id)
        check = asyncio.create_task(self._watch(session_id, runs))
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)

    async def _terminate(self, session_id: str) -> None:
        handle = self._client.get_workflow_handle(workflow_id(session_id))
        try:
            await call_temporal(handle.terminate("deleted by request", rpc_timeout=RPC_TIMEOUT), session_id)
        except ProblemError as problem:
            if problem.problem.status != 409:  # it had ended already
                raise

    def _forget_oldest(self) -> None:
        while len(self._runs) > KNOWN_SESSIONS:
            oldest = next(iter(self._runs))
            del self._runs[oldest], self._remaining[oldest]

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
        await call_temporal(deleting, session_id)

    async def _watch(self, session_id: str, runs: list[str]) -> None:
        """Keep the receipt up to date until all is gone, or another session of that id is deleted."""
        until = asyncio.get_running_loop().time() + GIVE_UP_SECONDS
        while self._runs.get(session_id) is runs and self._remaining[session_id]:
            if asyncio.get_running_loop().time() > until:
                del self._runs[session_id], self._remaining[session_id]  # who asks again begins again
                return
            await asyncio.sleep(CHECK_SECONDS)
            left = [run for run in runs if await self._exists(session_id, run)]
            if self._runs.get(session_id) is runs:
                self._remaining[session_id] = left

    async def _exists(self, session_id: str, run_id: str) -> bool:
        request = DescribeWorkflowExecutionRequest(namespace=self._client.namespace, execution=_run(session_id, run_id))
        try:
            await self._client.workflow_service.describe_workflow_execution(request, timeout=RPC_TIMEOUT)
        except RPCError as error:
            return error.status != RPCStatusCode.NOT_FOUND
        return True


def _run(session_id: str, run_id: str) -> WorkflowExecution:
    return WorkflowExecution(workflow_id=workflow_id(session_id), run_id=run_id)
