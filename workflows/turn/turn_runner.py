"""One turn: ask the model, run its tool calls, repeat until it answers (AGT-1).

A turn leaves its loop with an answer, or by one of three exceptions (`models/errors.py`). `TurnFailedError` and
`TurnStoppedError` end the turn; after `TurnPausedError` it continues in the session's next run. Any other exception is
a bug: it fails the workflow task, stays visible, and the turn continues after the fix (SES-10).
"""

import asyncio
from collections.abc import Callable, Iterable

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.errors import ErrorType, TurnFailedError, TurnPausedError, TurnStoppedError, fail
    from turnkeeper.models.session.running_turn import number_calls
    from turnkeeper.models.session.session import Session
    from turnkeeper.models.transcript.conversation import ModelStep, ToolResult, TurnStop
    from turnkeeper.models.transcript.model_call import ModelResponse
    from turnkeeper.workflows.archiving import Archiving
    from turnkeeper.workflows.turn.model_calls import ModelCalls
    from turnkeeper.workflows.turn.tool_calls import ToolCalls
    from turnkeeper.workflows.turn.turn_scope import OpenRequest, RequestSlot, TurnScope
    from turnkeeper.workflows.workflow_part import WorkflowPart


class TurnRunner:
    """Runs one turn of a session."""

    def __init__(
        self,
        session: Session,
        archiving: Archiving,
        parts: Iterable[WorkflowPart],
        *,
        refresh_ui: Callable[[], None],
        is_due_for_new_run: Callable[[], bool],
    ) -> None:
        self._session = session
        self._archiving = archiving
        self._scope = TurnScope(session, refresh_ui=refresh_ui, is_due_for_new_run=is_due_for_new_run)
        self._scope.parts = [part.turn(self._scope) for part in parts]
        self._slot = RequestSlot()
        self._model_calls = ModelCalls(self._scope, self._slot)
        self._tool_calls = ToolCalls(self._scope)
        self._task: asyncio.Task[None] | None = None
        self._has_begun = False

    @property
    def open_request(self) -> OpenRequest | None:
        return self._slot.request

    # ---- from outside

    async def run_to_end(self) -> None:
        """Run the turn to its end. Cancellation stops the turn first (SES-9).

        Raises `TurnPausedError` if it continues in the next run.
        """
        task = self._task = asyncio.create_task(self._run())
        try:
            await workflow.wait_condition(task.done)
        except asyncio.CancelledError:
            if workflow.cancellation_reason() is not None:
                self.stop(TurnStop(cause="session"))
                await workflow.wait_condition(task.done)
            raise
        task.result()

    def stop(self, stop: TurnStop) -> None:
        """Stop the turn within the next workflow task; the first stop counts."""
        self._scope.stop = self._scope.stop or stop
        if self._scope.handles_stop:
            return
        # A task that is cancelled before its first step never runs, so the turn would never end. A cancellation can be
        # lost when the activity completes at the same moment, so the task also checks the reason before it waits again.
        if self._task and self._has_begun:
            self._task.cancel()

    # ---- the loop

    async def _run(self) -> None:
        self._has_begun = True
        try:
            answer = await self._answer()
        except TurnFailedError as failure:
            self._end_without_answer(failure.error_type, failure.sentence)
        except TurnStoppedError as stop:
            self._end_without_answer("cancelled", f"Cancelled: {stop.reason}")
        else:
            turn = self._scope.turn
            self._session.end_turn(turn.completed(answer.text or "", blob=answer.text_blob, now=workflow.now()))
        self._log_end()
        self._scope.refresh_ui()

    async def _answer(self) -> ModelStep:
        """Return the step with the answer. Raises `TurnStoppedError` if a stop cancels it."""
        try:
            self._scope.check_stop()
            return await self._loop()
        except asyncio.CancelledError:
            # Also raised when this worker evicts the workflow: the only cause while `handles_stop`, even if there is a
            # stop reason.
            if not self._scope.handles_stop:
                self._scope.check_stop()
            raise

    async def _loop(self) -> ModelStep:
        for part in self._scope.parts:
            await part.begin()
        await self._finish_pending_calls()  # of a turn that paused
        while True:
            await self._check_next_step()
            step = await self._ask_model()
            if step.is_answer:
                _check_answer(step)
                return step
            await self._run_tools(step)

    async def _check_next_step(self) -> None:
        """Check that the turn can take another step, in this run.

        Raises `TurnPausedError` if the next run must continue: a call is still pending, or the history has grown.
        Raises `TurnFailedError` if the turn has used all its steps, or is too large.
        """
        turn = self._scope.turn
        if not turn.unsettled:
            turn.budgets.check_next_step(turn.steps)
            if turn.steps:
                await self._reserve_bytes()
        if turn.unsettled or (turn.steps and self._scope.is_due_to_pause()):
            raise TurnPausedError

    async def _ask_model(self) -> ModelStep:
        self._session.turn_slot.change(self._scope.turn.with_more(steps=1))
        self._scope.check_stop()
        self._session.steer_turn(now=workflow.now())
        step = self._record(await self._model_calls.ask())
        self._scope.check_stop()  # the answer came at the moment of the stop: it is recorded, but the turn ends
        return step

    async def _run_tools(self, step: ModelStep) -> None:
        self._session.turn_slot.change(self._scope.turn.with_more(calls=len(step.tool_calls)))
        await self._tool_calls.check(step, self._reserve_for_results)
        await self._scope.check_step(self._model_calls.usage)
        await self._finish_pending_calls()

    async def _finish_pending_calls(self) -> None:
        """Run the pending calls of the newest step; when all have results, append it to the model view.

        If continue-as-new is due, some may stay without a result.
        """
        if self._scope.turn.unsettled:
            await self._tool_calls.run()
            if not self._scope.turn.pending_calls:
                self._session.turn_slot.settle_step()

    def _record(self, response: ModelResponse) -> ModelStep:
        parts = [] if response.stop == "max_tokens" else response.calls
        calls = number_calls(parts, turn_number=self._session.transcript.count, step=self._scope.turn.steps)
        slot = self._session.turn_slot
        step = slot.add_response(response, calls, now=workflow.now(), spent=self._model_calls.spent)
        turn = self._scope.turn.with_unsettled_step(response.state, segment=self._model_calls.segment)
        slot.change(turn)
        self._tool_calls.reads = {calls[position].id: read for position, read in self._model_calls.reads.items()}
        if step.is_answer:
            slot.settle_step()
        self._scope.refresh_ui()
        return step

    async def _reserve_bytes(self) -> None:
        """Move the turn's oldest steps to the archive before the turn is too large to carry (SES-15)."""
        size = self._scope.turn.carried_bytes
        if size <= self._scope.turn.limits.min_turn_bytes:
            return
        cap = await self._cap_for(size)
        if size > cap or (size * 8 > cap * 7 and self._archiving.is_attempt_due):
            await self._archiving.move_steps(max_bytes=cap // 2)
        self._scope.turn.bytes.check(cap, archive_error=self._session.archive.current_error)

    async def _reserve_for_results(self, results_bytes: int) -> None:
        """Move the turn's oldest steps to the archive if the results of the newest one have no room beside them."""
        size = self._scope.turn.carried_bytes + results_bytes
        cap = await self._cap_for(size)
        if size > max(cap, self._scope.turn.limits.min_turn_bytes):
            await self._archiving.move_steps(max_bytes=max(0, cap // 2 - results_bytes))

    async def _cap_for(self, size: int) -> int:
        """Return the turn's maximum size; if it is below `size`, wait for the ended turns that are being archived."""
        room = self._session.room
        if size > room.turn_cap:
            await self._archiving.wait_until(lambda: size <= room.turn_cap)
        return room.turn_cap

    # ---- ending

    def _end_without_answer(self, error_type: ErrorType, error: str) -> None:
        if self._scope.turn.unsettled:
            self._tool_calls.answer_unanswered()
            self._session.turn_slot.settle_step()
        self._record_unfinished(error_type)
        self._slot.close()
        stop = self._scope.stop if error_type == "cancelled" else None
        self._session.end_turn(self._scope.turn.failed(error_type, error, stop=stop, now=workflow.now()))

    def _record_unfinished(self, error_type: ErrorType) -> None:
        """Record the written part of an interrupted answer, if there is one (SES-9)."""
        unfinished, spent = self._model_calls.unfinished, self._model_calls.spent
        if unfinished is None:
            return
        calls = [
            call.model_copy(update={"result": _not_called(call.name)})
            for call in number_calls(
                unfinished.calls, turn_number=self._session.transcript.count, step=self._scope.turn.steps
            )
        ]
        slot = self._session.turn_slot
        slot.add_response(unfinished, calls, now=workflow.now(), interrupted=True, spent=spent)
        if error_type != "refusal":  # a text that the vendor refused is not sent again
            slot.append_step_to_view(state=None)

    def _log_end(self) -> None:
        view = self._session.context.view
        workflow.logger.info("Conversation: %d messages (~%d tokens)", view.message_count, view.estimated_tokens)


def _not_called(name: str) -> ToolResult:
    return ToolResult(outcome=f"{name} was not called: the answer was interrupted before", status="cancelled")


def _check_answer(step: ModelStep) -> None:
    """Raise `TurnFailedError` if the last step is truncated or empty."""
    if step.stop == "max_tokens":
        fail("too_large", "The model's answer was cut at its provider's length limit.")
    if not (step.text or "").strip():
        fail("provider_error", "The model gave an empty answer.")
