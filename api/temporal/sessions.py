"""The verbs of a session, spoken to Temporal: the gateway translates and never decides.

A prompt is a signal, so it is safe from the moment Temporal has it, whether or not a worker runs. What the session
makes of it is read afterwards, with a bound: the receipt says where it stands as soon as a worker can say (SES-6).
Whether there is room for it is decided before, in `prompt_sender.py`.
"""

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast
from uuid import NAMESPACE_URL, uuid4, uuid5

from pydantic import BaseModel
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.client import WorkflowExecutionStatus as Status
from temporalio.common import (
    QueryRejectCondition,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.api import problems
from turnkeeper.api.problems import ProblemError
from turnkeeper.api.session_ids import workflow_id
from turnkeeper.api.temporal.commits import CommitChecker
from turnkeeper.api.temporal.history_tail import HistoryTails
from turnkeeper.api.temporal.ledgers import Ledgers, first_read, queue_read
from turnkeeper.api.temporal.query_backoff import QueryBackoff
from turnkeeper.api.temporal.query_client import query_client
from turnkeeper.api.temporal.reads import SingleFlight
from turnkeeper.api.temporal.receipts import Receipt, Receipts, receipt_of
from turnkeeper.api.temporal.temporal_calls import CALL_SECONDS, call_temporal, call_worker, keeps_failing, repeated
from turnkeeper.api.temporal.watch import WatchRegistry
from turnkeeper.models.context.context_view import ContextView
from turnkeeper.models.errors import REFUSED
from turnkeeper.models.replay_text.turns import ReplayTurns
from turnkeeper.models.session.approvals import ApprovalReceipt, PendingApprovals, ResolveApproval
from turnkeeper.models.session.queue.prompts import PromptSignal, QueueView
from turnkeeper.models.session.session import (
    CancelReceipt,
    CancelTurn,
    Configure,
    ContextRequest,
    EndSession,
    NoArgument,
    QueueRequest,
    ReplayRequest,
    SessionInput,
    StateRequest,
    UpdatesRequest,
    WithdrawPrompt,
)
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import (
    ConversationMessage,
    ConversationState,
    ConversationUpdate,
    SessionStatus,
)
from turnkeeper.workflows import search_attributes
from turnkeeper.workflows.agentic_ai_workflow import AgenticAIWorkflow

log = logging.getLogger(__name__)

RECEIPT_SECONDS = 0.7
"""How long an accepted prompt waits for a worker to say where it stands; after that its position is null."""

KNOWN_SESSIONS = 10_000

UPDATES_AT_ONCE = 4
"""Of one session; the others wait their turn. Temporal takes ten that are under way, those of other gateways too, and
undoes what is beyond."""

ASK_AGAIN_SECONDS = 0.05
MAX_ASK_AGAIN_SECONDS = 0.4
"""After a query that Temporal could not take, or whose answer was not committed; the first pause and the longest."""

MOST_SUMMARY_BYTES = 200
"""What Temporal takes as a workflow's summary."""

ReadModel = TypeVar("ReadModel", bound=BaseModel)

_PASSING = {
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.ABORTED,
    RPCStatusCode.INTERNAL,
    RPCStatusCode.UNKNOWN,
}
"""What may be over in a moment: the session's query buffer is full, a connection was lost."""

_SILENT = {RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED}
"""No answer in time, or none because the session's workflow task fails."""

_CLOSED: dict[Status, SessionStatus] = {
    Status.COMPLETED: "ended",
    Status.CANCELED: "cancelled",
    Status.FAILED: "terminated",
    Status.TERMINATED: "terminated",
    Status.TIMED_OUT: "terminated",
}

_CUT_OFF = {Status.FAILED, Status.TERMINATED, Status.TIMED_OUT}
"""Closed by no workflow task: what a worker makes of the last events is all there will ever be."""

FINAL_STATUSES: tuple[SessionStatus, ...] = ("ended", "cancelled", "terminated")
"""The last that is ever said of a session."""


@dataclass(frozen=True)
class Question:
    """A query and its argument, as JSON: equal questions share one answer."""

    query: str
    argument: str


@dataclass(frozen=True)
class Told:
    """An answer of a session. `closed` is set when the workflow no longer runs."""

    result: Any
    closed: Status | None


class Sessions:
    """All sessions, by their ids. Every method raises `ProblemError` for what can go wrong."""

    def __init__(self, client: Client, settings: Settings) -> None:
        """Speak to Temporal through `client`."""
        self.client = client
        self._settings = settings
        self._flights: OrderedDict[str, SingleFlight[Question, Told]] = OrderedDict()
        self._updating: OrderedDict[str, asyncio.Semaphore] = OrderedDict()
        self._first_run_ids: OrderedDict[str, str] = OrderedDict()
        self.watches = WatchRegistry(client)
        self.ledgers = Ledgers()
        self.tails = HistoryTails(client)
        self._receipts = Receipts(self.queue_told)
        self._query_client = query_client(client)
        self._commits = CommitChecker(self._query_client, self.watches)
        self._backoff = QueryBackoff(self.watches)

    # ---- starting

    async def start(self, session_id: str, start: SessionInput) -> None:
        """Start a session under an id that was never used. Raises 409 if it was."""
        starting = self.client.start_workflow(
            AgenticAIWorkflow.run,
            start,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            **self._start_options(session_id, start),
        )
        asked_at = asyncio.get_running_loop().time()
        try:
            await call_temporal(starting, session_id)
            self.ledgers.of(session_id).note_read(first_read(start, asked_at=asked_at))
        except WorkflowAlreadyStartedError as error:
            raise problems.id_was_used(session_id) from error

    async def start_or_prompt(self, session_id: str, start: SessionInput, prompt: PromptSignal) -> None:
        """Signal the session, starting it in the same breath if it doesn't exist; a closed one stays closed."""
        starting = self.client.start_workflow(
            AgenticAIWorkflow.run,
            start,
            start_signal="prompt",
            start_signal_args=[prompt],
            **self._start_options(session_id, start),
        )
        try:
            with self.watches.writing(workflow_id(session_id)):
                await call_temporal(starting, session_id)
        except WorkflowAlreadyStartedError as error:
            raise problems.session_ended(session_id) from error

    def _start_options(self, session_id: str, start: SessionInput) -> dict[str, Any]:
        attributes: list[SearchAttributePair[Any]] = [
            SearchAttributePair(search_attributes.SESSION_STATUS, "open"),
            SearchAttributePair(search_attributes.MODEL, start.model),
            SearchAttributePair(search_attributes.TURNS, 0),
        ]
        if start.user:
            user = search_attributes.encoded_user(start.user)
            attributes.append(SearchAttributePair(search_attributes.USER, user))
        return {
            "id": workflow_id(session_id),
            "task_queue": self._settings.task_queue,
            "id_reuse_policy": WorkflowIDReusePolicy.REJECT_DUPLICATE,
            "task_timeout": timedelta(seconds=self._settings.task_timeout),
            "static_summary": _within_bytes(start.title, MOST_SUMMARY_BYTES),
            "memo": {"title": start.title, "user": start.user, "created_at": datetime.now(UTC).isoformat()},
            "search_attributes": TypedSearchAttributes(attributes),
            "rpc_timeout": timedelta(seconds=CALL_SECONDS),
        }

    # ---- prompts

    async def prompt(self, session_id: str, prompt: PromptSignal) -> None:
        """Hand a prompt to Temporal; from here it survives any crash. Raises 404 and 409 by what Temporal says."""
        await self._signal(session_id, "prompt", prompt)

    async def receipt(self, session_id: str, message_id: str, *, seconds: float = RECEIPT_SECONDS) -> Receipt:
        """Return where a prompt stands, as far as a worker can say in time. Raises what the session refused it with."""
        told = await self.queue_in_time(session_id, message_id, seconds=seconds)
        if told is None:
            return Receipt(message_id)  # it is safe; only its place is not known yet
        if any(fate.id == message_id and fate.fate == "rejected" for fate in told.result.fates):
            self.ledgers.note_rejected(session_id, message_id)
        return receipt_of(told.result, message_id)

    async def queue_in_time(self, session_id: str, message_id: str, *, seconds: float = RECEIPT_SECONDS) -> Told | None:
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

    # ---- reading

    async def state(self, session_id: str, request: StateRequest) -> ConversationState:
        """Return the newest complete picture, or an older page of it (SES-11)."""
        told = await self._ask(session_id, "get_conversation_state", request)
        return _with_final_status(cast(ConversationState, told.result), told.closed)

    async def held_page(self, session_id: str, request: StateRequest) -> ConversationState | None:
        """Return a page of what the session itself holds; `None` where it does not hold the turn `before`."""
        try:
            return await self.state(session_id, request)
        except ProblemError as problem:
            # Nothing else of a request whose shape the gateway has checked is refused by the session.
            if request.before is not None and problem.problem.status == 422:
                return None
            raise

    async def updates(self, session_id: str, request: UpdatesRequest) -> ConversationUpdate:
        """Return what is new for a client (SES-12)."""
        told = await self._ask(session_id, "get_conversation_updates", request)
        update = cast(ConversationUpdate, told.result)
        final = _with_final_status(update, told.closed)
        if request.since_revision == final.revision > update.revision:
            # The client has seen how the session was closed; the session itself does not know that revision.
            known = request.model_copy(update={"since_revision": update.revision})
            told = await self._ask(session_id, "get_conversation_updates", known)
            final = _with_final_status(cast(ConversationUpdate, told.result), told.closed)
        return final

    async def pending_approvals(self, session_id: str) -> PendingApprovals:
        """Return the tool calls that wait for a decision; none in a session that has ended (AGT-8)."""
        told = await self._ask(session_id, "get_pending_approvals", NoArgument())
        return cast(PendingApprovals, told.result) if told.closed is None else PendingApprovals()

    async def replay_turns(self, session_id: str, request: ReplayRequest) -> ReplayTurns:
        """Return the turns held that the replay text is made of (CTX-13)."""
        told = await self._ask(session_id, "get_replay_turns", request)
        turns = cast(ReplayTurns, told.result)
        return turns if told.closed is None else turns.cut_off("The session was closed.")

    async def context_view(self, session_id: str, request: ContextRequest) -> ContextView:
        """Return what the model sees of each turn (CTX-8)."""
        told = await self._ask(session_id, "get_context_view", request)
        return cast(ContextView, told.result)

    async def queue(self, session_id: str, message_ids: Sequence[str] = ()) -> QueueView:
        """Return what waits and what became of the rest, or of these prompts only (SES-6)."""
        view: QueueView = (await self.queue_told(session_id, message_ids)).result
        return view

    async def queue_told(self, session_id: str, message_ids: Sequence[str] = ()) -> Told:
        """Return the same, and whether the session is closed; from a worker of an earlier release maybe all prompts."""
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        try:
            told = await self._ask(session_id, "get_queue", _queue_request(message_ids))
        except ProblemError as problem:
            # A worker of an earlier release refuses to be asked for several ids; nothing else is refused here.
            if len(message_ids) < 2 or problem.problem.status != 422:
                raise
            asked_at = clock()
            told = await self._ask(session_id, "get_queue", QueueRequest())
        self.ledgers.note_answer(now=clock())
        if told.closed is None:
            self.ledgers.of(session_id).note_read(queue_read(told.result, asked_at=asked_at))
        return told

    async def describe(self, session_id: str) -> WorkflowExecutionDescription:
        """Return what Temporal knows of the session; needs no worker."""
        handle = self._handle(session_id)
        return await call_temporal(handle.describe(rpc_timeout=timedelta(seconds=CALL_SECONDS)), session_id)

    async def is_stuck(self, session_id: str, description: WorkflowExecutionDescription) -> bool:
        """Return whether the session's workflow task fails, or times out, again and again."""
        return await call_temporal(keeps_failing(self.client, description), session_id)

    async def first_run_id(self, session_id: str) -> str:
        """Return the id of the session's first run: it tells this session from any other under the same id."""
        known = self._first_run_ids.get(session_id)
        if known is None:
            description = await self.describe(session_id)
            known = description.raw_description.workflow_execution_info.first_run_id or description.run_id
            _remember(self._first_run_ids, session_id, known)
        return known

    async def close(self) -> None:
        """Stop everything that goes on in the background."""
        await self._commits.close()
        await self.watches.close()

    def forget(self, session_id: str) -> None:
        """Drop what is remembered of a deleted session."""
        self._first_run_ids.pop(session_id, None)
        self._flights.pop(session_id, None)
        self.ledgers.forget(session_id)
        self._updating.pop(session_id, None)

    # ---- changing

    async def withdraw(self, session_id: str, message_id: str) -> None:
        """Take a waiting prompt back."""
        await self._update(session_id, "withdraw_prompt", WithdrawPrompt(id=message_id))

    async def cancel_turn(self, session_id: str, request: CancelTurn) -> CancelReceipt:
        """Stop a running turn; no effect once it has ended."""
        receipt: CancelReceipt = await self._update(session_id, "cancel_turn", request, result_type=CancelReceipt)
        return receipt

    async def resolve_approval(self, session_id: str, request: ResolveApproval) -> ApprovalReceipt:
        """Decide on a tool call; the same decision twice is one (AGT-8)."""
        receipt: ApprovalReceipt = await self._update(
            session_id, "resolve_approval", request, result_type=ApprovalReceipt
        )
        return receipt

    async def configure(self, session_id: str, change: Configure) -> None:
        """Change the session from its next turn on."""
        await self._update(session_id, "configure", change)

    async def end(self, session_id: str, request: EndSession) -> None:
        """Ask the session to end; like a prompt it is safe while no worker runs."""
        await self._signal(session_id, "end_chat", request)

    async def _signal(self, session_id: str, name: str, argument: BaseModel) -> None:
        signalling = self._handle(session_id).signal(name, argument, rpc_timeout=timedelta(seconds=CALL_SECONDS))
        with self.watches.writing(workflow_id(session_id)):
            await call_temporal(signalling, session_id)

    async def _update(
        self, session_id: str, name: str, argument: BaseModel, *, result_type: type[ReadModel] | None = None
    ) -> Any:
        handle, update_id = self._handle(session_id), str(uuid4())

        async def update() -> Any:
            return await handle.execute_update(
                name,
                argument.model_dump(mode="json", exclude_none=True),
                id=update_id,
                result_type=result_type,
                rpc_timeout=timedelta(seconds=CALL_SECONDS),
            )

        async with self._turn_to_update(session_id):
            with self.watches.writing(workflow_id(session_id)):
                return await call_worker(self.client, repeated(update), session_id, workflow_id(session_id))

    def _turn_to_update(self, session_id: str) -> asyncio.Semaphore:
        gate = self._updating.get(session_id)
        if gate is None:
            gate = asyncio.Semaphore(UPDATES_AT_ONCE)
            _remember(self._updating, session_id, gate)
        return gate

    # ---- asking

    async def _ask(self, session_id: str, query: str, argument: BaseModel) -> Told:
        flights = self._flights.get(session_id)
        if flights is None:
            flights = SingleFlight(lambda question: self._query(session_id, question))
            _remember(self._flights, session_id, flights)
        question = Question(query, argument.model_dump_json(exclude_none=True))
        told = await call_worker(self.client, flights.read(question), session_id, workflow_id(session_id))
        self.watches.note_revision(workflow_id(session_id), getattr(told.result, "revision", 0))
        return told

    async def _query(self, session_id: str, question: Question) -> Told:
        """Return an answer that Temporal has committed. Raises `TimeoutError` where there is none in time."""
        workflow, is_asked = workflow_id(session_id), False
        try:
            # Bounded here too: what goes on after its callers have given up holds up everyone who asks next.
            async with asyncio.timeout(CALL_SECONDS):
                await self._backoff.passed(workflow)
                is_asked = True
                told = await self._committed(session_id, question)
        except (TimeoutError, RPCError) as error:
            if is_asked and (isinstance(error, TimeoutError) or error.status in _SILENT):
                self._backoff.note_silence(workflow)
            raise
        except WorkflowQueryFailedError:
            self._backoff.note_answer(workflow)
            raise
        self._backoff.note_answer(workflow)
        return told

    async def _committed(self, session_id: str, question: Question) -> Told:
        """Ask until the answer is committed. A worker may give one that is not before it dies (SES-12)."""
        pause = ASK_AGAIN_SECONDS
        while True:
            told = await self._query_once(session_id, question)
            as_of = told.result.as_of
            if as_of is None:  # from a worker of an earlier release
                return told
            if told.closed in _CUT_OFF or await self._commits.is_committed(workflow_id(session_id), as_of):
                return replace(told, result=told.result.model_copy(update={"as_of": None}))
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_ASK_AGAIN_SECONDS)

    async def _query_once(self, session_id: str, question: Question) -> Told:
        """Ask the workflow; a closed one is asked again, knowing that it is."""
        while True:
            try:
                return Told(await self._query_if(session_id, question, QueryRejectCondition.NOT_OPEN), closed=None)
            except WorkflowQueryRejectedError as rejected:
                if rejected.status != Status.CONTINUED_AS_NEW:
                    result = await self._query_if(session_id, question, QueryRejectCondition.NONE)
                    return Told(result, closed=rejected.status)
            # The session went on in a new run between Temporal's looking for its run and its looking at it.
            await asyncio.sleep(ASK_AGAIN_SECONDS)

    async def _query_if(self, session_id: str, question: Question, condition: QueryRejectCondition) -> Any:
        handle: WorkflowHandle[Any, Any] = self._query_client.get_workflow_handle(workflow_id(session_id))
        pause = ASK_AGAIN_SECONDS
        while True:
            try:
                return await handle.query(
                    question.query,
                    json.loads(question.argument),
                    result_type=_RESULTS[question.query],
                    reject_condition=condition,
                    rpc_timeout=timedelta(seconds=CALL_SECONDS),
                )
            except RPCError as error:
                if error.status not in _PASSING:
                    raise
            except WorkflowQueryFailedError as error:
                if str(error).startswith(REFUSED):
                    raise
                # A worker that was short of time, or has just forgotten the session; or a bug of ours, in its log.
                log.warning("A worker could not answer %s.", question.query)
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_ASK_AGAIN_SECONDS)

    def _handle(self, session_id: str) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(workflow_id(session_id))


