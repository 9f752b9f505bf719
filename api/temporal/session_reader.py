"""What sessions say of themselves: queries to their workflows, asked cheaply and shown only once they are committed.

Theory of operation. Temporal has few places for the queries of one workflow, so a session is asked one question at a
time, and all who want to know the same share the answer (`SessionQueries`). Which answers count is decided elsewhere:
`commits.py` waits until Temporal has committed what an answer rests on, and `query_backoff.py` says when a session that
nobody answers for is to be left alone. `SessionReader` has the questions as verbs.
"""

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Literal, TypeVar

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
from turnkeeper.api.problems import ProblemError
from turnkeeper.api.session_ids import workflow_id
from turnkeeper.api.temporal.commits import CommitChecker
from turnkeeper.api.temporal.deletions import first_run_of, raise_if_deleted
from turnkeeper.api.temporal.history_tail import HistoryTailReader
from turnkeeper.api.temporal.query_backoff import QueryBackoff
from turnkeeper.api.temporal.query_client import query_client
from turnkeeper.api.temporal.queue_estimates import QueueEstimates, queue_read_of
from turnkeeper.api.temporal.receipts import Receipt, ReceiptReader, receipt_of
from turnkeeper.api.temporal.temporal_calls import call_temporal, call_worker, keeps_failing, rpc_timeout
from turnkeeper.api.temporal.watch import WatchRegistry
from turnkeeper.models.backoff import growing_pauses
from turnkeeper.models.context.context_view import ContextView
from turnkeeper.models.errors import REFUSED
from turnkeeper.models.replay_text.turns import ReplayTurns
from turnkeeper.models.session.approvals import PendingApprovals
from turnkeeper.models.session.queue.prompts import QueueView
from turnkeeper.models.session.session import (
    ContextRequest,
    NoArgument,
    QueueRequest,
    ReplayRequest,
    StateRequest,
    UpdatesRequest,
)
from turnkeeper.models.transcript.conversation import ConversationState, ConversationUpdate
from turnkeeper.stores.bounded_dict import BoundedDict

log = logging.getLogger(__name__)

RECEIPT_SECONDS = 0.7
"""How long an accepted prompt waits for a worker to say where it stands; after that its position is null."""

MAX_SESSIONS = 10_000
"""Sessions of which the first run's id is remembered."""

FIRST_PAUSE_SECONDS = 0.05
MAX_PAUSE_SECONDS = 0.4
"""After a query that Temporal could not take, or whose answer was not committed."""

_TEMPORARY = {
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.ABORTED,
    RPCStatusCode.INTERNAL,
    RPCStatusCode.UNKNOWN,
}
"""What may be over in a moment: the session's query buffer is full, a connection was lost."""

_NO_ANSWER = {RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED}
"""No answer in time, or none because the session's workflow task fails."""

FinalStatus = Literal["ended", "cancelled", "terminated"]

FINAL_STATUS_OF: dict[Status, FinalStatus] = {
    Status.COMPLETED: "ended",
    Status.CANCELED: "cancelled",
    Status.FAILED: "terminated",
    Status.TERMINATED: "terminated",
    Status.TIMED_OUT: "terminated",
}

_CLOSED_WITHOUT_TASK = {Status.FAILED, Status.TERMINATED, Status.TIMED_OUT}
"""Closed by no workflow task: what a worker makes of the last events is all there will ever be."""

FINAL_STATUSES: tuple[FinalStatus, ...] = ("ended", "cancelled", "terminated")
"""The last that is ever said of a session."""

View = TypeVar("View", ConversationState, ConversationUpdate, ContextView, PendingApprovals, QueueView, ReplayTurns)
Conversation = TypeVar("Conversation", ConversationState, ConversationUpdate)


@dataclass(frozen=True)
class QueryKey:
    """A query, its argument as JSON and the type of its result: callers with equal keys share one result."""

    query: str
    argument: str
    view_type: type[BaseModel]


@dataclass(frozen=True)
class QueryResult(Generic[View]):
    """What a session answered. `closed` is set when its workflow no longer runs."""

    view: View
    closed: Status | None


