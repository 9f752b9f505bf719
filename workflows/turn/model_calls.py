"""Asking the model within a turn: the request, its repetitions, and the waiting in between (AGT-2, AGT-9)."""

from collections import Counter
from contextlib import suppress
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityCancellationType

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.failures import MAX_RETRY_DELAY
    from turnkeeper.activities.llm import ModelActivities
    from turnkeeper.models.context.request_size import head_tokens
    from turnkeeper.models.errors import ErrorType, TurnFailed, fail
    from turnkeeper.models.transcript.model_call import ModelCall, ModelCallOutcome, ModelResponse
    from turnkeeper.models.transcript.trajectory import Usage
    from turnkeeper.workflows import activity_options
    from turnkeeper.workflows.turn.open_request import OpenRequest, RequestSlot
    from turnkeeper.workflows.turn.summaries import Summaries
    from turnkeeper.workflows.turn.tool_list import ToolList
    from turnkeeper.workflows.turn.turn_context import TurnContext
    from turnkeeper.workflows.turn.unfinished import spent_of, unfinished_of

_MOST_REPEATS = {"context_too_long": 2, "stale_reasoning": 1, "digest_mismatch": 1, "empty_answer": 1}
"""How often a request is made anew because of what, for each model call (AGT-9, CTX-7)."""

_NOT_REPEATED: dict[str, tuple[ErrorType, str]] = {
    "context_too_long": ("context_too_long", "The conversation is too long for the model."),
    "stale_reasoning": ("bad_request", "The model's provider refused its own reasoning, and the request without it."),
    "digest_mismatch": ("internal", "The model's context could not be handed over unchanged; see the worker's log."),
    "empty_answer": ("provider_error", "The model gave an empty answer."),
}