_RESULTS: dict[str, type[BaseModel]] = {
    "get_conversation_state": ConversationState,
    "get_conversation_updates": ConversationUpdate,
    "get_context_view": ContextView,
    "get_pending_approvals": PendingApprovals,
    "get_queue": QueueView,
    "get_replay_turns": ReplayTurns,
}


def _queue_request(message_ids: Sequence[str]) -> QueueRequest:
    """Ask for one prompt, or for all, as workers of an earlier release understand it too."""
    if len(message_ids) > 1:
        return QueueRequest(message_ids=list(message_ids))
    return QueueRequest(message_id=next(iter(message_ids), None))


def _within_bytes(text: str | None, most: int) -> str | None:
    return text and text.encode()[:most].decode(errors="ignore")


def new_prompt(text: str, *, message_id: str | None, mode: Any) -> PromptSignal:
    """Make the signal of a prompt that reaches the gateway now."""
    return PromptSignal(id=message_id or str(uuid4()), text=text, mode=mode, sent_at=datetime.now(UTC))


def prompt_again(session_id: str, turn: ConversationMessage) -> PromptSignal:
    """Make the signal that sends a turn's prompt once more; however often it is made, it is the same prompt."""
    return new_prompt(turn.user_message, message_id=id_of_next_try(session_id, turn.id), mode="enqueue")