class SessionReader:
    """Reads all sessions, by their ids. Every method raises `ProblemError` for what can go wrong."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.watches = WatchRegistry(client)
        self.ledgers = QueueEstimates()
        self.tails = HistoryTailReader(client)
        self._queries = SessionQueries(client, self.watches)
        self._receipts = ReceiptReader(self.queue_result)
        self._first_run_ids = BoundedDict[str, str](max_entries=MAX_SESSIONS)

    # ---- what a worker says

    async def state(self, session_id: str, request: StateRequest) -> ConversationState:
        """Return the newest complete view, or an older page of it (SES-11)."""
        result = await self._queries.ask(session_id, "get_conversation_state", request, ConversationState)
        return _with_final_status(result)

    async def page_in_session(self, session_id: str, request: StateRequest) -> ConversationState | None:
        """Return a page of what the session itself holds; `None` where it does not hold the turn `before`."""
        try:
            return await self.state(session_id, request)
        except ProblemError as problem:
            # Nothing else of a request whose shape the gateway has checked is refused by the session.
            if request.before is not None and problem.problem.status == 422:
                return None
            raise

    async def updates(self, session_id: str, request: UpdatesRequest) -> ConversationUpdate:
        result = await self._queries.ask(session_id, "get_conversation_updates", request, ConversationUpdate)
        final = _with_final_status(result)
        if request.since_revision == final.revision > result.view.revision:
            # The client has seen how the session was closed; the session itself does not know that revision.
            request_seen = request.model_copy(update={"since_revision": result.view.revision})
            result = await self._queries.ask(session_id, "get_conversation_updates", request_seen, ConversationUpdate)
            final = _with_final_status(result)
        return final

    async def pending_approvals(self, session_id: str) -> PendingApprovals:
        """Return the tool calls that wait for a decision; none in a session that has ended (AGT-8)."""
        result = await self._queries.ask(session_id, "get_pending_approvals", NoArgument(), PendingApprovals)
        return result.view if result.closed is None else PendingApprovals()

    async def replay_turns(self, session_id: str, request: ReplayRequest) -> ReplayTurns:
        result = await self._queries.ask(session_id, "get_replay_turns", request, ReplayTurns)
        return result.view if result.closed is None else result.view.cut_off("The session was closed.")

    async def context_view(self, session_id: str, request: ContextRequest) -> ContextView:
        return (await self._queries.ask(session_id, "get_context_view", request, ContextView)).view

    async def queue(self, session_id: str, message_ids: Sequence[str] = ()) -> QueueView:
        """Return what waits and what became of the rest, or of these prompts only (SES-6)."""
        return (await self.queue_result(session_id, message_ids)).view

    async def queue_result(self, session_id: str, message_ids: Sequence[str] = ()) -> QueryResult[QueueView]:
        """Return the same, and whether the session is closed; from a worker of an earlier release maybe all prompts."""
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        try:
            result = await self._queries.ask(session_id, "get_queue", _queue_request(message_ids), QueueView)
        except ProblemError as problem:
            # A worker of an earlier release refuses to be asked for several ids; nothing else is refused here.
            if len(message_ids) < 2 or problem.problem.status != 422:
                raise
            asked_at = clock()
            result = await self._queries.ask(session_id, "get_queue", QueueRequest(), QueueView)
        self.ledgers.note_answer(now=clock())
        if result.closed is None:
            self.ledgers.of(session_id).note_read(queue_read_of(result.view, asked_at=asked_at))
        return result

    async def queue_in_time(
        self, session_id: str, message_id: str, *, seconds: float = RECEIPT_SECONDS
    ) -> QueryResult[QueueView] | None:
        """Ask for a prompt, together with all who ask now; `None` where no worker says anything in time. Raises 404."""
        clock = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(seconds):
                return await self._receipts.answer(session_id, message_id)
        except TimeoutError:
            pass
        except ProblemError as problem:
            if problem.problem.status == 404:
                raise
        self.ledgers.of(session_id).note_silence(now=clock())
        return None

    async def receipt(self, session_id: str, message_id: str, *, seconds: float = RECEIPT_SECONDS) -> Receipt:
        """Return where a prompt stands, as far as a worker can say in time. Raises what the session refused it with."""
        result = await self.queue_in_time(session_id, message_id, seconds=seconds)
        if result is None:
            return Receipt(message_id)  # it is safe; only its place is not known yet
        if any(fate.id == message_id and fate.fate == "rejected" for fate in result.view.fates):
            self.ledgers.note_rejected(session_id, message_id)
        return receipt_of(result.view, message_id)

    # ---- what Temporal says

    async def describe(self, session_id: str) -> WorkflowExecutionDescription:
        """Return what Temporal knows of the session; needs no worker. One that is being deleted is not found."""
        handle = self.client.get_workflow_handle(workflow_id(session_id))
        description = await call_temporal(handle.describe(rpc_timeout=rpc_timeout()), session_id)
        if description.status != Status.RUNNING:
            await raise_if_deleted(self.client, session_id)
        return description

    async def is_stuck(self, session_id: str, description: WorkflowExecutionDescription) -> bool:
        """Return whether the session's workflow task fails, or times out, again and again."""
        return await call_temporal(keeps_failing(self.client, description), session_id)

    async def first_run_id(self, session_id: str) -> str:
        """Return the id of the session's first run: it tells this session from any other under the same id."""
        first_run_id = self._first_run_ids.get(session_id)
        if first_run_id is None:
            first_run_id = self._first_run_ids[session_id] = first_run_of(await self.describe(session_id))
        return first_run_id

    async def raise_if_deleted(self, session_id: str) -> None:
        await raise_if_deleted(self.client, session_id)

    # ----

    def forget(self, session_id: str) -> None:
        self._first_run_ids.pop(session_id, None)
        self.ledgers.forget(session_id)

    async def close(self) -> None:
        await self._queries.close()
        await self.watches.close()