class ModelCalls:
    """The model calls of a turn."""

    def __init__(self, context: TurnContext, slot: RequestSlot, tools: ToolList) -> None:
        self._context = context
        self._session = context.session
        self._slot = slot
        self._tools = tools
        self._summaries = Summaries(context, slot)
        self._repeats_empty = False
        self.segment = 0
        """The segment of the latest request."""
        self.unfinished: ModelResponse | None = None
        """What the model had written of the newest answer, which did not become whole (SES-9)."""
        self.usage: Usage | None = None
        """What the vendor says that the newest answer took; `None`: it says nothing."""
        self.spent: Usage | None = None
        """What attempts for the newest answer took that gave none (AGT-9)."""

    async def ask(self) -> ModelResponse:
        """Return the model's answer, waiting and repeating as `activities/failures.py` says (AGT-9)."""
        repeats, limit = Counter[str](), self._session.context.limit
        self.spent = None
        while True:
            # The run asks for it: a worker of an earlier release is to read no `repeat` that it does not know.
            self._repeats_empty = self._session.rules >= 3 and not repeats["empty_answer"]
            request = await self._open_new_request()
            outcome = await self._outcome_or_new_segment(request)
            if outcome.response is not None:
                self._slot.close()
                self._note_size(request)
                self.usage = outcome.response.usage
                return outcome.response
            cause = outcome.repeat or "digest_mismatch"
            repeats[cause] += 1
            if repeats[cause] > _MOST_REPEATS[cause] or not self._may_repeat(cause):
                if cause == "context_too_long":
                    # What is too long at a quarter of its size says nothing of how much the model takes.
                    self._session.context.restore_limit(limit)
                fail(*_NOT_REPEATED[cause])
            if cause == "stale_reasoning":
                self._session.view.open_segment()
            elif cause == "context_too_long":
                self._halve()

    def _may_repeat(self, cause: str) -> bool:
        # Runs from before windows were halved end the turn at once.
        return cause != "context_too_long" or workflow.patched("halve-the-window")

    def _halve(self) -> None:
        """Send half of what was sent from now on (CTX-7)."""
        session, turn = self._session, self._context.turn
        if session.rules < 3:
            session.context.halve(turn.history, model=turn.model)
            return
        session.context.learn_limit(turn.history, model=turn.model, head=session.head)
        tokens = session.context.max_tokens(turn.history, model=turn.model)
        workflow.logger.warning(
            "The context was too long for %s: at most ~%d tokens are sent from now on", turn.model, tokens
        )

    def _note_size(self, request: OpenRequest) -> None:
        if self._session.rules < 3:
            return
        turn, tokens = self._context.turn, head_tokens(request.request.head) + request.estimated_tokens
        self._session.context.confirm_limit(turn.history, model=turn.model, tokens=tokens)

    async def _outcome_or_new_segment(self, request: OpenRequest) -> ModelCallOutcome:
        """Return the outcome of `request`; once it is refused, later ones go without the vendor's own blocks.

        Not every vendor says it in known words when its own blocks are what it refuses. A session that went on sending
        them would be refused for ever.
        """
        try:
            return await self._outcome(request)
        except TurnFailed as failure:
            if failure.error_type == "bad_request" and any(message.state for message in request.request.messages):
                self._session.view.open_segment()
            raise

    async def _outcome(self, request: OpenRequest) -> ModelCallOutcome:
        """Return the first outcome of `request` that is no waiting."""
        rounds = silences = 0
        outcome = await self._call_model(request, rounds)
        while outcome.wait_seconds is not None:
            if self._session.rules >= 3:
                self._context.turn.budgets.check_spent()
            await self._wait(outcome.wait_seconds, reason=outcome.wait_reason)
            rounds += 1
            # Short waits for the vendor are Temporal's own: such a one is for the session, which did not answer.
            silences += outcome.wait_seconds <= MAX_RETRY_DELAY
            outcome = await self._call_model(
                request, rounds, silences=silences, unclear_answers=outcome.unclear_answers
            )
        return outcome

    async def _open_new_request(self) -> OpenRequest:
        session = self._session
        self._slot.close()
        await self._evict()
        self._context.turn.budgets.check_spent()  # a summary may have taken what was left
        await self._tools.renew()
        self.segment = session.view.segment
        session.current_turn.note_request()
        return self._slot.open(
            OpenRequest(
                number=session.count_request(),
                request=session.view.request(session.head),
                digest=session.view.digest(session.head),
                estimated_tokens=session.view.estimated_tokens,
            )
        )

    async def _evict(self) -> None:
        """Keep the model's context within its window: evict, and have what was evicted summarised (CTX-4, CTX-5)."""
        history, model = self._context.turn.history, self._context.turn.model
        session, log = self._session, workflow.logger
        context = session.context
        window = context.window(history, model=model)
        context.evict(history, model=model, head=session.head, most_bytes=session.config.limits.view_bytes)
        await self._summaries.make_if_due()
        kept, tokens, news = context.view.message_count, context.view.estimated_tokens, context.take_news()
        if news.evicted:
            log.info("Trimmed conversation: %d messages removed, %d kept (~%d tokens)", news.evicted, kept, tokens)
            if warning := context.take_room_warning(window):
                log.warning("Conversation window: %s", warning)
        if news.given_up:
            log.warning("%d evicted messages will be in no summary: no more can be carried", news.given_up)
        if context.take_limit_warning(window):
            log.warning("Conversation approaching limit (%d/%d messages)", kept, window.max_messages)

    async def _call_model(
        self, request: OpenRequest, rounds: int, *, silences: int = 0, unclear_answers: int = 0
    ) -> ModelCallOutcome:
        session = self._session
        self._context.check_stop()
        turn = self._context.turn
        self._slot.hand_over()
        call = workflow.start_activity_method(
            ModelActivities.call_model,
            ModelCall(
                turn=session.turn_count,
                step=turn.steps,
                request=request.number,
                model=turn.model,
                digest=request.digest,
                message_id=turn.message.id,
                silences=silences,
                round=rounds,
                unclear_answers=unclear_answers,
                repeats_empty=self._repeats_empty,
                inline_bytes=turn.inline_bytes,
                max_bytes=turn.max_answer_bytes(session.room.turn_cap),
                **(turn.budgets.remaining() if session.rules >= 3 else {}),
            ),
            start_to_close_timeout=timedelta(seconds=turn.limits.model_timeout),
            schedule_to_close_timeout=self._context.time_left(),
            heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
            retry_policy=activity_options.MODEL_RETRIES,
            cancellation_type=(
                ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
                if session.rules >= 2
                else ActivityCancellationType.TRY_CANCEL
            ),
            summary=self._summary(request),
        )
        try:
            return await (self._finished(call) if session.rules >= 2 else call)
        except ActivityError as error:
            self._context.fail_by(error)

    async def _finished(self, call: workflow.ActivityHandle[ModelCallOutcome]) -> ModelCallOutcome:
        """Return the outcome of a call; where none is a whole answer, keep what was written of it (SES-9).

        A stop cancels the call and waits for what it had by then, but not for long. Raises `ActivityError`, and
        `TurnStopped` where the turn was stopped before there was a whole answer.
        """
        context = self._context
        # Cancelled, the call would forget an answer that comes in this same moment; and an eviction looks like a stop.
        # Cancelled here, it stays set: that was an eviction, and no stop.
        context.handles_stop = True
        await workflow.wait_condition(lambda: call.done() or context.stop_reason is not None)
        if not call.done():
            await self._cancel(call)
        context.handles_stop = False
        if not call.done():
            context.check_stop()
        try:
            outcome = await call
        except ActivityError as error:
            max_bytes = context.turn.max_answer_bytes(self._session.room.turn_cap)
            self.unfinished = unfinished_of(error, model=context.turn.model, max_bytes=max_bytes)
            self._count_spent(spent_of(error))
            context.check_stop()
            raise
        self.unfinished = outcome.unfinished
        self._count_spent(outcome.spent)
        if outcome.response is None:
            context.check_stop()
        return outcome

    def _count_spent(self, spent: Usage | None) -> None:
        """Count what attempts took that gave no answer: for the turn now, for the step once there is one (AGT-9).

        Runs of rules 1 and 2 do not count it: it could decide otherwise what a replay has to repeat.
        """
        if spent and self._session.rules >= 3:
            self._session.current_turn.add_usage(spent)
            self.spent = (self.spent or Usage()) + spent

    async def _cancel(self, call: workflow.ActivityHandle[ModelCallOutcome]) -> None:
        call.cancel()
        with suppress(TimeoutError):
            await workflow.wait_condition(
                call.done,
                timeout=activity_options.UNFINISHED_PATIENCE,
                timeout_summary="for what the model had written when it was stopped",
            )
        # One that goes on regardless is left behind: what comes of it later is nobody's, its failure too.
        call.add_done_callback(lambda left: left.cancelled() or left.exception())

    def _summary(self, request: OpenRequest) -> str:
        model = self._context.turn.model
        return (
            f"{model.partition(':')[2] or model} · turn {self._session.turn_count} · step {self._context.turn.steps} · "
            f"{request.message_count} messages, ~{_short(request.estimated_tokens)} tokens"
        )

    async def _wait(self, seconds: float, *, reason: str) -> None:
        """Sleep until the model may be asked again; shown as `waiting_retry`, with the `reason` (AGT-9)."""
        turn, until = self._context.turn, workflow.now() + timedelta(seconds=seconds)
        if until >= turn.deadline_at(workflow.now()):
            turn.budgets.fail_out_of_time(wait=seconds, reason=reason)
        self._context.check_stop()
        self._session.current_turn.wait_until(until, reason=reason)
        self._context.on_change()
        try:
            await workflow.sleep(seconds, summary=f"before {turn.model} is asked again")
        finally:
            # Also run when this worker forgets the session: nothing of Temporal may be used here.
            self._session.current_turn.stop_waiting()
        self._context.on_change()


def _short(tokens: int) -> str:
    return str(tokens) if tokens < 1000 else f"{tokens / 1000:.1f}k"
