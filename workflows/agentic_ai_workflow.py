"""`AgenticAIWorkflow`: one workflow is one conversation.

Theory of operation. Handlers only write into the session (`models/session/session_state.py`) and return; the main loop
alone acts: it takes the next prompt, leads its turn to the end (`workflows/turn/turn.py`), and hands everything over to
a new run when the history has grown (SES-14), if need be in the middle of a turn. So prompts can arrive at any moment
and are processed one at a time, and no handler can be caught in the middle by a continue-as-new. Beside that loop, the
oldest turns are moved to the archive (`workflows/archiving.py`), and prompts that a run can't hand over are parked
there (`workflows/parking.py`).

What callers send is read here and nowhere earlier: a signal of the wrong shape would be dropped in silence, or fail
the workflow task for ever, if Temporal were to read it for us (SES-5).
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.context.context_view import ContextView
    from turnkeeper.models.errors import REFUSED, Refused, TurnPaused
    from turnkeeper.models.replay_text.turns import ReplayTurns
    from turnkeeper.models.session.approvals import ApprovalReceipt, PendingApprovals, ResolveApproval, check_decision
    from turnkeeper.models.session.archive.archive_state import ArchiveMove, ArchiveMoveQuery
    from turnkeeper.models.session.outside_start import check_outside_start
    from turnkeeper.models.session.queue.prompts import Prompt, QueueView
    from turnkeeper.models.session.session import (
        CancelReceipt,
        CancelTurn,
        Configure,
        ContextRequest,
        EndSession,
        NoArgument,
        QueueRequest,
        SessionEnd,
        SessionInput,
        StateRequest,
        WithdrawPrompt,
        configured,
        parse,
        parse_cursor,
        parse_replay_request,
        read_start,
    )
    from turnkeeper.models.session.session_state import Session
    from turnkeeper.models.session.views import (
        approvals_of,
        context_of,
        queue_of,
        replay_turns_of,
        state_of,
        updates_of,
    )
    from turnkeeper.models.transcript.conversation import ConversationState, ConversationUpdate
    from turnkeeper.models.transcript.model_call import ModelRequestPage, ModelRequestQuery
    from turnkeeper.models.wire import Frozen
    from turnkeeper.workflows import activity_options, search_attributes
    from turnkeeper.workflows.archiving import Archiving
    from turnkeeper.workflows.current_details import render_current_details
    from turnkeeper.workflows.last_change import LastChange
    from turnkeeper.workflows.parking import Parking
    from turnkeeper.workflows.turn.turn import Turn

Answer = TypeVar("Answer", bound=Frozen)


@workflow.defn
class AgenticAIWorkflow:
    """A durable conversation with an AI agent."""

    @workflow.init
    def __init__(self, start: Any = None, *rest: Any) -> None:
        """Build all state, so that a signal that arrives before `run` finds it (SES-4)."""
        info = workflow.info()
        # A run that began under earlier rules is replayed by them, and goes on by them; its next run takes these up.
        rules = 3 if workflow.patched("rules-3") else 2 if workflow.patched("rules-2") else 1
        start = self._read_start(start, extra_arguments=len(rest), rules=rules)
        self._last_change = LastChange()
        self._session = Session(
            info.workflow_id, start, now=workflow.now(), rules=rules, on_revision=self._last_change.note
        )
        self._details_are_due = False
        self._archiving = Archiving(self._session, on_change=self._show)
        self._parking = Parking(self._session, self._archiving, has_grown=self._has_grown, on_change=self._show)
        # A turn that the run before handed over can be stopped before `run` goes on with it.
        self._turn = self._new_turn() if self._session.turn else None
        self._events_at_start = info.get_current_history_length()
        self._bytes_at_start = info.get_current_history_size()
        if start.first_prompt is not None:
            first = start.first_prompt
            self._receive(first if isinstance(first, str) else first.model_dump(), extra_arguments=0)
        self._show()

    @workflow.run
    async def run(self, start: Any = None, *rest: Any) -> SessionEnd:
        """Process prompts, first in first out, until the session is ended. `start` is a `SessionInput`, or nothing."""
        if self._refused_start:
            raise ApplicationError(self._refused_start.message, type=self._refused_start.reason, non_retryable=True)
        try:
            await self._process_prompts()
        except asyncio.CancelledError:
            # Also raised when this worker only forgets the session; then there is no reason, and nothing to do.
            if workflow.cancellation_reason() is not None:
                await self._close("cancelled", "The session was cancelled.", copy_patience=timedelta())
            raise
        reason = self._session.facts.ending or ""
        return await self._close("ended", reason, copy_patience=activity_options.LAST_COPY_PATIENCE)

    def _read_start(self, raw: Any, *, extra_arguments: int, rules: int) -> SessionInput:
        """Read the input here: one that Temporal could not read for us would fail the workflow task for ever."""
        self._refused_start: Refused | None = None
        try:
            start = read_start(raw, extra_arguments=extra_arguments, takes_apostrophes=rules >= 3)
            # What a run before this one carries over is its own; a contradiction in it is our bug, for a deploy to fix.
            if rules >= 2 and workflow.info().continued_run_id is None:
                check_outside_start(start, now=workflow.now())
        except Refused as refusal:
            self._refused_start = refusal
            return SessionInput()
        return start

    # ---- the main loop

    async def _process_prompts(self) -> None:
        session = self._session
        self._parking.begin()
        if self._turn:
            self._archiving.begin_if_due()
            await self._lead(self._turn)
        while True:
            self._archiving.begin_if_due()
            await workflow.wait_condition(self._has_work)
            if self._is_due_for_new_run():
                self._continue_as_new()
            if session.queue.waiting and session.room.is_full:
                self._archiving.begin_if_due()
                await self._archiving.make_room()
            session.reject_waiting_if_full(now=workflow.now())
            if session.queue.waiting:
                await self._run_turn()
            elif self._is_over():
                return

    def _has_work(self) -> bool:
        return bool(self._session.queue.waiting) or self._is_over() or self._is_due_for_new_run()

    def _is_over(self) -> bool:
        """Return whether the session is ended and has processed all that waited, parked prompts included."""
        return self._session.facts.ending is not None and not len(self._session.queue)

    async def _run_turn(self) -> None:
        self._session.begin_turn(now=workflow.now())
        self._publish("open")
        self._turn = self._new_turn()
        self._show()
        await self._lead(self._turn)

    def _new_turn(self) -> Turn:
        return Turn(self._session, self._archiving, on_change=self._show, is_due_for_new_run=self._is_due_for_new_run)

    async def _lead(self, turn: Turn) -> None:
        """Lead the running turn to its end, in this run or, once the history has grown, in the next ones."""
        while True:
            self._turn = turn
            try:
                await turn.finished()
            except TurnPaused:
                # While its last calls ran, more prompts may have come than can be handed over: then it goes on here.
                if self._session.rules < 2 or self._is_due_for_new_run():
                    self._continue_as_new()
            else:
                return
            finally:
                self._turn = None
            turn = self._new_turn()

    def _continue_as_new(self) -> NoReturn:
        self._session.give_up_uncarriable(now=workflow.now())
        workflow.continue_as_new(self._session.carry())

    def _is_due_for_new_run(self) -> bool:
        """Return whether to hand over now: nothing is on its way to or from the archive, and all can be carried."""
        if not self._has_grown() or self._archiving.is_storing or self._parking.is_fetching:
            return False
        return self._session.room.is_queue_carriable or self._has_outgrown()

    def _has_grown(self) -> bool:
        """Tell whether this run's history is due for a new one (SES-14).

        Counted from where the run began: what it was handed over is in its first event and would never shrink.
        """
        limits, (events, size) = self._session.config.limits, self._history()
        over_budget = events >= limits.max_history_events or size >= limits.max_history_bytes
        return over_budget or workflow.info().is_continue_as_new_suggested()

    def _has_outgrown(self) -> bool:
        """Return whether this run can't wait for the archive any longer."""
        limits, (events, size) = self._session.config.limits, self._history()
        return events >= limits.last_history_events or size >= limits.last_history_bytes

    def _history(self) -> tuple[int, int]:
        """Return how many events, and how many bytes, this run's history has grown by."""
        info = workflow.info()
        events = info.get_current_history_length() - self._events_at_start
        return events, info.get_current_history_size() - self._bytes_at_start

    async def _close(self, status: Any, reason: str, *, copy_patience: timedelta) -> SessionEnd:
        self._session.close(status, reason=reason, now=workflow.now())
        self._publish("ended")
        self._show()
        await self._archiving.copy_all(patience=copy_patience)
        return SessionEnd(status=status, turn_count=self._session.turn_count, reason=reason or None)

    # ---- messages in

    @workflow.signal(description="Send a prompt: a JSON string, or {id?, text, sent_at?, mode?}.")
    def prompt(self, p: Any = None, *rest: Any) -> None:
        """Queue a prompt; whatever was sent gets a fate (SES-5)."""
        accepted = self._receive(p, extra_arguments=len(rest))
        if accepted and accepted.mode == "interrupt" and self._turn:
            interrupted = "Interrupted by a new prompt."
            self._turn.stop(interrupted if self._session.rules >= 2 else f"Interrupted by the prompt {accepted.id}.")
        self._show()

    def _receive(self, raw: object, *, extra_arguments: int) -> Prompt | None:
        return self._session.receive(
            raw, extra_arguments=extra_arguments, new_id=str(workflow.uuid4()), now=workflow.now()
        )

    @workflow.signal(description="End the session after its queue: nothing, a reason, or {reason?, discard_queue?}.")
    def end_chat(self, request: Any = None, *rest: Any) -> None:
        """End the session as `end_session` does; what can't be read as a request ends it all the same."""
        try:
            given = parse(EndSession, {"reason": request} if isinstance(request, str) else request)
        except Refused:
            wants_to_discard = isinstance(request, dict) and request.get("discard_queue") is True
            given = EndSession(discard_queue=wants_to_discard)
        self._end(given)

    @workflow.update(description="Take back a prompt that has not started: {id}.")
    def withdraw_prompt(self, request: Any = None, *rest: Any) -> None:
        """Give the waiting prompt the fate `withdrawn` (SES-8)."""
        self._session.queue.withdraw(parse(WithdrawPrompt, request).id, at=workflow.now())
        self._show()

    @withdraw_prompt.validator
    def _check_withdraw(self, request: Any = None, *rest: Any) -> None:
        with _refusals_told():
            self._session.queue.check_waiting(parse(WithdrawPrompt, request).id)

    @workflow.update(description="Stop the running turn: {message_id, reason?}.")
    def cancel_turn(self, request: Any = None, *rest: Any) -> CancelReceipt:
        """Cancel that turn if it is still running; a late stop has no effect on the next one (SES-8)."""
        given = parse(CancelTurn, request)
        running = self._session.turn
        if self._turn is None or running is None or running.message.id != given.message_id:
            return CancelReceipt(cancelling=False)
        self._turn.stop(given.reason or "Stopped by the user.")
        return CancelReceipt(cancelling=True)

    @cancel_turn.validator
    def _check_cancel(self, request: Any = None, *rest: Any) -> None:
        with _refusals_told():
            parse(CancelTurn, request)

    @workflow.update(description="Decide on a tool call: {call_id, args_digest, decision, reason?}.")
    def resolve_approval(self, request: Any = None, *rest: Any) -> ApprovalReceipt:
        """Take a person's decision; the same one twice is one (AGT-8)."""
        receipt = self._session.resolve_approval(parse(ResolveApproval, request), now=workflow.now())
        self._show()
        return receipt

    @resolve_approval.validator
    def _check_decision(self, request: Any = None, *rest: Any) -> None:
        with _refusals_told():
            check_decision(self._session.transcript, parse(ResolveApproval, request), now=workflow.now())

    @workflow.update(
        description="Change the session from its next turn on: {title?, model?, limits?, history?, tool_policy?}."
    )
    def configure(self, request: Any = None, *rest: Any) -> None:
        """Change the configuration (SES-8)."""
        self._session.configure(parse(Configure, request))
        self._show()
        if self._session.rules >= 3:  # earlier, lists learned a title with the next turn
            self._publish("awaiting_approval" if self._session.awaits_approval else "open")

    @configure.validator
    def _check_configure(self, request: Any = None, *rest: Any) -> None:
        with _refusals_told():
            configured(self._session.config, parse(Configure, request))

    @workflow.update(description="End the session after its queue: {reason?, discard_queue?}.")
    def end_session(self, request: Any = None, *rest: Any) -> None:
        """Take no further prompts, process or discard those that wait, then close (SES-8)."""
        self._end(parse(EndSession, request))

    @end_session.validator
    def _check_end(self, request: Any = None, *rest: Any) -> None:
        with _refusals_told():
            parse(EndSession, request)

    def _end(self, request: EndSession) -> None:
        self._session.end(
            request.reason or "ended by the user", discard_queue=request.discard_queue, now=workflow.now()
        )
        self._show()

    # ---- messages out

    @workflow.query(description="The newest complete picture, about 1 MB at most: nothing, or {before?, limit?}.")
    def get_conversation_state(self, request: Any = None) -> ConversationState:
        """Return the newest turns and what the session is (SES-11)."""
        with self._answering_query():
            given = parse(StateRequest, request)
            if given.before is not None and given.before not in self._session.transcript:
                raise Refused("invalid", f"before: no turn {given.before!r} is held.", field="before")
        return self._stamped(state_of(self._session, given))

    @workflow.query(
        description="What is new: nothing, a message id, or {last_seen_message_id?, since_revision?, limit?}."
    )
    def get_conversation_updates(self, request: Any = None) -> ConversationUpdate:
        """Return what changed since a client's cursor (SES-12)."""
        with self._answering_query():
            cursor = parse_cursor(request)
        return self._stamped(updates_of(self._session, cursor))

    @workflow.query(
        description="The waiting prompts and the last 200 fates: nothing, or {message_id} or {message_ids}."
    )
    def get_queue(self, request: Any = None) -> QueueView:
        """Return what waits and what became of the rest (SES-6)."""
        with self._answering_query():
            given = parse(QueueRequest, request)
        return self._stamped(queue_of(self._session, *(given.ids or [])))

    @workflow.query(description="The tool calls that wait for a decision, about 1 MB at most.")
    def get_pending_approvals(self, request: Any = None) -> PendingApprovals:
        """Return what people are asked to decide, with what a decision has to name (AGT-8)."""
        with self._answering_query():
            parse(NoArgument, request)
        return self._stamped(approvals_of(self._session))

    @workflow.query(description="What the model still sees, turn by turn: nothing, or {before?, limit?} turn numbers.")
    def get_context_view(self, request: Any = None) -> ContextView:
        """Return for each turn how the model sees it now, and what is sent with every request (CTX-8)."""
        with self._answering_query():
            given = parse(ContextRequest, request)
        return self._stamped(context_of(self._session, given))

    @workflow.query(
        description="The conversation as replay text, about 1 MB at most: nothing, max_history, or {max_history?}. "
        "Archived steps of an unfinished turn are counted in a thought; the gateway's /context has them."
    )
    def get_replay_context(self, request: Any = None) -> str:
        """Return HISTORY and CURRENT as far as the session itself holds them (CTX-12, SES-11).

        Of an unfinished turn whose early steps are in the archive, CURRENT begins, after its prompt, with a thought
        that counts them. The gateway's `/context` puts them back.
        """
        with self._answering_query():
            wanted = parse_replay_request(request).max_history
        return replay_turns_of(self._session, wanted).text(wanted, most_bytes=self._session.config.limits.page_bytes)

    @workflow.query(description="The turns that the replay text is made of: {max_history?}. For our own gateway.")
    def get_replay_turns(self, request: Any = None) -> ReplayTurns:
        """Return what the gateway completes from the archive; no more than is carried to the next run (CTX-13)."""
        with self._answering_query():
            wanted = parse_replay_request(request).max_history
        return self._stamped(replay_turns_of(self._session, wanted))

    @workflow.query(description="The open model request, a page at a time: {request, offset?}. For our own activities.")
    def get_model_request(self, request: Any = None) -> ModelRequestPage:
        """Return the context of the open request, unchanged since it was opened (AGT-2)."""
        opened = self._turn.open_request if self._turn else None
        with self._answering_query():
            given = parse(ModelRequestQuery, request)
            if opened is None or opened.number != given.request:
                raise Refused("not_open", f"Model request {given.request} is not open.")
        return opened.page(given.offset, page_bytes=self._session.config.limits.page_bytes)

    @workflow.query(description="Turns on their way to the archive: {move}. For our own activities.")
    def get_archive_move(self, request: Any = None) -> ArchiveMove:
        """Return what a move to the archive that is under way consists of (AGT-2, SES-15)."""
        with self._answering_query():
            given = parse(ArchiveMoveQuery, request)
            move = self._archiving.open_move(given.move)
            if move is None:
                raise Refused("not_open", f"Move {given.move} is not under way.")
        return move

    @contextmanager
    def _answering_query(self) -> Iterator[None]:
        self._last_change.note_query()
        with _refusals_told():
            yield

    def _stamped(self, answer: Answer) -> Answer:
        """Name the workflow tasks that the answer rests on: the gateway shows it once they are committed (SES-12)."""
        return answer.model_copy(update={"as_of": self._last_change.as_of})

    # ---- what the Temporal Web UI shows

    def _show(self) -> None:
        # Once for all that happens at the same time: thousands of signals can be one activation (SES-6).
        if not self._details_are_due:
            self._details_are_due = True
            asyncio.get_running_loop().call_soon(self._render)
        waits = self._session.awaits_approval
        known = workflow.info().typed_search_attributes.get(search_attributes.SESSION_STATUS)
        if waits != (known == "awaiting_approval"):
            self._publish("awaiting_approval" if waits else "open")

    def _render(self) -> None:
        self._details_are_due = False
        workflow.set_current_details(render_current_details(self._session))

    def _publish(self, status: search_attributes.CoarseStatus) -> None:
        """Bring search attributes and memo up to date: only what changed (SES-17).

        That is once a turn, twice more where people are asked to decide, and when the title or the model is changed.
        """
        known, config = workflow.info().typed_search_attributes, self._session.config
        wanted: list[tuple[SearchAttributeKey[Any], Any]] = [
            (search_attributes.SESSION_STATUS, status),
            (search_attributes.USER, config.user and search_attributes.encoded_user(config.user)),
            (search_attributes.MODEL, config.model),
            (search_attributes.TURNS, self._session.turn_count),
        ]
        changed = [key.value_set(value) for key, value in wanted if value is not None and known.get(key) != value]
        if changed:
            workflow.upsert_search_attributes(changed)
        if workflow.memo_value("title", None) != config.title:
            workflow.upsert_memo({"title": config.title})


@contextmanager
def _refusals_told() -> Iterator[None]:
    """Tell the caller of an update or a query why it is refused; nothing of it enters history.

    Of a query's failure only the text arrives, so it begins with a word that tells it from a bug of ours.
    """
    try:
        yield
    except Refused as refusal:
        # Without its cause, which Temporal would send along.
        raise ApplicationError(f"{REFUSED}{refusal.message}", refusal.field, type=refusal.reason) from None
