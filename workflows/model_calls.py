"""Asking the model within a turn: the request, its repetitions, and the waiting in between (AGT-2, AGT-9)."""

from collections import Counter
from contextlib import suppress
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityCancellationType

with workflow.unsafe.imports_passed_through():
    from activities.llm import ModelActivities
    from models.context.window import ConversationHistoryConfig
    from models.errors import ErrorType, TurnFailed
    from models.model_call import ModelCall, ModelCallOutcome, ModelResponse
    from workflows import activity_options
    from workflows.open_request import OpenRequest, RequestSlot
    from workflows.summaries import Summaries
    from workflows.tool_list import ToolList
    from workflows.turn_frame import Frame
    from workflows.unfinished import unfinished_of

LEAST_ANSWER_BYTES = 2_000
"""What an answer may have however full the turn is."""

_MOST_REPEATS = {"context_too_long": 2, "stale_reasoning": 1, "digest_mismatch": 1}
"""How often a changed request is tried against what, for each model call (AGT-9, CTX-7)."""

_NOT_REPEATED: dict[str, tuple[ErrorType, str]] = {
    "context_too_long": ("context_too_long", "The conversation is too long for the model."),
    "stale_reasoning": ("bad_request", "The model's provider refused its own reasoning, and the request without it."),
    "digest_mismatch": ("internal", "The model's context could not be handed over unchanged; see the worker's log."),
}


