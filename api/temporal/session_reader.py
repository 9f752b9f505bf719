"""Reading sessions: shared queries to their workflows, whose results are returned only once they are committed.

Temporal has few places for the queries of one workflow, so a session gets one query at a time, and callers with the
same question share the result (`SessionQueries`). `commits.py` waits until Temporal has committed what a result
depends on, and `query_backoff.py` delays queries to sessions that don't answer. `SessionReader` has a method for each
query.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeVar

from cachetools import LRUCache
from pydantic import BaseModel
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.client import WorkflowExecutionStatus as Status
from temporalio.common import QueryRejectCondition
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.api.coalescer import SerialCoalescer
from turnkeeper.api.problems import ProblemError, invalid, problem
from turnkeeper.api.temporal.admission import Admission
from turnkeeper.api.temporal.commits import CommitChecker
from turnkeeper.api.temporal.deletions import first_run_of, raise_if_deleted
from turnkeeper.api.temporal.query_backoff import QueryBackoff
from turnkeeper.api.temporal.query_client import query_client
from turnkeeper.api.temporal.temporal_calls import call_temporal, call_worker, keeps_failing
from turnkeeper.api.temporal.watch import WatchRegistry
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.backoff import growing_pauses
from turnkeeper.models.context.context_view import ContextView
from turnkeeper.models.errors import REJECTION_PREFIX
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.replay_text.turns import ReplayTurns
from turnkeeper.models.session.approvals import PendingApprovals
from turnkeeper.models.session.copies.snapshot import SessionSnapshot, snapshot_of
from turnkeeper.models.session.messages import (
    ContextRequest,
    NoArgument,
    QueueRequest,
    ReplayRequest,
    StateRequest,
    UpdatesRequest,
)
from turnkeeper.models.session.queue.prompts import QueueView
from turnkeeper.models.session.session import Session
from turnkeeper.models.session.views import context_of, queue_of, replay_turns_of, state_of, updates_of
from turnkeeper.models.transcript.conversation import FINAL_STATUSES, ConversationState, ConversationUpdate

log = logging.getLogger(__name__)

MAX_SESSIONS = 10_000
"""Sessions whose first run id is cached."""

FIRST_PAUSE_SECONDS = 0.05
MAX_PAUSE_SECONDS = 0.4
"""After a query that Temporal could not accept, or whose result was not committed."""

_TEMPORARY = {
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.ABORTED,
    RPCStatusCode.INTERNAL,
    RPCStatusCode.UNKNOWN,
}
"""Temporary errors: the session's query buffer is full, a connection was lost."""

_NO_ANSWER = {RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED}
"""No answer in time, or none because the session's workflow task is failing."""

FinalStatus = Literal["ended", "cancelled", "terminated"]

FINAL_STATUS_OF: dict[Status, FinalStatus] = {
    Status.COMPLETED: "ended",
    Status.CANCELED: "cancelled",
    Status.FAILED: "terminated",
    Status.TERMINATED: "terminated",
    Status.TIMED_OUT: "terminated",
}

_CLOSED_WITHOUT_TASK = {Status.FAILED, Status.TERMINATED, Status.TIMED_OUT}
"""Closed without a workflow task, so that nothing will ever commit the last state."""

_CLOSED_AS = {"cancelled": Status.CANCELED, "terminated": Status.TERMINATED}

View = TypeVar(
    "View",
    ConversationState,
    ConversationUpdate,
    ContextView,
    PendingApprovals,
    QueueView,
    ReplayTurns,
    SessionSnapshot,
)
Conversation = TypeVar("Conversation", ConversationState, ConversationUpdate)


@dataclass(frozen=True)
class QueryKey:
    """A query, its argument as JSON, and the type of its result. Callers with equal keys share one result."""

    query: str
    argument: str
    view_type: type[BaseModel]


@dataclass(frozen=True)
class QueryResult(Generic[View]):
    """The result of a query. `closed` is set if the workflow no longer runs."""

    view: View
    closed: Status | None
    first_run_id: str = ""
    """The first run of the session that answered; empty if no workflow did."""


class ForgottenSource(Protocol):
    """Finds sessions that Temporal no longer has."""

    async def find(self, workflow_id: WorkflowId) -> Session | None:
        """Return the session as it was when it had ended; `None` if there is none. Raises `ProblemError`."""
        ...

    async def exists(self, workflow_id: WorkflowId) -> bool:
        """Return whether there is one. Raises `ProblemError`."""
        ...