def id_of_next_try(session_id: str, turn_id: str) -> str:
    """Return the id of the prompt that sends a turn's prompt once more."""
    return str(uuid5(NAMESPACE_URL, f"urn:turnkeeper:retry:{session_id}:{turn_id}"))


def session_id_of_chat(message_id: str, *, user: str | None) -> str:
    """Return the id of the session that a prompt with an id of its caller's starts; the same prompt, the same session.

    Two users may choose the same id, and never share a session by it.
    """
    return str(uuid5(NAMESPACE_URL, f"urn:turnkeeper:chat:{message_id}:{user or ''}"))


Picture = TypeVar("Picture", ConversationState, ConversationUpdate)


def _with_final_status(picture: Picture, closed: Status | None) -> Picture:
    """Say how a closed workflow ended. One that was terminated could not say so itself: that is a revision more."""
    if closed is None:
        return picture
    final: dict[str, Any] = {"status": _CLOSED.get(closed, "ended"), "is_processing": False, "current_message_id": None}
    if picture.status not in FINAL_STATUSES:
        final["revision"] = picture.revision + 1
    return picture.model_copy(update=final)


Kept = TypeVar("Kept")


def _remember(known: "OrderedDict[str, Kept]", session_id: str, value: Kept) -> None:
    known[session_id] = value
    while len(known) > KNOWN_SESSIONS:
        known.popitem(last=False)
