"""The model calls of a turn: requests, resends, and waits for the vendor (AGT-2, AGT-9).

Evicted messages are summarised before the next model request (CTX-5). The tools that the model is offered do not change
within a segment (AGT-6). A changed list would change the prefix of every request, and invalidate the vendor's cache and
reasoning. So the tools are reloaded when a new segment changes the prefix anyway, at most once in ten turns. They are
reloaded earlier after a call has met a changed tool, or a server was unreachable. Such a server's earlier tools stay
until it is asked again in the next turn.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import NoReturn

from temporalio import workflow
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityCancellationType

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.call_model import ModelActivities, SummaryActivities
    from turnkeeper.activities.failures import asked_again, describe_failure
    from turnkeeper.activities.tools import ToolActivities
    from turnkeeper.models.context.model_context import LearnedLimit
    from turnkeeper.models.context.model_view import digest_of, head_tokens
    from turnkeeper.models.errors import ErrorType, TurnFailedError, fail, growing_pauses
    from turnkeeper.models.session.tools import merge_instructions, merge_tools, missing_tools, tools_digest
    from turnkeeper.models.session.views import make_index_entry
    from turnkeeper.models.texts import counted, estimate_tokens
    from turnkeeper.models.transcript.conversation import ToolResult, Usage
    from turnkeeper.models.transcript.model_call import (
        LocalRead,
        ModelCall,
        ModelCallOutcome,
        ModelRequest,
        ModelResponse,
        QuickReads,
        SummaryCall,
        SummaryOutcome,
        ToolList,
        ToolListCall,
        ToolSpec,
    )
    from turnkeeper.workflows import activity_options
    from turnkeeper.workflows.turn.turn_scope import (
        OpenRequest,
        RequestSlot,
        TurnScope,
        check_cancelled,
        spent_usage,
        unfinished_response,
    )


_MAX_RESENDS = {"context_too_long": 2, "maybe_too_long": 1, "digest_mismatch": 1, "empty_answer": 1}
"""How often a changed request is sent, by cause (AGT-9, CTX-7)."""

_NOT_RESENT: dict[str, tuple[ErrorType, str]] = {
    "context_too_long": ("context_too_long", "The conversation is too long for the model."),
    "digest_mismatch": ("internal", "The model's context changed on its way to the worker; see the worker's log."),
    "empty_answer": ("provider_error", "The model gave an empty answer."),
}


class ModelCalls:
    """The model calls of a turn."""

    def __init__(self, scope: TurnScope, slot: RequestSlot) -> None:
        self._scope = scope
        self._session = scope.session
        self._slot = slot
        self._tools = OfferedTools(scope)
        self._summaries = Summaries(scope, slot)
        self._resends_empty = False
        self._guesses_length = True
        """Whether a refusal of the largest request so far is tried as too long: once a step."""
        self.segment = 0
        """The segment of the latest request."""
        self.unfinished: ModelResponse | None = None
        """The written part of the last answer, if it is incomplete (SES-9)."""
        self.usage: Usage | None = None
        """The vendor's usage report for the last answer; `None`: it reported none."""
        self.spent: Usage | None = None
        """Usage of failed attempts at the last answer (AGT-9)."""
        self.reads: dict[int, ToolResult] = {}
        """Results of the last answer's quick reads, by the position of their call (OPS-8)."""

    async def ask(self) -> ModelResponse:
        """Return the model's response, after waits and resends as `activities/failures.py` decides (AGT-9)."""
        resends, limit = Counter[str](), self._session.context.limit
        self._guesses_length = True
        self.spent = None
        while True:
            self._resends_empty = not resends["empty_answer"]
            request = await self._open_new_request()
            outcome = await self._outcome_or_reset(request, limit)
            if outcome.response is not None:
                self._slot.close()
                self._note_answer(request, outcome.response, limit)
                self.usage, self.reads = outcome.response.usage, outcome.reads
                return outcome.response
            cause: str = outcome.repeat or "digest_mismatch"
            resends[cause] += 1
            if resends[cause] > _MAX_RESENDS[cause]:
                if cause == "context_too_long":
                    # Too long even at a quarter of its size: this tells nothing about the model's limit.
                    self._session.context.restore_limit(limit)
                fail(*_NOT_RESENT[cause])
            if cause == "context_too_long":
                self._halve()
            elif cause == "maybe_too_long":
                self._guesses_length = False
                self._halve()

    def _halve(self) -> None:
        session, turn = self._session, self._scope.turn
        session.context.learn_limit(turn.history, model=turn.model, head=session.head)
        tokens = session.context.max_tokens(turn.history, model=turn.model)
        workflow.logger.warning(
            "The context was too long for %s: at most ~%d tokens are sent from now on", turn.model, tokens
        )

    def _note_answer(self, request: OpenRequest, response: ModelResponse, limit: LearnedLimit | None) -> None:
        """Note the size of an answered request, and what its model refused of it (AGT-9)."""
        session, turn, tokens = self._session, self._scope.turn, _tokens(request)
        if response.left_out and not self._guesses_length:
            session.context.restore_limit(limit)  # it was not the length
        session.context.confirm_limit(turn.history, model=turn.model, tokens=tokens)
        head = request.model_request.head
        session.refusals.note_answer(turn.model, head, tokens=tokens, left_out=response.left_out)
        if any(part.kind == "state" for part in response.left_out):
            session.context.view.open_segment()
            self.segment = session.context.view.segment  # the new answer's own reasoning can go back

    async def _outcome_or_reset(self, request: OpenRequest, limit: LearnedLimit | None) -> ModelCallOutcome:
        """Return the outcome of `request`; if the vendor refuses it for good, renew tools and state, once.

        A session that kept sending the same would be refused forever, also after its tools were fixed.
        """
        session = self._session
        try:
            return await self._outcome(request)
        except TurnFailedError as failure:
            if not self._guesses_length:
                session.context.restore_limit(limit)  # it was not the length
            if failure.error_type == "bad_request":
                session.renew_after_refusal(has_state=any(one.state for one in request.model_request.messages))
            raise

    async def _outcome(self, request: OpenRequest) -> ModelCallOutcome:
        waits = silences = 0
        outcome = await self._call_model(request, waits)
        while outcome.wait_seconds is not None:
            await self._scope.check_spent()
            await self._wait(outcome, seconds=outcome.wait_seconds)
            waits += 1
            silences += outcome.wait_type is None
            with self._showing_retry(outcome.wait_reason, times=waits - silences + 1):
                outcome = await self._call_model(request, waits, silences=silences, previous=outcome)
        return outcome

    @contextmanager
    def _showing_retry(self, reason: str, *, times: int) -> Iterator[None]:
        """Show, while the model is asked for the n-th time, why it is asked again (AGT-9)."""
        slot = self._session.turn_slot
        slot.show_retry(asked_again(reason, times) if times > 1 else reason)
        self._scope.refresh_ui()
        try:
            yield
        finally:
            # Also runs when this worker evicts the workflow, so no Temporal API may be used here.
            slot.stop_waiting()

    async def _open_new_request(self) -> OpenRequest:
        session = self._session
        self._slot.close()
        await self._evict()
        await self._scope.check_spent()  # a summary may have used up the rest
        await self._tools.load_if_due()
        self.segment = session.context.view.segment
        session.turn_slot.note_request()
        return self._slot.open(
            OpenRequest(
                number=session.count_request(),
                model_request=session.context.view.request(session.head),
                digest=session.context.view.digest(session.head),
                estimated_tokens=session.context.view.estimated_tokens,
                entry=make_index_entry(session),
            )
        )

    async def _evict(self) -> None:
        """Keep the model view within its window: evict messages, and summarise them (CTX-4, CTX-5)."""
        history, model = self._scope.turn.history, self._scope.turn.model
        session, log = self._session, workflow.logger
        context = session.context
        window = history
        context.evict(history, model=model, head=session.head, max_bytes=session.config.limits.view_bytes)
        await self._summaries.make_if_due()
        count, tokens, removed = (
            context.view.message_count,
            context.view.estimated_tokens,
            context.evicted.pop_counts(),
        )
        if removed.evicted:
            log.info("Trimmed conversation: %d messages removed, %d kept (~%d tokens)", removed.evicted, count, tokens)
            if warning := context.pop_room_warning(window):
                log.warning("Conversation window: %s", warning)
        if removed.given_up:
            log.warning("%d evicted messages will be in no summary: too many were waiting", removed.given_up)
        if context.pop_limit_warning(window):
            log.warning("Conversation approaching limit (%d/%d messages)", count, window.max_messages)

    async def _call_model(
        self, request: OpenRequest, waits: int, *, silences: int = 0, previous: ModelCallOutcome | None = None
    ) -> ModelCallOutcome:
        """Return the outcome of one activity; `previous` is that of the activity before it, if there was one."""
        session, previous = self._session, previous or ModelCallOutcome()
        self._scope.check_stop()
        turn = self._scope.turn
        self._slot.cache_for_activity()
        call = workflow.start_activity_method(
            ModelActivities.call_model,
            ModelCall(
                turn=session.transcript.count,
                step=turn.steps,
                request=request.number,
                model=turn.model,
                digest=request.digest,
                message_id=turn.message.id,
                silences=silences,
                round=waits,
                lasting_failures=previous.lasting_failures,
                repeats_empty=self._resends_empty,
                inline_bytes=turn.bytes.inline,
                max_bytes=turn.bytes.max_answer(session.room.turn_cap),
                quick_reads=self._quick_reads(),
                left_out=session.refusals.parts_of(turn.model, request.model_request.head),
                may_be_too_long=self._guesses_length
                and session.refusals.is_largest(turn.model, request.model_request.head, tokens=_tokens(request)),
                **session.budgets.remaining(),
            ),
            start_to_close_timeout=timedelta(seconds=turn.limits.model_timeout),
            schedule_to_close_timeout=self._scope.time_left(),
            heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
            retry_policy=activity_options.MODEL_RETRIES,
            cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=self._summary(request),
        )
        try:
            return await self._finished(call)
        except ActivityError as error:
            check_cancelled(error)
            if self._scope.has_no_time_left(error):
                self._fail_out_of_time(previous)
            self._scope.fail_with(error)

    def _fail_out_of_time(self, previous: ModelCallOutcome, *, wait: float | None = None) -> NoReturn:
        """End the turn, whose time ends while the model is asked again; `previous` is the failure that led to it.

        A model that does not answer is the cause, not the turn's time that it used up.
        """
        if previous.wait_type == "timeout":
            fail("timeout", f"{previous.wait_reason} The turn has no time left to ask again.")
        self._scope.turn.budgets.fail_out_of_time(wait=wait, reason=previous.wait_reason)

    def _quick_reads(self) -> QuickReads | None:
        """Return what the activity may read itself; `None` if there is nothing, or no room for results."""
        session, turn = self._session, self._scope.turn
        tools = [tool for tool in session.tools.offered if tool.is_quick_read and self._scope.decide(tool) == "allow"]
        local = {one.name: LocalRead(server=one.server, tool_digest=one.digest) for one in tools if one.local}
        room = turn.bytes.inline_room
        if not tools or room <= 0:
            return None
        return QuickReads(
            tools=[tool.name for tool in tools],
            local=local,
            user=session.config.user if local else None,
            agent=turn.message.agent if local else None,
            room=room,
            workspace=session.config.workspace,
            max_chars=turn.limits.max_tool_result_chars,
        )

    async def _finished(self, call: workflow.ActivityHandle[ModelCallOutcome]) -> ModelCallOutcome:
        """Return the outcome of a call; keep the written part of an incomplete answer (SES-9).

        A stop cancels the call and waits briefly for that part. Raises `ActivityError`, and `TurnStoppedError` if the
        turn was stopped before the answer was complete.
        """
        scope = self._scope
        # Without this, `stop` would cancel the task, and an answer that arrives at the same moment would be lost. If
        # the task is cancelled here, `handles_stop` stays set: that was an eviction, not a stop.
        scope.handles_stop = True
        await workflow.wait_condition(lambda: call.done() or scope.stop is not None)
        if not call.done():
            await self._cancel(call)
        scope.handles_stop = False
        if not call.done():
            scope.check_stop()
        try:
            outcome = await call
        except ActivityError as error:
            max_bytes = scope.turn.bytes.max_answer(self._session.room.turn_cap)
            self.unfinished = unfinished_response(error, model=scope.turn.model, max_bytes=max_bytes)
            self._count_spent(spent_usage(error))
            scope.check_stop()
            raise
        self.unfinished = outcome.unfinished
        self._count_spent(outcome.spent)
        if outcome.response is None:
            scope.check_stop()
        return outcome

    def _count_spent(self, spent: Usage | None) -> None:
        """Count the usage of failed attempts: for the turn now, and for the next step (AGT-9)."""
        if spent:
            self._session.turn_slot.add_usage(spent)
            self.spent = (self.spent or Usage()) + spent

    async def _cancel(self, call: workflow.ActivityHandle[ModelCallOutcome]) -> None:
        call.cancel()
        with suppress(TimeoutError):
            await workflow.wait_condition(
                call.done,
                timeout=activity_options.UNFINISHED_PATIENCE,
                timeout_summary="for what the model had written when it was stopped",
            )
        # A call that does not end in time is ignored; asyncio would log an exception that nobody reads.
        call.add_done_callback(lambda late: late.cancelled() or late.exception())

    def _summary(self, request: OpenRequest) -> str:
        turn = self._scope.turn
        name = turn.model.partition(":")[2] or turn.model
        return (
            f"{name} · {self._session.transcript.count}.{turn.steps} · "
            f"{counted(request.message_count, 'message')}, ~{_short(request.estimated_tokens)} tokens"
        )

    async def _wait(self, outcome: ModelCallOutcome, *, seconds: float) -> None:
        """Sleep until the model can be asked again, with status `waiting_retry` and the reason (AGT-9)."""
        turn, until = self._scope.turn, workflow.now() + timedelta(seconds=seconds)
        if until >= turn.deadline_at(workflow.now()):
            self._fail_out_of_time(outcome, wait=seconds)
        self._scope.check_stop()
        self._session.turn_slot.wait_until(until, reason=outcome.wait_reason)
        self._scope.refresh_ui()
        try:
            await workflow.sleep(seconds, summary=f"before {turn.model} is asked again")
        finally:
            # Also runs when this worker evicts the workflow, so no Temporal API may be used here.
            self._session.turn_slot.stop_waiting()
        self._scope.refresh_ui()


