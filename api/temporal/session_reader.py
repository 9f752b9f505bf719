"""Reading sessions: shared queries to their workflows, whose results are returned only once they are committed.

`SessionReader` has a method for each query. `SessionQueries` sends them:

- Temporal has few places for the queries of one workflow, so a session gets one query at a time, and callers with the
  same question share the next one.
- A result is returned once Temporal has committed what it depends on (`commits.py`).
- A session that doesn't answer is not asked again and again: each query takes a place, and may make a worker replay
  the whole history, which keeps overloaded workers overloaded. The next query waits for a completed workflow task, or
  for a pause. Callers wait as long as they would for an answer.
- Temporal sends queries to the worker that completed the session's last workflow task. Once that worker is gone, each
  query goes to another one with the whole history, until there is a next task: in an idle session that may take months.
  So if a worker says that it had to replay an idle session that is watched, it gets an update that it rejects. That is
  a workflow task too, which leaves no trace in the history (measured at 448 events: 30 ms per query before, 4 after).
"""

import asyncio
import json
import logging
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeVar

from cachetools import LRUCache, TTLCache
from pydantic import BaseModel
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
)
from temporalio.client import WorkflowExecutionStatus as Status
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError as UpdateTimeoutError
from temporalio.common import QueryRejectCondition
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.api.coalescer import Coalescer
from turnkeeper.api.problems import ProblemError, invalid, problem
from turnkeeper.api.temporal.admission import Admission
from turnkeeper.api.temporal.commits import FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS, MAX_SESSIONS, CommitChecker
from turnkeeper.api.temporal.temporal_calls import (
    call_temporal,
    call_worker,
    first_run_of,
    keeps_failing,
    raise_if_deleted,
    without_retries,
)
from turnkeeper.api.temporal.watch import WatchRegistry
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.errors import REJECTION_PREFIX, growing_pauses
from turnkeeper.models.http_responses import ContextView
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.replay_text.turns import ReplayTurns
from turnkeeper.models.session.approvals import PendingApprovals
from turnkeeper.models.session.messages import (
    ContextRequest,
    NoArgument,
    QueueRequest,
    ReplayRequest,
    StateRequest,
    UpdatesRequest,
)
from turnkeeper.models.session.prompts import QueueView
from turnkeeper.models.session.session import Session
from turnkeeper.models.session.views import context_of, queue_of, replay_turns_of, state_of, updates_of
from turnkeeper.models.transcript.conversation import (
    FINAL_STATUSES,
    ConversationState,
    ConversationUpdate,
    SessionStatus,
)
from turnkeeper.models.wire import AsOf

log = logging.getLogger(__name__)

SILENCE_SECONDS = 0.5
FAILING_SECONDS = 3.0
"""After a query without an answer: where workers are just absent, fewer queries don't help; where tasks fail, they do.
"""

IDLE_STATUSES: tuple[SessionStatus, ...] = ("idle", "awaiting_approval")
"""Statuses in which there may be no workflow task for months."""

ABSENT_SECONDS = 1.0
"""How long the archive answers at once after no worker did: a client asks for several pages."""

WAKE_SECONDS = 60.0
"""Between two wakes of a session: a worker that evicts it after each query can't be helped."""

REJECTED_UPDATE = "cancel_turn"
"""Without a turn's id its validator always rejects it (SES-8)."""

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

FINAL_STATUS_OF: dict[Status, Literal["ended", "cancelled", "terminated"]] = {
    Status.COMPLETED: "ended",
    Status.CANCELED: "cancelled",
    Status.FAILED: "terminated",
    Status.TERMINATED: "terminated",
    Status.TIMED_OUT: "terminated",
}

_CLOSED_WITHOUT_TASK = {Status.FAILED, Status.TERMINATED, Status.TIMED_OUT}
"""Closed without a workflow task, so that nothing will ever commit the last state."""

_CLOSED_AS = {"cancelled": Status.CANCELED, "terminated": Status.TERMINATED}

View = TypeVar("View", bound=BaseModel)
Conversation = TypeVar("Conversation", ConversationState, ConversationUpdate)