class SessionReader:
    """Reads sessions by their ids, also those that Temporal no longer has. Every method raises `ProblemError`."""

    def __init__(self, client: Client, forgotten: ForgottenSource, timeouts: Timeouts) -> None:
        self.client = client
        self.timeouts = timeouts
        self._forgotten = forgotten
        self.watches = WatchRegistry(client, timeouts)
        self.admission = Admission(client, self.watches, timeouts)
        self._queries = SessionQueries(client, self.watches, timeouts)
        self._first_run_ids = LRUCache[str, str](maxsize=MAX_SESSIONS)

    # ---- answered by a worker

    async def state(self, workflow_id: WorkflowId, request: StateRequest) -> ConversationState:
        """Return the newest complete view, or an older page of it (SES-11)."""
        result = await self._ask(
            workflow_id, "get_conversation_state", request, ConversationState, partial(_page_of, request=request)
        )
        return _with_final_status(result)

    async def page_in_session(self, workflow_id: WorkflowId, request: StateRequest) -> ConversationState | None:
        """Return a page of the turns in the session itself; `None` if the turn `before` is not among them."""
        try:
            return await self.state(workflow_id, request)
        except ProblemError as problem:
            # The gateway has validated the request, so an unknown `before` is the only reason for a 422.
            if request.before is not None and problem.problem.status == 422:
                return None
            raise

    async def updates(self, workflow_id: WorkflowId, request: UpdatesRequest) -> ConversationUpdate:
        result = await self._ask(
            workflow_id, "get_conversation_updates", request, ConversationUpdate, partial(updates_of, request=request)
        )
        final = _with_final_status(result)
        if request.since_revision == final.revision > result.view.revision:
            # The client has already seen the final status, which only the gateway counts as a revision.
            request_seen = request.model_copy(update={"since_revision": result.view.revision})
            result = await self._queries.ask(workflow_id, "get_conversation_updates", request_seen, ConversationUpdate)
            final = _with_final_status(result)
        return final

    async def pending_approvals(self, workflow_id: WorkflowId) -> PendingApprovals:
        """Return the tool calls that wait for approval; none if the session has ended (AGT-8)."""
        result = await self._ask(
            workflow_id, "get_pending_approvals", NoArgument(), PendingApprovals, lambda session: PendingApprovals()
        )
        return result.view if result.closed is None else PendingApprovals()

    async def replay_turns(self, workflow_id: WorkflowId, request: ReplayRequest) -> ReplayTurns:
        result = await self._ask(
            workflow_id,
            "internal_replay_turns",
            request,
            ReplayTurns,
            partial(replay_turns_of, max_history=request.max_history),
        )
        return result.view if result.closed is None else result.view.cut_off("The session was closed.")

    async def context_view(self, workflow_id: WorkflowId, request: ContextRequest) -> ContextView:
        read = partial(context_of, request=request)
        return (await self._ask(workflow_id, "get_context_view", request, ContextView, read)).view

    async def snapshot(self, workflow_id: WorkflowId) -> SessionSnapshot:
        """Return what a copy of the session is made of (SES-18)."""
        result = await self._ask(
            workflow_id, "internal_session_snapshot", NoArgument(), SessionSnapshot, _snapshot_without_context
        )
        return result.view

    async def queue(self, workflow_id: WorkflowId, message_ids: Sequence[str] = ()) -> QueueView:
        """Return the queue and recent fates, or only those of `message_ids` (SES-6)."""
        return (await self.queue_result(workflow_id, message_ids)).view

    async def queue_result(self, workflow_id: WorkflowId, message_ids: Sequence[str] = ()) -> QueryResult[QueueView]:
        """Return the same, and whether the session is closed."""
        read = partial(_queue_of, message_ids=message_ids)
        request = QueueRequest(message_ids=list(message_ids) or None)
        return await self._ask(workflow_id, "get_queue", request, QueueView, read)

    # ---- answered by Temporal

    async def describe(self, workflow_id: WorkflowId) -> WorkflowExecutionDescription:
        """Return Temporal's description of the session, without a worker. Raises 404 while it is being deleted."""
        handle = self.client.get_workflow_handle(workflow_id)
        description = await call_temporal(
            handle.describe(rpc_timeout=self.timeouts.rpc), workflow_id, seconds=self.timeouts.call
        )
        if description.status != Status.RUNNING:
            await raise_if_deleted(self.client, workflow_id, self.timeouts)
        return description

    async def describe_if_retained(self, workflow_id: WorkflowId) -> WorkflowExecutionDescription | None:
        """Return the same; `None` for a session that Temporal no longer has. Raises 404 if there is no such session."""
        try:
            return await self.describe(workflow_id)
        except ProblemError as problem:
            if problem.problem.status == 404 and await self._forgotten.exists(workflow_id):
                return None
            raise

    async def raise_if_forgotten(self, workflow_id: WorkflowId) -> None:
        """Raise 409 if Temporal has forgotten the session, which has ended then."""
        if await self._forgotten.find(workflow_id):
            raise problem("session-ended", workflow_id=workflow_id)

    async def is_stuck(self, workflow_id: WorkflowId, description: WorkflowExecutionDescription) -> bool:
        """Return whether the session's workflow task repeatedly fails or times out."""
        return await call_temporal(keeps_failing(self.client, description), workflow_id, seconds=self.timeouts.call)

    async def first_run_id(self, workflow_id: WorkflowId) -> str:
        """Return the id of the session's first run, which distinguishes it from other sessions with the same id.

        Empty if Temporal no longer has the session. Raises 404 if there is none.
        """
        first_run_id = await self.first_run_id_in_temporal(workflow_id)
        if not first_run_id and not await self._forgotten.exists(workflow_id):
            raise problem("unknown-session", workflow_id=workflow_id)
        return first_run_id

    async def first_run_id_in_temporal(self, workflow_id: WorkflowId) -> str:
        """Return the same; empty also if there is no such session."""
        first_run_id = self._first_run_ids.get(workflow_id)
        if first_run_id is None:
            try:
                description = await self.describe(workflow_id)
            except ProblemError as problem:
                if problem.problem.status == 404:
                    return ""
                raise
            first_run_id = self._first_run_ids[workflow_id] = first_run_of(description)
        return first_run_id

    async def raise_if_deleted(self, workflow_id: WorkflowId) -> None:
        await raise_if_deleted(self.client, workflow_id, self.timeouts)

    # ----

    async def _ask(
        self,
        workflow_id: WorkflowId,
        query: str,
        argument: BaseModel,
        view_type: type[View],
        read: Callable[[Session], View],
    ) -> QueryResult[View]:
        """Return the result of a query; `read` answers for a session that Temporal no longer has."""
        try:
            result = await self._queries.ask(workflow_id, query, argument, view_type)
        except ProblemError as problem:
            session = await self._forgotten.find(workflow_id) if problem.problem.status == 404 else None
            if session is None:
                raise
            return QueryResult(read(session), closed=_CLOSED_AS.get(session.status, Status.COMPLETED))
        self.admission.note_answer(workflow_id, result.view)
        if result.first_run_id:  # another gateway may have deleted the session that had the id before
            self._first_run_ids[workflow_id] = result.first_run_id
        return result

    def forget(self, workflow_id: WorkflowId) -> None:
        self._first_run_ids.pop(workflow_id, None)

    async def close(self) -> None:
        await self._queries.close()
        await self.watches.close()


