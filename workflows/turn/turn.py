"""One turn: ask the model, run the tools it asked for, repeat until it answers (AGT-1).

Every way a turn can end is here: an answer, a `TurnFailed` with one of AGT-9's types, or a stop from outside
(`stop`). Any other exception is our own bug: it fails the workflow task, stays visible, and the turn goes on after
the fix (SES-10). A turn can also pause, wherever nothing is in flight: it then goes on in the session's next run.
"""

import asyncio
from collections.abc import Callable

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.errors import ErrorType, TurnFailed
    from turnkeeper.models.ids import call_id
    from turnkeeper.models.session.session import CarriedTurn
    from turnkeeper.models.session.session_state import Session
    from turnkeeper.models.transcript.model_call import CallPart, ModelResponse
    from turnkeeper.models.transcript.trajectory import ModelStep, ToolCall, ToolResult, Usage
    from turnkeeper.workflows.archiving import Archiving
    from turnkeeper.workflows.turn.model_calls import ModelCalls
    from turnkeeper.workflows.turn.open_request import OpenRequest, RequestSlot
    from turnkeeper.workflows.turn.tool_calls import ToolCalls
    from turnkeeper.workflows.turn.tool_list import ToolList
    from turnkeeper.workflows.turn.turn_frame import Frame


class Turn:
    """The running turn of a session."""

    def __init__(
        self,
        session: Session,
        terms: CarriedTurn,
        archiving: Archiving,
        *,
        on_change: Callable[[], None],
        is_due_for_new_run: Callable[[], bool],
    ) -> None:
        """Lead the session's running turn, from its beginning or from where `terms` say that it paused."""
        self._session = session
        self._archiving = archiving
        self._frame = Frame(session, terms, on_change=on_change, is_due_for_new_run=is_due_for_new_run)
        self._slot = RequestSlot()
        self._tools = ToolList(self._frame)
        self._model_calls = ModelCalls(self._frame, self._slot, self._tools)
        self._tool_calls = ToolCalls(self._frame)
        self._task: asyncio.Task[None] | None = None
        self._has_begun = False
        self.paused: CarriedTurn | None = None
        """Where the turn is to go on in the next run; `None` unless it has paused."""

    @property
    def open_request(self) -> OpenRequest | None:
        """The model request that is not answered yet."""
        return self._slot.request

    # ---- from outside

    async def finished(self) -> None:
        """Lead the turn to its end, or to a pause. When cancelled, it is stopped and ends in good order (SES-9)."""
        task = self._task = asyncio.create_task(self._run())
        try:
            await workflow.wait_condition(task.done)
        except asyncio.CancelledError:
            if workflow.cancellation_reason() is not None:
                self.stop("The session was cancelled.")
                await workflow.wait_condition(task.done)
            raise
        task.result()

    def stop(self, reason: str) -> None:
        """End the turn as cancelled, within the next workflow task; the first reason counts."""
        self._frame.stop_reason = self._frame.stop_reason or reason
        if self._frame.handles_stop:
            return
        # A task that is cancelled before its first step never runs, and the turn would never end. One that is told
        # in the moment its activity completes may not hear it: it looks at the reason before it waits again.
        if self._task and self._has_begun:
            self._task.cancel()

    # ---- the loop

    async def _run(self) -> None:
        self._has_begun = True
        try:
            self._frame.stop_if_told()
            answer = await self._answer()
        except TurnFailed as failure:
            self._fail(failure.error_type, failure.sentence)
        except asyncio.CancelledError:
            # What handles a stop by itself is cancelled only when this worker forgets the session.
            if self._frame.stop_reason is None or self._frame.handles_stop:
                raise
            self._fail("cancelled", self._frame.stop_reason)
        else:
            if answer is None:
                self.paused = self._frame.carried()
                return
            self._session.complete_turn(_final_text(answer), blob=answer.text_blob, now=workflow.now())
        self._log_end()
        self._frame.on_change()

    async def _answer(self) -> ModelResponse | None:
        """Return the response that answers the prompt; `None`: the turn pauses here."""
        frame = self._frame
        await self._tools.know()
        if frame.is_unsettled and not await self._run_tools():
            return None
        while frame.steps < frame.limits.max_steps:
            if frame.steps:
                await self._make_room()
                if frame.pauses():
                    return None
            frame.steps += 1
            frame.stop_if_told()
            self._session.steer_turn(frame.limits, now=workflow.now())
            response = await self._model_calls.ask()
            step = self._record(response)
            if self._session.rules >= 2:
                frame.stop_if_told()  # the answer came in the moment of the stop: it stays, but is not gone on with
            if not step.tool_calls:
                _final_text(response)
                return response
            self._tool_calls.count(step)
            frame.budgets.check_step(response.usage)
            if not await self._run_tools():
                return None
        raise frame.budgets.out_of_steps(frame.steps)

    async def _run_tools(self) -> bool:
        all_have_results = await self._tool_calls.run()
        if all_have_results:
            self._frame.settle()
        return all_have_results

    def _record(self, response: ModelResponse) -> ModelStep:
        calls = [] if response.stop == "max_tokens" else self._numbered(response.calls)
        step = self._session.add_response(response, calls, now=workflow.now(), spent=self._take_spent())
        self._frame.unsettle(response.state, segment=self._model_calls.segment)
        if not calls:
            self._frame.settle()
        self._frame.on_change()
        return step

    def _take_spent(self) -> Usage | None:
        spent, self._frame.spent = self._frame.spent, None
        return spent

    def _numbered(self, parts: list[CallPart]) -> list[ToolCall]:
        return [
            ToolCall(
                id=call_id(self._session.turn_count, self._frame.steps, index),
                name=part.name,
                args=part.args,
                args_blob=part.blob,
                provider_call_id=part.id or None,
            )
            for index, part in enumerate(parts)
        ]

    async def _make_room(self) -> None:
        """Hand the turn's oldest steps to the archive before it can be carried no more (SES-15)."""
        if self._session.turn_bytes <= self._frame.limits.least_turn_bytes:
            return
        cap = self._session.turn_cap(self._frame.limits)
        if self._session.turn_bytes > cap or (self._session.turn_bytes * 8 > cap * 7 and self._archiving.may_be_tried):
            await self._archiving.spill(most_bytes=cap // 2)
        if self._session.turn_bytes > cap:
            trouble = self._session.archive.trouble
            raise TurnFailed(
                "too_large",
                f"The turn holds {self._session.turn_bytes:,} bytes; limits.max_state_bytes leaves {cap:,} for it"
                + (f", and the archive could not take its older steps: {trouble}" if trouble else "."),
            )

    # ---- ending

    def _fail(self, error_type: ErrorType, sentence: str) -> None:
        if self._frame.is_unsettled:
            self._tool_calls.answer_unanswered()
            self._frame.settle()
        self._keep_unfinished(error_type)
        if error_type == "refusal" and self._session.rules >= 3:
            self._session.leave_out_turn()
        self._slot.close()
        told = f"Cancelled: {sentence}" if error_type == "cancelled" else sentence
        self._session.fail_turn(error_type, told, now=workflow.now())

    def _keep_unfinished(self, error_type: ErrorType) -> None:
        """Record what the model had written of the answer that the turn ends in, if anything (SES-9)."""
        unfinished, self._frame.unfinished = self._frame.unfinished, None
        if unfinished is None:
            return
        calls = [
            call.model_copy(update={"result": _not_called(call.name)}) for call in self._numbered(unfinished.calls)
        ]
        self._session.add_response(unfinished, calls, now=workflow.now(), interrupted=True, spent=self._take_spent())
        if error_type != "refusal":  # what its vendor did not let pass is not sent to it again
            self._session.show_step(state=None)

    def _log_end(self) -> None:
        view = self._session.view
        workflow.logger.info("Conversation: %d messages (~%d tokens)", view.message_count, view.estimated_tokens)


def _not_called(name: str) -> ToolResult:
    return ToolResult(outcome=f"{name} was not called: the answer was interrupted before", status="cancelled")


def _final_text(response: ModelResponse) -> str:
    """Return the answer. Raises `TurnFailed` where it is none."""
    if response.stop == "max_tokens":
        raise TurnFailed("too_large", "The model's answer was cut at its provider's length limit.")
    if not response.text.strip():
        raise TurnFailed("provider_error", "The model gave an empty answer.")
    return response.text