def _tokens(request: OpenRequest) -> int:
    return head_tokens(request.model_request.head) + request.estimated_tokens


def _short(tokens: int) -> str:
    return str(tokens) if tokens < 1000 else f"{tokens / 1000:.1f}k"


class Summaries:
    """The summaries of a turn."""

    def __init__(self, scope: TurnScope, slot: RequestSlot) -> None:
        self._scope = scope
        self._session = scope.session
        self._slot = slot

    async def make_if_due(self) -> None:
        """Replace evicted messages by a summary, if one is due.

        If it fails, the session continues without it, and its messages wait for the next one.
        """
        session, history = self._session, self._scope.turn.history
        if not session.context.evicted.is_summary_due(history):
            return
        request = self._open_request()
        evicted = session.context.evicted.begin_summary()
        outcome = await self._outcome(request)
        self._slot.close()
        session.turn_slot.add_usage(outcome.usage)
        session.turn_slot.add_usage(outcome.spent)
        if outcome.trouble:
            session.context.evicted.note_failed_summary()
            workflow.logger.warning("No summary of %d messages: %s", request.message_count, outcome.trouble)
        else:
            view_bytes = session.config.limits.view_bytes
            session.context.insert_summary(outcome, of=evicted, view_bytes=view_bytes)

    def _open_request(self) -> OpenRequest:
        session = self._session
        request = ModelRequest(head=session.head, messages=session.context.messages_to_summarise())
        pending = OpenRequest(
            number=session.count_request(),
            model_request=request,
            digest=digest_of(request),
            estimated_tokens=estimate_tokens(request.messages),
        )
        return self._slot.open(pending)

    async def _outcome(self, request: OpenRequest) -> SummaryOutcome:
        scope, session = self._scope, self._session
        scope.check_stop()
        self._slot.cache_for_activity()
        try:
            return await workflow.execute_activity_method(
                SummaryActivities.summarise,
                SummaryCall(
                    turn=session.transcript.count,
                    request=request.number,
                    model=scope.turn.model,
                    digest=request.digest,
                    has_earlier=session.context.view.summary is not None,
                ),
                start_to_close_timeout=activity_options.SUMMARY_TIMEOUT,
                schedule_to_close_timeout=min(scope.time_left(), activity_options.SUMMARY_PATIENCE),
                heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
                retry_policy=activity_options.SUMMARY_RETRIES,
                summary=f"summary · turn {session.transcript.count} · of {counted(request.message_count, 'message')}",
            )
        except ActivityError as error:
            check_cancelled(error)
            return SummaryOutcome(trouble=describe_failure(error)[1], spent=spent_usage(error))


FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 60.0
"""Between two looks at whether a worker offers the tools of an agent."""


class OfferedTools:
    """Loads and reloads the tools of a turn's session."""

    def __init__(self, scope: TurnScope) -> None:
        self._scope = scope
        self._session = scope.session

    async def load_if_due(self) -> None:
        """Load the tools if the session has none yet, or reload them if they are due, as in a new segment.

        Then offer those that the turn's policy does not deny. If a reload fails, the earlier tools stay. Raises
        `TurnFailedError` if there are none.
        """
        session, tools = self._session, self._session.tools
        is_first = tools.specs is None
        if tools.state.is_reload_due(segment=session.context.view.segment, turn=session.transcript.count):
            await self._load(turn=session.transcript.count)
        await self._wait_for_agents_tools()
        tools.deny([tool.name for tool in tools.all if self._scope.decide(tool) == "deny"], is_first=is_first)

    async def _wait_for_agents_tools(self) -> None:
        """Wait while no worker offers a tool that the session's agent names, visibly: it would answer without it.

        Raises `TurnFailedError` once the turn's time is over.
        """
        turn, tools, slot = self._scope.turn, self._session.tools, self._session.turn_slot
        names = turn.tools if turn.message.agent and turn.tools else []
        pauses = growing_pauses(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while missing := missing_tools(names, tools.all):
            pause = min(timedelta(seconds=next(pauses)), self._scope.time_left())
            reason = f"No worker offers the tool {missing[0]} of the agent {turn.message.agent}."
            slot.wait_until(workflow.now() + pause, reason=reason)
            self._scope.refresh_ui()
            try:
                await workflow.sleep(pause, summary="for the agent's tools")
            finally:
                slot.stop_waiting()  # also when this worker evicts the workflow: no Temporal API may be used here
            self._scope.refresh_ui()
            tools.invalidate()
            await self._load(turn=self._session.transcript.count)

    async def _load(self, *, turn: int) -> None:
        tools = self._session.tools
        if tools.state.is_fresh(turn=turn):
            tools.keep_for_segment()
            return
        specs = tools.specs
        try:
            self._offer(await self._list(specs), turn=turn)
        except ActivityError as error:
            if specs is None:
                self._scope.fail_with(error, sentence="The session's tools could not be read.")
            check_cancelled(error)
            workflow.logger.warning("the tools could not be reloaded; the earlier ones stay")
            tools.offer(specs, turn=turn)

    def _offer(self, listed: ToolList, *, turn: int) -> None:
        tools, state = self._session.tools, self._session.tools.state
        tools.note_absent(listed.absent)
        if listed.unchanged:
            tools.offer(state.specs or [], turn=turn)
        elif listed.unread:
            specs, instructions = merge_tools(listed, state.specs or []), merge_instructions(listed, state.instructions)
            tools.offer(specs, instructions=instructions, turn=turn, is_complete=False)
        else:
            tools.offer(listed.tools, instructions=listed.instructions, turn=turn)

    async def _list(self, specs: list[ToolSpec] | None) -> ToolList:
        return await workflow.execute_activity_method(
            ToolActivities.list_tools,
            ToolListCall(known=tools_digest(specs or [], self._session.tools.state.instructions)),
            start_to_close_timeout=activity_options.TOOL_LIST_TIMEOUT,
            schedule_to_close_timeout=self._scope.time_left(),
            heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
            retry_policy=activity_options.TOOL_LIST_RETRIES if specs is None else activity_options.TOOL_RELOAD_RETRIES,
            summary="tools of this session",
        )