@dataclass(frozen=True)
class QueryResult(Generic[View]):
    """The result of a query. `closed` is set if the workflow no longer runs."""

    view: View
    closed: Status | None
    first_run_id: str = ""
    """The first run of the session that answered; empty if no workflow did."""


class ForgottenSource(Protocol):
    """Finds sessions that Temporal no longer has, or that no worker answers for."""

    async def find(self, workflow_id: WorkflowId) -> Session | None:
        """Return the session as it was when it had ended; `None` if there is none. Raises `ProblemError`."""

    async def find_archived(self, workflow_id: WorkflowId) -> Session | None:
        """Return a session that no worker answers for as the archive has it; `None` if it has none of its turns."""

    async def exists(self, workflow_id: WorkflowId) -> bool:
        """Return whether there is one. Raises `ProblemError`."""


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
        self._absent = TTLCache[WorkflowId, None](maxsize=MAX_SESSIONS, ttl=ABSENT_SECONDS)
        """Sessions that no worker has just answered for."""

    # ---- answered by a worker, or else by the archive

    async def state(
        self, workflow_id: WorkflowId, request: StateRequest, *, may_be_archived: bool = False
    ) -> ConversationState:
        """Return the newest complete view, or an older page of it (SES-11).

        With `may_be_archived`, it is what the archive has if no worker answers; `archive_time` says so (SES-15).
        """

        def read(session: Session) -> ConversationState:
            try:
                return state_of(session, request)
            except KeyError:
                raise invalid("before", f"this session has no turn {request.before!r}.") from None

        ask = self._ask_or_read if may_be_archived else self.ask
        return _with_final_status(await ask(workflow_id, "get_conversation_state", request, ConversationState, read))

    async def page_in_session(
        self, workflow_id: WorkflowId, request: StateRequest, *, may_be_archived: bool = False
    ) -> ConversationState | None:
        """Return a page of the turns in the session itself; `None` if the turn `before` is not among them."""
        try:
            return await self.state(workflow_id, request, may_be_archived=may_be_archived)
        except ProblemError as problem:
            # The gateway has validated the request, so an unknown `before` is the only reason for a 422.
            if request.before is not None and problem.problem.status == 422:
                return None
            raise

    async def updates(self, workflow_id: WorkflowId, request: UpdatesRequest) -> ConversationUpdate:
        """Return what is new since a cursor (SES-12).

        Without a cursor, the archive answers where no worker does. A client with one waits for what comes next.
        """
        query, read = "get_conversation_updates", partial(updates_of, request=request)
        is_first = request.last_seen_message_id is None and request.since_revision is None
        ask = self._ask_or_read if is_first else self.ask
        result = await ask(workflow_id, query, request, ConversationUpdate, read)
        final = _with_final_status(result)
        if request.since_revision == final.revision > result.view.revision:
            # The client has already seen the final status, which only the gateway counts as a revision.
            request_seen = request.model_copy(update={"since_revision": result.view.revision})
            return _with_final_status(await self._queries.ask(workflow_id, query, request_seen, ConversationUpdate))
        return final

    # ---- answered by a worker

    async def pending_approvals(self, workflow_id: WorkflowId) -> PendingApprovals:
        """Return the tool calls that wait for approval; none if the session has ended (AGT-8)."""
        query, request = "get_pending_approvals", NoArgument()
        result = await self.ask(workflow_id, query, request, PendingApprovals, lambda session: PendingApprovals())
        return result.view if result.closed is None else PendingApprovals()

    async def replay_turns(self, workflow_id: WorkflowId, request: ReplayRequest) -> ReplayTurns:
        read = partial(replay_turns_of, max_history=request.max_history)
        result = await self.ask(workflow_id, "internal_replay_turns", request, ReplayTurns, read)
        return result.view if result.closed is None else result.view.cut_off("The session was closed.")

    async def context_view(self, workflow_id: WorkflowId, request: ContextRequest) -> ContextView:
        read = partial(context_of, request=request)
        return (await self.ask(workflow_id, "get_context_view", request, ContextView, read)).view

    async def queue(self, workflow_id: WorkflowId, message_ids: Sequence[str] = ()) -> QueueView:
        """Return the queue and recent fates, or only those of `message_ids` (SES-6)."""
        return (await self.queue_result(workflow_id, message_ids)).view

    async def queue_result(self, workflow_id: WorkflowId, message_ids: Sequence[str] = ()) -> QueryResult[QueueView]:
        """Return the same, and whether the session is closed."""
        request = QueueRequest(message_ids=list(message_ids) or None)
        return await self.ask(
            workflow_id, "get_queue", request, QueueView, lambda session: queue_of(session, *message_ids)
        )

    async def ask(
        self,
        workflow_id: WorkflowId,
        query: str,
        request: BaseModel,
        view_type: type[View],
        read: Callable[[Session], View],
    ) -> QueryResult[View]:
        """Return the result of a query by its name; `read` answers for a session that Temporal no longer has.

        The view must have the field `as_of`, which the workflow stamps.
        """
        try:
            result = await self._queries.ask(workflow_id, query, request, view_type)
        except ProblemError as problem:
            session = await self._forgotten.find(workflow_id) if problem.problem.status == 404 else None
            if session is None:
                raise
            return QueryResult(read(session), closed=_CLOSED_AS.get(session.status, Status.COMPLETED))
        self.admission.note_answer(workflow_id, result.view)
        if result.first_run_id:  # another gateway may have deleted the session that had the id before
            self._first_run_ids[workflow_id] = result.first_run_id
        return result

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
        first_run_id = self._first_run_ids.get(workflow_id)
        if first_run_id is None:
            description = await self.describe_if_retained(workflow_id)
            if description is None:
                return ""
            first_run_id = self._first_run_ids[workflow_id] = first_run_of(description)
        return first_run_id

    # ----

    async def _ask_or_read(
        self,
        workflow_id: WorkflowId,
        query: str,
        request: BaseModel,
        view_type: type[Conversation],
        read: Callable[[Session], Conversation],
    ) -> QueryResult[Conversation]:
        """Return the result of a query; if no worker answers, what the archive has."""
        absence: ProblemError | None = None
        if workflow_id not in self._absent:
            try:
                return await self.ask(workflow_id, query, request, view_type, read)
            except ProblemError as error:
                if not error.problem.type.endswith(":no-worker"):
                    raise
                absence = error
        session = await self._forgotten.find_archived(workflow_id)
        if session is None:
            raise absence or problem("no-worker", workflow_id=workflow_id)
        if absence:
            self._absent[workflow_id] = None
        newest = session.transcript.turns[-1]
        archive_time = {"archive_time": newest.agent_timestamp or newest.timestamp}
        return QueryResult(read(session).model_copy(update=archive_time), closed=None)

    def has_answered_since(self, time: float) -> bool:
        """Return whether a worker has answered for any session since a time on the loop's clock."""
        return self._queries.answered_at >= time

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
        self._query_client = without_retries(client)
        self._commits = CommitChecker(self._query_client, watches.live_tasks)
        self._calls = Coalescer[Hashable, Any]()
        self._silences = LRUCache[WorkflowId, tuple[float, int]](maxsize=MAX_SESSIONS)
        """Until when sessions that didn't answer are not queried, and the version of their watch when that began."""
        self._waking: set[asyncio.Task[None]] = set()
        self.answered_at = float("-inf")
        """When a worker last answered for any session, on the loop's clock."""

    async def ask(
        self, workflow_id: WorkflowId, query: str, request: BaseModel, view_type: type[View]
    ) -> QueryResult[View]:
        """Return the result of a query that starts after this moment and is committed. Raises `ProblemError`."""
        argument = request.model_dump_json(exclude_none=True)
        answer = partial(self._answer, workflow_id, query, argument, view_type)
        query_call = self._calls.run((query, argument), answer, lane=workflow_id)
        result: QueryResult[View] = await call_worker(
            self._client, query_call, workflow_id, seconds=self._timeouts.call
        )
        revision = getattr(result.view, "revision", 0)
        self._watches.note_answer(workflow_id, revision, is_closed=result.closed is not None)
        self.answered_at = asyncio.get_running_loop().time()
        return result

    async def close(self) -> None:
        await self._calls.close()
        await self._commits.close()

    async def _answer(
        self, workflow_id: WorkflowId, query: str, argument: str, view_type: type[View]
    ) -> QueryResult[View]:
        """Return a committed result. Raises `TimeoutError` if there is none in time."""
        was_sent = False
        try:
            # Bounded here too: a query that continues after its callers have given up would block the next one.
            async with asyncio.timeout(self._timeouts.call):
                await self._wait_until_due(workflow_id)
                was_sent = True
                if watch := self._watches.get(workflow_id):
                    watch.note_read()
                result = await self._ask_until_committed(workflow_id, query, argument, view_type)
        except (TimeoutError, RPCError) as error:
            if was_sent and (isinstance(error, TimeoutError) or error.status in _NO_ANSWER):
                watch = self._watches.get(workflow_id)
                seconds = FAILING_SECONDS if watch and watch.tasks.failures else SILENCE_SECONDS
                until = asyncio.get_running_loop().time() + seconds
                self._silences[workflow_id] = (until, watch.version if watch else 0)
            raise
        except WorkflowQueryFailedError:
            self._silences.pop(workflow_id, None)
            raise
        self._silences.pop(workflow_id, None)
        return result

    async def _ask_until_committed(
        self, workflow_id: WorkflowId, query: str, argument: str, view_type: type[View]
    ) -> QueryResult[View]:
        """Query until there is a committed result. The caller bounds the time.

        A worker that dies may have shown an uncommitted state (SES-12). A closed workflow is asked as such.
        """
        handle: WorkflowHandle[Any, Any] = self._query_client.get_workflow_handle(workflow_id)
        closed: Status | None = None
        pauses = growing_pauses(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while True:
            try:
                view: Any = await handle.query(
                    query,
                    json.loads(argument),
                    result_type=view_type,
                    reject_condition=QueryRejectCondition.NONE if closed else QueryRejectCondition.NOT_OPEN,
                    rpc_timeout=self._timeouts.rpc,
                )
                as_of: AsOf = view.as_of
                if closed in _CLOSED_WITHOUT_TASK or await self._commits.is_committed(workflow_id, as_of):
                    if as_of.is_replayed and closed is None and getattr(view, "status", None) in IDLE_STATUSES:
                        self._wake(workflow_id)
                    return QueryResult(view.model_copy(update={"as_of": None}), closed, as_of.first_run_id)
            except WorkflowQueryRejectedError as error:
                if error.status != Status.CONTINUED_AS_NEW:  # else it did so between Temporal's two lookups of its run
                    await raise_if_deleted(self._client, workflow_id, self._timeouts)
                    closed = error.status
                    continue
            except RPCError as error:
                if error.status not in _TEMPORARY:
                    raise
            except WorkflowQueryFailedError as error:
                if str(error).startswith(REJECTION_PREFIX):
                    raise
                # The worker was out of time, or has just evicted the session; or a bug of ours, which is in its log.
                log.warning("a worker could not answer the query %s", query)
            await asyncio.sleep(next(pauses))

    async def _wait_until_due(self, workflow_id: WorkflowId) -> None:
        """Wait until the session may be queried: its pause is over, or a workflow task has completed meanwhile."""
        until, version = self._silences.get(workflow_id, (0.0, 0))
        if until > asyncio.get_running_loop().time():
            if watch := self._watches.get(workflow_id):
                await watch.wait_for(lambda: watch.version != version, until=until)
            else:
                await asyncio.sleep(until - asyncio.get_running_loop().time())

    def _wake(self, workflow_id: WorkflowId) -> None:
        """Begin to make a worker load a watched session, before its next query."""
        handle: WorkflowHandle[Any, Any] = self._client.get_workflow_handle(workflow_id)

        async def send_rejected_update() -> None:
            with suppress(WorkflowUpdateFailedError, RPCError, TimeoutError, UpdateTimeoutError):
                async with asyncio.timeout(self._timeouts.call):
                    await handle.execute_update(REJECTED_UPDATE, {}, rpc_timeout=self._timeouts.rpc)

        watch, now = self._watches.get(workflow_id), asyncio.get_running_loop().time()
        if watch and now >= watch.woken_at + WAKE_SECONDS:
            watch.woken_at = now
            waking = asyncio.create_task(self._calls.run(REJECTED_UPDATE, send_rejected_update, lane=workflow_id))
            self._waking.add(waking)
            waking.add_done_callback(self._waking.discard)


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