class SessionQueries:
    """Sends queries to sessions, one at a time to each."""

    def __init__(self, client: Client, watches: WatchRegistry, timeouts: Timeouts) -> None:
        self._client = client
        self._timeouts = timeouts
        self._watches = watches
        self._query_client = query_client(client)
        self._commits = CommitChecker(self._query_client, watches)
        self._backoff = QueryBackoff(watches)
        self._calls = SerialCoalescer[QueryKey, QueryResult[Any]]()

    async def ask(
        self,
        workflow_id: WorkflowId,
        query: str,
        argument: BaseModel,
        view_type: type[View],
    ) -> QueryResult[View]:
        """Return the result of a query that starts after this moment and is committed. Raises `ProblemError`."""
        key = QueryKey(query, argument.model_dump_json(exclude_none=True), view_type)
        query_call = self._calls.run(workflow_id, key, partial(self._answer, workflow_id, key))
        result = await call_worker(self._client, query_call, workflow_id, seconds=self._timeouts.call)
        self._watches.note_revision(workflow_id, getattr(result.view, "revision", 0))
        return result

    async def close(self) -> None:
        await self._commits.close()

    async def _answer(self, workflow_id: WorkflowId, key: QueryKey) -> QueryResult[Any]:
        """Return a committed result. Raises `TimeoutError` if there is none in time."""
        was_sent = False
        try:
            # Bounded here too: a query that continues after its callers have given up would block the next one.
            async with asyncio.timeout(self._timeouts.call):
                await self._backoff.wait(workflow_id)
                was_sent = True
                result = await self._ask_until_committed(workflow_id, key)
        except (TimeoutError, RPCError) as error:
            if was_sent and (isinstance(error, TimeoutError) or error.status in _NO_ANSWER):
                self._backoff.note_silence(workflow_id)
            raise
        except WorkflowQueryFailedError:
            self._backoff.note_answer(workflow_id)
            raise
        self._backoff.note_answer(workflow_id)
        return result

    async def _ask_until_committed(self, workflow_id: WorkflowId, key: QueryKey) -> QueryResult[Any]:
        """Query until the result is committed: a worker that dies may have shown an uncommitted state (SES-12)."""
        pauses = growing_pauses(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while True:
            result = await self._ask_open_or_closed(workflow_id, key)
            as_of = result.view.as_of
            if as_of is None:  # from a worker of an earlier release
                return result
            if result.closed in _CLOSED_WITHOUT_TASK or await self._commits.is_committed(workflow_id, as_of):
                view = result.view.model_copy(update={"as_of": None})
                return replace(result, view=view, first_run_id=as_of.first_run_id)
            await asyncio.sleep(next(pauses))

    async def _ask_open_or_closed(self, workflow_id: WorkflowId, key: QueryKey) -> QueryResult[Any]:
        """Query the workflow; if it is closed, query it once more as such, unless it is being deleted."""
        while True:
            try:
                return QueryResult(
                    await self._query_with_retries(workflow_id, key, QueryRejectCondition.NOT_OPEN), closed=None
                )
            except WorkflowQueryRejectedError as error:
                if error.status != Status.CONTINUED_AS_NEW:
                    await raise_if_deleted(self._client, workflow_id, self._timeouts)
                    view = await self._query_with_retries(workflow_id, key, QueryRejectCondition.NONE)
                    return QueryResult(view, closed=error.status)
            # The session continued as new between Temporal's two lookups of its run.
            await asyncio.sleep(FIRST_PAUSE_SECONDS)

    async def _query_with_retries(self, workflow_id: WorkflowId, key: QueryKey, condition: QueryRejectCondition) -> Any:
        """Retry the query after temporary errors. The caller bounds the time."""
        handle: WorkflowHandle[Any, Any] = self._query_client.get_workflow_handle(workflow_id)
        pauses = growing_pauses(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while True:
            try:
                return await handle.query(
                    key.query,
                    json.loads(key.argument),
                    result_type=key.view_type,
                    reject_condition=condition,
                    rpc_timeout=self._timeouts.rpc,
                )
            except RPCError as error:
                if error.status not in _TEMPORARY:
                    raise
            except WorkflowQueryFailedError as error:
                if str(error).startswith(REJECTION_PREFIX):
                    raise
                # The worker was out of time, or has just evicted the session; or a bug of ours, which is in its log.
                log.warning("a worker could not answer the query %s", key.query)
            await asyncio.sleep(next(pauses))


def _page_of(session: Session, *, request: StateRequest) -> ConversationState:
    try:
        return state_of(session, request)
    except KeyError:
        raise invalid("before", f"this session has no turn {request.before!r}.") from None


def _snapshot_without_context(session: Session) -> SessionSnapshot:
    return snapshot_of(session).model_copy(update={"context": None})


def _queue_of(session: Session, *, message_ids: Sequence[str]) -> QueueView:
    return queue_of(session, *message_ids)


def _with_final_status(result: QueryResult[Conversation]) -> Conversation:
    """Return the view with the final status of a closed workflow.

    A terminated workflow could not record its end itself, so the gateway counts one revision more.
    """
    view = result.view
    if result.closed is None:
        return view
    final: dict[str, Any] = {
        "status": FINAL_STATUS_OF.get(result.closed, "ended"),
        "is_processing": False,
        "current_message_id": None,
    }
    if view.status not in FINAL_STATUSES:
        final["revision"] = view.revision + 1
    return view.model_copy(update=final)