class SessionQueries:
    """Queries to all sessions, to each one at a time."""

    def __init__(self, client: Client, watches: WatchRegistry) -> None:
        self._client = client
        self._watches = watches
        self._query_client = query_client(client)
        self._commits = CommitChecker(self._query_client, watches)
        self._backoff = QueryBackoff(watches)
        self._calls = SerialCoalescer[QueryKey, QueryResult[Any]]()

    async def ask(self, session_id: str, query: str, argument: BaseModel, view_type: type[View]) -> QueryResult[View]:
        """Return what the session says after this moment, committed by Temporal. Raises `ProblemError`."""
        key = QueryKey(query, argument.model_dump_json(exclude_none=True), view_type)
        query_call = self._calls.run(session_id, key, partial(self._answer, session_id, key))
        result = await call_worker(self._client, query_call, session_id, workflow_id(session_id))
        self._watches.note_revision(workflow_id(session_id), getattr(result.view, "revision", 0))
        return result

    async def close(self) -> None:
        await self._commits.close()

    async def _answer(self, session_id: str, key: QueryKey) -> QueryResult[Any]:
        """Return an answer that Temporal has committed. Raises `TimeoutError` where there is none in time."""
        workflow, was_sent = workflow_id(session_id), False
        try:
            # Bounded here too: what goes on after its callers have given up holds up everyone who asks next.
            async with asyncio.timeout(rpc_timeout().total_seconds()):
                await self._backoff.wait(workflow)
                was_sent = True
                result = await self._ask_until_committed(session_id, key)
        except (TimeoutError, RPCError) as error:
            if was_sent and (isinstance(error, TimeoutError) or error.status in _NO_ANSWER):
                self._backoff.note_silence(workflow)
            raise
        except WorkflowQueryFailedError:
            self._backoff.note_answer(workflow)
            raise
        self._backoff.note_answer(workflow)
        return result

    async def _ask_until_committed(self, session_id: str, key: QueryKey) -> QueryResult[Any]:
        """Ask until the answer is committed. A worker may give one that is not before it dies (SES-12)."""
        workflow, pauses = workflow_id(session_id), growing_pauses(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while True:
            result = await self._ask_open_or_closed(session_id, key)
            as_of = result.view.as_of
            if as_of is None:  # from a worker of an earlier release
                return result
            if result.closed in _CLOSED_WITHOUT_TASK or await self._commits.is_committed(workflow, as_of):
                return replace(result, view=result.view.model_copy(update={"as_of": None}))
            await asyncio.sleep(next(pauses))

    async def _ask_open_or_closed(self, session_id: str, key: QueryKey) -> QueryResult[Any]:
        """Ask the workflow; a closed one is asked again, knowing that it is, unless it is being deleted."""
        workflow = workflow_id(session_id)
        while True:
            try:
                return QueryResult(
                    await self._query_with_retries(workflow, key, QueryRejectCondition.NOT_OPEN), closed=None
                )
            except WorkflowQueryRejectedError as error:
                if error.status != Status.CONTINUED_AS_NEW:
                    await raise_if_deleted(self._client, session_id)
                    view = await self._query_with_retries(workflow, key, QueryRejectCondition.NONE)
                    return QueryResult(view, closed=error.status)
            # The session went on in a new run between Temporal's looking for its run and its looking at it.
            await asyncio.sleep(FIRST_PAUSE_SECONDS)

    async def _query_with_retries(self, workflow: str, key: QueryKey, condition: QueryRejectCondition) -> Any:
        """Ask again for as long as what is wrong may pass. The caller bounds the time."""
        handle: WorkflowHandle[Any, Any] = self._query_client.get_workflow_handle(workflow)
        pauses = growing_pauses(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while True:
            try:
                return await handle.query(
                    key.query,
                    json.loads(key.argument),
                    result_type=key.view_type,
                    reject_condition=condition,
                    rpc_timeout=rpc_timeout(),
                )
            except RPCError as error:
                if error.status not in _TEMPORARY:
                    raise
            except WorkflowQueryFailedError as error:
                if str(error).startswith(REFUSED):
                    raise
                # A worker that was short of time, or has just forgotten the session; or a bug of ours, in its log.
                log.warning("A worker could not answer %s.", key.query)
            await asyncio.sleep(next(pauses))


def _queue_request(message_ids: Sequence[str]) -> QueueRequest:
    """Ask for one prompt, or for all, as workers of an earlier release understand it too."""
    if len(message_ids) > 1:
        return QueueRequest(message_ids=list(message_ids))
    return QueueRequest(message_id=next(iter(message_ids), None))


def _with_final_status(result: QueryResult[Conversation]) -> Conversation:
    """Return the view with how a closed workflow ended. A terminated one could not say so: that is a revision more."""
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
