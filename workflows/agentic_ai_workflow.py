"""`AgenticAIWorkflow`: one workflow is one conversation.

Handlers only write into the session (`models/session/session.py`) and return; only the main loop acts. It takes the
next prompt, runs its turn to the end (`workflows/turn/turn_runner.py`), and continues as new when the history has grown
(SES-14), also in the middle of a turn. So prompts can arrive at any time, are processed one at a time, and
continue-as-new never interrupts a handler. Two background tasks move the oldest turns to the archive
and park prompts there that a run can't carry over (`workflows/archiving.py`).

Arguments are parsed here, not by Temporal: it would silently drop a malformed signal, or fail the workflow task for
ever (SES-5).
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from pydantic import JsonValue
from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.errors import RejectedError, TurnPausedError
    from turnkeeper.models.http_responses import ContextView
    from turnkeeper.models.ids import WorkflowId, session_id_of
    from turnkeeper.models.replay_text.turns import ReplayTurns
    from turnkeeper.models.session.approvals import ApprovalReceipt, PendingApprovals, ResolveApproval, check_decision
    from turnkeeper.models.session.archive import ArchiveMove, ArchiveMoveQuery
    from turnkeeper.models.session.messages import (
        CancelReceipt,
        CancelTurn,
        Configure,
        ContextRequest,
        EndSession,
        FeatureMessage,
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
        read_end,
    )
    from turnkeeper.models.session.prompts import WIDEST, Prompt, QueueView
    from turnkeeper.models.session.session import Session
    from turnkeeper.models.session.start import check_outside_start, read_start
    from turnkeeper.models.session.views import (
        approvals_of,
        context_of,
        queue_of,
        replay_turns_of,
        state_of,
        updates_of,
    )
    from turnkeeper.models.transcript.conversation import ConversationState, ConversationUpdate, TurnStop
    from turnkeeper.models.transcript.model_call import ModelRequestPage, ModelRequestQuery
    from turnkeeper.models.wire import Compact
    from turnkeeper.workflows import activity_options
    from turnkeeper.workflows.archiving import Archiving, Listing, Parking
    from turnkeeper.workflows.new_run import HistoryGrowth, LastChange, NewRun
    from turnkeeper.workflows.turn.turn_runner import TurnRunner
    from turnkeeper.workflows.web_ui import WebUi
    from turnkeeper.workflows.workflow_part import Host, report_rejections, workflow_parts


@workflow.defn
class AgenticAIWorkflow:
    """A durable conversation with an AI agent."""

    @workflow.init
    def __init__(self, start: Any = None, *rest: Any) -> None:
        """Build all state, so that a signal that arrives before `run` finds it (SES-4)."""
        start, self._rejected_start = _read_start(start, extra_arguments=len(rest))
        self._last_change = LastChange()
        self._session = session = Session(
            session_id_of(WorkflowId(workflow.info().workflow_id)),
            start,
            now=workflow.now(),
            on_revision=self._last_change.note,
        )
        self._web_ui = WebUi(session)
        growth = HistoryGrowth(session)
        self._archiving = Archiving(session, refresh_ui=self._web_ui.update)
        self._parking = Parking(session, self._archiving, has_grown=growth.is_due, refresh_ui=self._web_ui.update)
        self._listing = Listing(session, self._archiving)
        self._parts = workflow_parts(session, Host(self._receive, self._web_ui.update))
        self._new_run = NewRun(session, growth, self._archiving, self._parking, is_sending=lambda: self._is_sending())
        # A signal can stop a carried turn before `run` continues it.
        self._turn = self._new_turn() if session.turn else None
        first = start.first_prompt
        if first is None and start.carried is None:
            prompts = (part.first_prompt(str(workflow.uuid4())) for part in session.parts)
            first = next(filter(None, prompts), None)
        if first is not None:
            self._receive(first if isinstance(first, str) else first.model_dump())
        self._web_ui.update()

    @workflow.run
    async def run(self, start: Any = None, *rest: Any) -> SessionEnd:
        """Process prompts, first in first out, until the session ends. `start` is a `SessionInput`, or nothing."""
        if self._rejected_start:
            raise ApplicationError(self._rejected_start.message, type=self._rejected_start.reason, non_retryable=True)
        try:
            await self._process_prompts()
        except asyncio.CancelledError:
            # Also raised when this worker evicts the workflow; then there is no reason, and nothing to do.
            if workflow.cancellation_reason() is not None:
                await self._close("cancelled", "The session was cancelled.", copy_patience=timedelta())
            raise
        reason = self._session.facts.ending or ""
        return await self._close("ended", reason, copy_patience=activity_options.LAST_COPY_PATIENCE)

    # ---- the main loop

    async def _process_prompts(self) -> None:
        session = self._session
        self._web_ui.begin_run()
        self._archiving.begin()
        self._parking.begin()
        self._listing.begin()
        for part in self._parts:
            part.begin()
        if self._turn:
            self._archiving.begin_if_due()
            await self._run_to_end(self._turn)
        while True:
            self._archiving.begin_if_due()
            await self._wait_for_work()
            if self._new_run.is_due():
                self._new_run.continue_as_new()
            if session.queue.next and session.room.is_full:
                self._archiving.begin_if_due()
                await self._archiving.wait_for_room()
                session.shrink_view_if_full()
            if self._new_run.is_impossible():
                session.reject_uncarriable(now=workflow.now())
            if session.queue.next:
                await self._run_turn()
            elif self._can_close():
                return

    async def _wait_for_work(self) -> None:
        await workflow.wait_condition(lambda: self._has_work() or self._is_answered())
        if self._has_work():
            return
        with suppress(TimeoutError):
            await workflow.wait_condition(
                self._has_work, timeout=self._session.open_seconds, timeout_summary="open for further prompts"
            )
        if not self._has_work():
            self._session.end("It has answered.", discard_queue=False, now=workflow.now())

    def _is_answered(self) -> bool:
        """Return whether a session has answered that accepts further prompts for a limited time only."""
        return self._session.open_seconds is not None and self._session.transcript.count > 0

    def _has_work(self) -> bool:
        return self._session.queue.next is not None or self._can_close() or self._new_run.is_due()

    def _can_close(self) -> bool:
        """Return whether the session is ending and has processed all prompts, also parked ones."""
        return self._session.facts.ending is not None and not len(self._session.queue)

    async def _run_turn(self) -> None:
        self._session.begin_turn(now=workflow.now())
        self._listing.expect_model_call()
        self._web_ui.publish("open")
        self._turn = self._new_turn()
        self._web_ui.update()
        await self._run_to_end(self._turn)

    def _is_sending(self) -> bool:
        """Return whether a signal to another session, or the status in lists, is pending."""
        return self._listing.is_due or any(part.is_sending for part in self._parts)

    def _new_turn(self) -> TurnRunner:
        return TurnRunner(
            self._session,
            self._archiving,
            self._parts,
            refresh_ui=self._web_ui.update,
            is_due_for_new_run=self._new_run.is_due,
        )

    async def _run_to_end(self, turn: TurnRunner) -> None:
        while True:
            self._turn = turn
            try:
                await turn.run_to_end()
            except TurnPausedError:
                # Prompts that arrived meanwhile may be too many to carry over: then the turn continues in this run.
                if self._new_run.is_due():
                    self._new_run.continue_as_new()
            else:
                return
            finally:
                self._turn = None
            turn = self._new_turn()

    async def _close(self, status: Any, reason: str, *, copy_patience: timedelta) -> SessionEnd:
        self._session.close(status, reason=reason, now=workflow.now())
        self._web_ui.publish("ended")
        self._web_ui.update()
        results: dict[str, dict[str, JsonValue]] = {}
        for part in self._parts:
            await part.close()
            if status == "ended" and (result := await part.result()):
                results[part.name] = result
        await self._archiving.copy_all(patience=copy_patience)
        count = self._session.transcript.count
        return SessionEnd(status=status, turn_count=count, reason=reason or None, features=results)

    # ---- signals and updates

    @workflow.signal(
        description="Send a prompt: a JSON string, or {id?, text, attachments?, sent_at?, mode?, retries?}."
    )
    def prompt(self, p: Any = None, *rest: Any) -> None:
        """Queue a prompt; any input gets a fate (SES-5)."""
        max_chars = self._session.config.limits.max_prompt_chars
        accepted = self._receive(p, extra_arguments=len(rest), max_chars=max_chars)
        if accepted and accepted.mode == "interrupt" and self._turn:
            self._turn.stop(TurnStop(cause="prompt"))
        self._web_ui.update()

    def _receive(
        self, raw: object, *, extra_arguments: int = 0, max_chars: int = WIDEST.max_prompt_chars
    ) -> Prompt | None:
        return self._session.receive(
            raw, extra_arguments=extra_arguments, max_chars=max_chars, new_id=str(workflow.uuid4()), now=workflow.now()
        )

    @workflow.signal(description="A message of another session, for a feature: {feature, kind, body?}. For our own.")
    def feature_message(self, message: Any = None, *rest: Any) -> None:
        """Hand the message to the part of the feature; a wrong one has no effect."""
        with suppress(RejectedError):
            parsed = parse(FeatureMessage, message)
            for part in self._parts:
                if part.name == parsed.feature:
                    part.receive(parsed)

    @workflow.signal(
        description="End the session after its queued prompts: nothing, a reason, or {reason?, discard_queue?}."
    )
    def end_chat(self, request: Any = None, *rest: Any) -> None:
        """End the session like `end_session`; invalid input ends it too."""
        self._end(read_end(request))

    @workflow.update(description="Withdraw a prompt that has not started: {id}.")
    def withdraw_prompt(self, request: Any = None, *rest: Any) -> None:
        """Withdraw a waiting prompt (SES-8)."""
        self._session.queue.withdraw(parse(WithdrawPrompt, request).id, at=workflow.now())
        self._web_ui.update()

    @withdraw_prompt.validator
    def _check_withdraw(self, request: Any = None, *rest: Any) -> None:
        with report_rejections():
            self._session.queue.check_waiting(parse(WithdrawPrompt, request).id)

    @workflow.update(description="Stop the running turn: {message_id, reason?, stopped_by?}.")
    def cancel_turn(self, request: Any = None, *rest: Any) -> CancelReceipt:
        """Stop this turn if it is still running; a late call has no effect on the next turn (SES-8)."""
        cancel = parse(CancelTurn, request)
        running = self._session.turn
        if self._turn is None or running is None or running.message.id != cancel.message_id:
            return CancelReceipt(cancelling=False)
        self._turn.stop(TurnStop(by=cancel.stopped_by, reason=cancel.reason))
        return CancelReceipt(cancelling=True)

    @cancel_turn.validator
    def _check_cancel(self, request: Any = None, *rest: Any) -> None:
        self._last_change.note_live_task()  # validators run in live tasks only, and this one is the gateway's wake
        with report_rejections():
            parse(CancelTurn, request)

    @workflow.update(description="Decide on a tool call: {call_id, args_digest, decision, reason?, decided_by?}.")
    def resolve_approval(self, request: Any = None, *rest: Any) -> ApprovalReceipt:
        """Record a person's decision; repeating it changes nothing (AGT-8)."""
        receipt = self._session.resolve_approval(parse(ResolveApproval, request), now=workflow.now())
        self._web_ui.update()
        return receipt

    @resolve_approval.validator
    def _check_decision(self, request: Any = None, *rest: Any) -> None:
        with report_rejections():
            check_decision(self._session.transcript, parse(ResolveApproval, request), now=workflow.now())

    @workflow.update(
        description="Configure the session from its next turn on: {title?, model?, limits?, history?, tool_policy?}."
    )
    def configure(self, request: Any = None, *rest: Any) -> None:
        """Change the configuration (SES-8)."""
        self._session.configure(parse(Configure, request))
        self._web_ui.update()
        self._web_ui.publish_open()

    @configure.validator
    def _check_configure(self, request: Any = None, *rest: Any) -> None:
        with report_rejections():
            configured(self._session.config, parse(Configure, request))

    @workflow.update(description="End the session after its queued prompts: {reason?, discard_queue?}.")
    def end_session(self, request: Any = None, *rest: Any) -> None:
        """Accept no more prompts, process or discard the waiting ones, then end (SES-8)."""
        self._end(parse(EndSession, request))

    @end_session.validator
    def _check_end(self, request: Any = None, *rest: Any) -> None:
        with report_rejections():
            parse(EndSession, request)

    def _end(self, request: EndSession) -> None:
        self._session.end(request.reason_text, discard_queue=request.discard_queue, now=workflow.now())
        self._web_ui.update()

    # ---- queries

    @workflow.query(description="The newest turns, about 1 MB at most: nothing, or {before?, limit?}.")
    def get_conversation_state(self, request: Any = None) -> ConversationState:
        """Return the newest turns and the session's status (SES-11)."""
        with self._answering_query():
            page = parse(StateRequest, request)
            if page.before is not None and page.before not in self._session.transcript:
                raise RejectedError("invalid", f"before: this session has no turn {page.before!r}.", field="before")
        return self._last_change.stamp(state_of(self._session, page))

    @workflow.query(
        description="What is new: nothing, a message id, or {last_seen_message_id?, since_revision?, limit?}."
    )
    def get_conversation_updates(self, request: Any = None) -> ConversationUpdate:
        """Return the changes since a client's cursor (SES-12)."""
        with self._answering_query():
            cursor = parse_cursor(request)
        return self._last_change.stamp(updates_of(self._session, cursor))

    @workflow.query(
        description="The waiting prompts and the last 200 fates: nothing, or {message_id} or {message_ids}."
    )
    def get_queue(self, request: Any = None) -> QueueView:
        """Return the waiting prompts and the last fates (SES-6)."""
        with self._answering_query():
            prompts = parse(QueueRequest, request)
        return self._last_change.stamp(queue_of(self._session, *(prompts.ids or [])))

    @workflow.query(description="The tool calls that wait for a decision, about 1 MB at most.")
    def get_pending_approvals(self, request: Any = None) -> PendingApprovals:
        """Return the calls that wait for a decision, with the digests that a decision needs (AGT-8)."""
        with self._answering_query():
            parse(NoArgument, request)
        return self._last_change.stamp(approvals_of(self._session))

    @workflow.query(description="What the model still sees, turn by turn: nothing, or {before?, limit?} turn numbers.")
    def get_context_view(self, request: Any = None) -> ContextView:
        """Return how the model sees each turn now, and the fixed part of every request (CTX-8)."""
        with self._answering_query():
            page = parse(ContextRequest, request)
        return self._last_change.stamp(context_of(self._session, page))

    @workflow.query(
        description="The conversation as replay text, about 1 MB at most: nothing, max_history, or {max_history?}. "
        "Archived steps of an unfinished turn are counted in a thought; the gateway's /context has them."
    )
    def get_replay_context(self, request: Any = None) -> str:
        """Return HISTORY and CURRENT, as far as the session has them (CTX-12, SES-11).

        If early steps of an unfinished turn are in the archive, a thought after its prompt counts them. The gateway's
        `/context` restores them.
        """
        with self._answering_query():
            max_history = parse_replay_request(request).max_history
        turns = replay_turns_of(self._session, max_history)
        return turns.text(max_history, max_bytes=self._session.config.limits.page_bytes)

    @workflow.query(description="The turns that the replay text is made of: {max_history?}. For our own gateway.")
    def internal_replay_turns(self, request: Any = None) -> ReplayTurns:
        """Return the turns in the session; the gateway adds those in the archive (CTX-13)."""
        with self._answering_query():
            max_history = parse_replay_request(request).max_history
        return self._last_change.stamp(replay_turns_of(self._session, max_history))

    @workflow.query(
        description="What the part of a feature answers, about 1 MB at most: {feature, kind, body?}. For our own."
    )
    def internal_feature_query(self, request: Any = None) -> Compact:
        """Return the answer of the feature's part, such as what a copy of the session is made of (SES-18)."""
        with self._answering_query():
            question = parse(FeatureMessage, request)
            part = next((part for part in self._parts if part.name == question.feature), None)
            if part is None:
                raise RejectedError("invalid", f"feature: {question.feature!r} is not enabled here.", field="feature")
            answer = part.answer(question)
        return self._last_change.stamp(answer)

    @workflow.query(description="The open model request, a page at a time: {request, offset?}. For our own activities.")
    def get_model_request(self, request: Any = None) -> ModelRequestPage:
        """Return a page of the open request, which does not change while it is open (AGT-2)."""
        pending = self._turn.open_request if self._turn else None
        with self._answering_query():
            page = parse(ModelRequestQuery, request)
            if pending is None or pending.number != page.request:
                raise RejectedError("not_open", f"Model request {page.request} is not open.")
        return pending.page(page.offset, page_bytes=self._session.config.limits.page_bytes)

    @workflow.query(description="Turns on their way to the archive: {move}. For our own activities.")
    def internal_archive_move(self, request: Any = None) -> ArchiveMove:
        """Return the content of a pending move to the archive (AGT-2, SES-15)."""
        with self._answering_query():
            number = parse(ArchiveMoveQuery, request).move
            move = self._archiving.open_move(number)
            if move is None:
                raise RejectedError("not_open", f"Move {number} is not pending.")
        return move

    @contextmanager
    def _answering_query(self) -> Iterator[None]:
        self._last_change.note_query()
        with report_rejections():
            yield


def _read_start(raw: Any, *, extra_arguments: int) -> tuple[SessionInput, RejectedError | None]:
    """Return the input and why it is rejected, if it is; a rejected input becomes the default one.

    It is parsed here, since input that Temporal can't parse would fail the workflow task forever.
    """
    try:
        start = read_start(raw, extra_arguments=extra_arguments)
        # The state of an earlier run is our own; a contradiction in it is a bug, which a deployment can fix.
        if workflow.info().continued_run_id is None:
            check_outside_start(start)
    except RejectedError as rejection:
        return SessionInput(), rejection
    return start, None