class ModelCalls:
    """The model calls of a turn."""

    def __init__(self, frame: Frame, slot: RequestSlot, tools: ToolList) -> None:
        """Ask for the turn of `frame`, offering its `tools`, through its `slot` of the open request."""
        self._frame = frame
        self._session = frame.session
        self._slot = slot
        self._tools = tools
        self._summaries = Summaries(frame, slot)
        self.segment = 0
        """The segment of the latest request."""

    async def ask(self) -> ModelResponse:
        """Return the model's answer, waiting and repeating as `activities/failures.py` says (AGT-9)."""
        repeats = Counter[str]()
        while True:
            outcome = await self._heeded(await self._open_new_request())
            if outcome.response is not None:
                self._slot.close()
                return outcome.response
            cause = outcome.repeat or "digest_mismatch"
            repeats[cause] += 1
            if repeats[cause] > _MOST_REPEATS[cause] or not self._may_repeat(cause):
                raise TurnFailed(*_NOT_REPEATED[cause])
            if cause == "stale_reasoning":
                self._session.view.open_segment()
            elif cause == "context_too_long":
                self._session.context.halve(self._frame.terms.history, model=self._frame.model)

    def _may_repeat(self, cause: str) -> bool:
        # Runs from before windows were halved end the turn at once.
        return cause != "context_too_long" or workflow.patched("halve-the-window")

    async def _heeded(self, request: OpenRequest) -> ModelCallOutcome:
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
        rounds = 0
        outcome = await self._call_model(request, rounds)
        while outcome.wait_seconds is not None:
            await self._wait(outcome.wait_seconds)
            rounds += 1
            outcome = await self._call_model(request, rounds)
        return outcome

    async def _open_new_request(self) -> OpenRequest:
        session, frame = self._session, self._frame
        self._slot.close()
        await self._make_room(session.context.window(frame.terms.history, model=frame.model))
        frame.budgets.check_spent()  # a summary may have taken what was left
        await self._tools.renew()
        self.segment = session.view.segment
        return self._slot.open(
            OpenRequest(
                number=session.open_request(),
                request=session.view.request(session.head),
                digest=session.view.digest(session.head),
                estimated_tokens=session.view.estimated_tokens,
            )
        )

    async def _make_room(self, window: ConversationHistoryConfig) -> None:
        """Keep the model's context within its window: evict, and have what was evicted summarised (CTX-4, CTX-5)."""
        self._session.make_room(window)
        await self._summaries.make_if_due()
        context, log = self._session.context, workflow.logger
        kept, tokens, news = context.view.message_count, context.view.estimated_tokens, context.take_news()
        if news.evicted:
            log.info("Trimmed conversation: %d messages removed, %d kept (~%d tokens)", news.evicted, kept, tokens)
            if warning := context.take_room_warning(window):
                log.warning("Conversation window: %s", warning)
        if news.given_up:
            log.warning("%d evicted messages will be in no summary: no more can be carried", news.given_up)
        if context.take_limit_warning(window):
            log.warning("Conversation approaching limit (%d/%d messages)", kept, window.max_messages)

    async def _call_model(self, request: OpenRequest, rounds: int) -> ModelCallOutcome:
        frame, session = self._frame, self._session
        frame.stop_if_told()
        self._slot.hand_over()
        call = workflow.start_activity_method(
            ModelActivities.call_model,
            ModelCall(
                turn=session.turn_count,
                step=frame.steps,
                request=request.number,
                model=frame.model,
                digest=request.digest,
                message_id=turn.id if (turn := session.running_turn) else "",
                round=rounds,
                inline_bytes=frame.limits.inline_bytes(session.turn_bytes),
                max_bytes=self._most_bytes(),
            ),
            start_to_close_timeout=timedelta(seconds=frame.limits.model_timeout),
            schedule_to_close_timeout=frame.remaining(),
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
            raise frame.failure(error) from error

    async def _finished(self, call: workflow.ActivityHandle[ModelCallOutcome]) -> ModelCallOutcome:
        """Return the outcome of a call; where none is a whole answer, keep what was written of it (SES-9).

        A stop cancels the call and waits for what it had by then, but not for long. Raises `ActivityError`, and
        `CancelledError` where the turn was stopped before there was a whole answer.
        """
        frame = self._frame
        # Cancelled, the call would forget an answer that comes in this same moment; and an eviction looks like a stop.
        frame.handles_stop = True
        await workflow.wait_condition(lambda: call.done() or frame.stop_reason is not None)
        if not call.done():
            await self._cancel(call)
        frame.handles_stop = False
        if not call.done():
            frame.stop_if_told()
        try:
            outcome = await call
        except ActivityError as error:
            frame.unfinished = unfinished_of(error, model=frame.model, max_bytes=self._most_bytes())
            frame.stop_if_told()
            raise
        frame.unfinished = outcome.unfinished
        if outcome.response is None:
            frame.stop_if_told()
        return outcome

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

    def _most_bytes(self) -> int:
        """Leave as much of the turn's room for the results of the calls as for the answer that asks for them."""
        limits, held = self._frame.limits, self._session.turn_bytes
        return min(limits.answer_bytes, max(LEAST_ANSWER_BYTES, (self._session.turn_cap(limits) - held) // 2))

    def _summary(self, request: OpenRequest) -> str:
        model = self._frame.model
        return (
            f"{model.partition(':')[2] or model} · turn {self._session.turn_count} · step {self._frame.steps} · "
            f"{request.message_count} messages, ~{_short(request.estimated_tokens)} tokens"
        )

    async def _wait(self, seconds: float) -> None:
        """Sleep until the model may be asked again; shown as `waiting_retry` (AGT-9)."""
        until = workflow.now() + timedelta(seconds=seconds)
        if until >= self._frame.deadline:
            raise self._frame.budgets.out_of_time(asked_to_wait=seconds)
        self._frame.stop_if_told()
        self._session.wait_until(until)
        self._frame.on_change()
        try:
            await workflow.sleep(seconds, summary=f"{self._frame.model} asked for {seconds:g} s of patience")
        finally:
            # Also run when this worker forgets the session: nothing of Temporal may be used here.
            self._session.wait_until(None)
        self._frame.on_change()


def _short(tokens: int) -> str:
    return str(tokens) if tokens < 1000 else f"{tokens / 1000:.1f}k"
