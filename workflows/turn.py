"""One turn: ask the model, run the tools it asked for, repeat until it answers (AGT-1).

Every way a turn can end is here: an answer, a `TurnFailed` with one of AGT-9's types, or a stop from outside
(`stop`). Any other exception is our own bug: it fails the workflow task, stays visible, and the turn goes on after
the fix (SES-10).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from math import ceil

from pydantic_core import to_json
from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from activities.failures import describe_failure
    from activities.hand_over import HAND_OVER, RequestKey
    from activities.llm import ModelActivities
    from activities.tools import ToolActivities
    from models.errors import ErrorType
    from models.ids import call_id
    from models.limits import MOST_CALLS_OF_A_STEP, PAGE_BYTES, TURN_BYTES, result_allowance
    from models.model_call import (
        CallPart,
        ModelCall,
        ModelCallOutcome,
        ModelRequest,
        ModelRequestPage,
        ModelResponse,
        ToolInvocation,
        ToolSpec,
    )
    from models.session_state import Session
    from models.tool_policy import decide
    from models.trajectory import ModelStep, ToolCall, ToolResult
    from workflows import activity_options

_REPEATED_ONCE = {"stale_reasoning", "digest_mismatch"}
"""What a changed request is tried against, once for each model call (AGT-9)."""

_NOT_REPEATED: dict[str, tuple[ErrorType, str]] = {
    "context_too_long": ("context_too_long", "The conversation is too long for the model."),
    "stale_reasoning": ("bad_request", "The model's provider refused its own reasoning, and the request without it."),
    "digest_mismatch": ("internal", "The model's context could not be handed over unchanged; see the worker's log."),
}


class TurnFailed(Exception):
    """Ends the turn with an `error_type` and a sentence for people."""

    def __init__(self, error_type: ErrorType, sentence: str) -> None:
        """Keep what the turn is to record."""
        super().__init__(sentence)
        self.error_type = error_type
        self.sentence = sentence


@dataclass(frozen=True)
class OpenRequest:
    """A model request that is not answered yet: kept unchanged, whatever happens to the view meanwhile (AGT-2)."""

    number: int
    request: ModelRequest
    digest: str
    message_count: int
    estimated_tokens: int

    def page(self, offset: int) -> ModelRequestPage:
        """Return the messages from `offset` on that fit in about 1 MB."""
        end, room = offset, PAGE_BYTES
        while end < len(self.request.messages):
            room -= len(self.request.messages[end].model_dump_json().encode())
            if room < 0 and end > offset:
                break
            end += 1
        return ModelRequestPage(
            head=self.request.head if offset == 0 else None,
            messages=self.request.messages[offset:end],
            next_offset=end if end < len(self.request.messages) else None,
            digest=self.digest,
        )


class Turn:
    """The running turn of a session."""

    def __init__(self, session: Session, *, on_change: Callable[[], None]) -> None:
        """Lead the session's running turn; `on_change` is called whenever there is something new to show."""
        self._session = session
        self._on_change = on_change
        self._limits = session.config.limits
        self._deadline = workflow.now() + timedelta(seconds=self._limits.turn_timeout)
        self._model = session.config.model
        self._policy = session.config.tool_policy
        self._task: asyncio.Task[None] | None = None
        self._has_begun = False
        self._stop_reason: str | None = None
        self._steps = 0
        self._calls = 0
        self._history = session.config.history
        self._unsettled: ModelResponse | None = None
        self._started_calls: set[str] = set()
        self.open_request: OpenRequest | None = None

    # ---- from outside

    async def finished(self) -> None:
        """Lead the turn to its end. When cancelled, the turn is stopped and ends in good order first (SES-9)."""
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
        self._stop_reason = self._stop_reason or reason
        # A task that is cancelled before its first step never runs, and the turn would never end. One that is told
        # in the moment its activity completes may not hear it: it looks at the reason before it waits again.
        if self._task and self._has_begun:
            self._task.cancel()

    # ---- the loop

    async def _run(self) -> None:
        self._has_begun = True
        try:
            self._stop_if_told()
            answer = await self._answer()
        except TurnFailed as failure:
            self._fail(failure.error_type, failure.sentence)
        except asyncio.CancelledError:
            if self._stop_reason is None:
                raise
            self._fail("cancelled", self._stop_reason)
        else:
            self._session.complete_turn(answer, now=workflow.now())
        self._log_end()
        self._on_change()

    async def _answer(self) -> str:
        await self._know_tools()
        while self._steps < self._limits.max_steps:
            self._steps += 1
            self._stop_if_told()
            self._session.steer_turn(now=workflow.now(), room=TURN_BYTES - self._held_bytes())
            response = await self._ask_model()
            step = self._record(response)
            if not step.tool_calls:
                return self._final_text(response)
            await self._run_tools(step)
            self._check_size()
        raise TurnFailed(
            "max_steps", f"The turn took {self._steps} steps without an answer; limits.max_steps ends it there."
        )

    def _record(self, response: ModelResponse) -> ModelStep:
        calls = [] if response.stop == "max_tokens" else self._numbered(response.calls)
        step = self._session.add_response(response, calls, now=workflow.now())
        self._unsettled = response
        if not calls:
            self._settle()
        self._on_change()
        return step

    def _final_text(self, response: ModelResponse) -> str:
        if response.stop == "max_tokens":
            raise TurnFailed("too_large", "The model's answer was cut at its provider's length limit.")
        if not response.text.strip():
            raise TurnFailed("provider_error", "The model gave an empty answer.")
        return response.text

    def _numbered(self, parts: list[CallPart]) -> list[ToolCall]:
        return [
            ToolCall(
                id=call_id(self._session.turn_count, self._steps, index),
                name=part.name,
                args=part.args,
                provider_call_id=part.id,
            )
            for index, part in enumerate(parts)
        ]

    def _check_size(self) -> None:
        held = self._held_bytes()
        if held > TURN_BYTES:
            raise TurnFailed(
                "too_large", f"The turn holds {held:,} bytes; a turn may hold {TURN_BYTES:,}. Ask for less."
            )

    def _held_bytes(self) -> int:
        return len(to_json(self._session.running_turn))

    # ---- asking the model

    async def _know_tools(self) -> None:
        """Read the tools once and freeze them: a changed list would change every request's prefix (AGT-6)."""
        if self._session.tools is None:
            try:
                listed = await workflow.execute_activity_method(
                    ToolActivities.list_tools,
                    start_to_close_timeout=activity_options.TOOL_LIST_TIMEOUT,
                    schedule_to_close_timeout=self._remaining(),
                    heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
                    retry_policy=activity_options.TOOL_LIST_RETRIES,
                    summary="tools of this session",
                )
            except ActivityError as error:
                raise self._failure(error, of="The session's tools could not be read") from error
            self._session.tools = listed.tools

    async def _ask_model(self) -> ModelResponse:
        """Return the model's answer, waiting and repeating as `activities/failures.py` says (AGT-9)."""
        rounds, repeated = 0, set[str]()
        self._open_new_request()
        while True:
            outcome = await self._call_model(rounds)
            while outcome.wait_seconds is not None:
                await self._wait(outcome.wait_seconds)
                rounds += 1
                outcome = await self._call_model(rounds)
            if outcome.response is not None:
                self._close_request()
                return outcome.response
            if outcome.repeat in repeated or outcome.repeat not in _REPEATED_ONCE:
                raise TurnFailed(*_NOT_REPEATED[outcome.repeat or "digest_mismatch"])
            repeated.add(outcome.repeat)
            if outcome.repeat == "stale_reasoning":
                self._session.view.open_segment()
            self._open_new_request()

    def _open_new_request(self) -> None:
        session = self._session
        self._close_request()
        eviction = session.make_room(self._history)
        if eviction:
            workflow.logger.info(
                "Trimmed conversation: %d messages removed, %d kept (~%d tokens)",
                eviction.evicted,
                eviction.preserved,
                eviction.estimated_tokens,
            )
        if session.approaches_limit(self._history):
            workflow.logger.warning(
                "Conversation approaching limit (%d/%d messages)",
                session.view.message_count,
                self._history.max_messages,
            )
        self.open_request = OpenRequest(
            number=session.open_request(),
            request=session.view.request(session.head),
            digest=session.view.digest(session.head),
            message_count=session.view.message_count,
            estimated_tokens=session.view.estimated_tokens,
        )

    async def _call_model(self, rounds: int) -> ModelCallOutcome:
        self._stop_if_told()
        opened = self._opened()
        self._hand_over(opened)
        try:
            return await workflow.execute_activity_method(
                ModelActivities.call_model,
                ModelCall(
                    turn=self._session.turn_count,
                    step=self._steps,
                    request=opened.number,
                    model=self._model,
                    digest=opened.digest,
                    round=rounds,
                ),
                start_to_close_timeout=timedelta(seconds=self._limits.model_timeout),
                schedule_to_close_timeout=self._remaining(),
                heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
                retry_policy=activity_options.MODEL_RETRIES,
                summary=self._call_summary(opened),
            )
        except ActivityError as error:
            raise self._failure(error) from error

    def _hand_over(self, opened: OpenRequest) -> None:
        # Written only, and not while replaying: nothing the workflow does may depend on this process (AGT-2).
        if not workflow.unsafe.is_replaying():
            HAND_OVER.put(self._key(opened), opened.request, size=4 * opened.estimated_tokens)

    def _close_request(self) -> None:
        if self.open_request and not workflow.unsafe.is_replaying():
            HAND_OVER.discard(self._key(self.open_request))
        self.open_request = None

    def _opened(self) -> OpenRequest:
        if self.open_request is None:
            raise RuntimeError("no model request is open")
        return self.open_request

    def _key(self, opened: OpenRequest) -> RequestKey:
        return RequestKey(workflow.info().run_id, opened.number, opened.digest)

    def _call_summary(self, opened: OpenRequest) -> str:
        return (
            f"{self._model.partition(':')[2] or self._model} · turn {self._session.turn_count} · step {self._steps} · "
            f"{opened.message_count} messages, ~{_short(opened.estimated_tokens)} tokens"
        )

    async def _wait(self, seconds: float) -> None:
        """Sleep until the model may be asked again; shown as `waiting_retry` (AGT-9)."""
        until = workflow.now() + timedelta(seconds=seconds)
        if until >= self._deadline:
            raise self._out_of_time()
        self._stop_if_told()
        self._session.wait_until(until)
        self._on_change()
        try:
            await workflow.sleep(seconds, summary=f"{self._model} asked for {seconds:g} s of patience")
        finally:
            self._session.wait_until(None)
            self._on_change()

    # ---- running tools

    async def _run_tools(self, step: ModelStep) -> None:
        """Give every call of the step its result; at most `max_parallel_tools` run at once (AGT-1)."""
        self._calls += len(step.tool_calls)
        if self._calls > self._limits.max_tool_calls:
            raise TurnFailed(
                "budget",
                f"The turn asked for {self._calls} tool calls; limits.max_tool_calls allows "
                f"{self._limits.max_tool_calls}.",
            )
        if len(step.tool_calls) > MOST_CALLS_OF_A_STEP:
            raise TurnFailed(
                "budget", f"One step asked for {len(step.tool_calls)} tool calls; {MOST_CALLS_OF_A_STEP} are taken."
            )
        gate = asyncio.Semaphore(self._limits.max_parallel_tools)
        allowance = result_allowance(self._held_bytes(), len(step.tool_calls))
        running = [asyncio.create_task(self._run_tool(call, gate, allowance)) for call in step.tool_calls]
        try:
            await asyncio.gather(*running)
        except (asyncio.CancelledError, TurnFailed):
            # None may outlive the step: its late result would be taken for another step's.
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            raise
        self._settle()

    async def _run_tool(self, call: ToolCall, gate: asyncio.Semaphore, allowance: int) -> None:
        refused = self._refuse_call(call)
        if refused:
            result = refused
        else:
            async with gate:
                result = await self._execute(call, allowance)
        self._session.add_result(call.id, result)
        self._on_change()

    def _refuse_call(self, call: ToolCall) -> ToolResult | None:
        """Return the result of a call that is not run: unknown, malformed or denied (AGT-7, AGT-8)."""
        tool = self._tool(call.name)
        if tool is None:
            names = ", ".join(tool.name for tool in self._session.tools or []) or "none"
            return ToolResult(outcome=f"Unknown tool {call.name!r}", content=f"Tools: {names}", status="error")
        if isinstance(call.args, str):
            return ToolResult(
                outcome=f"The arguments of {call.name} are no JSON object", content=call.args[:500], status="error"
            )
        if decide(self._policy, tool) == "deny":
            return ToolResult(outcome=f"{call.name} is denied by this session's tool policy", status="denied")
        return None

    async def _execute(self, call: ToolCall, allowance: int) -> ToolResult:
        self._stop_if_told()
        self._started_calls.add(call.id)
        repeatable = self._is_repeatable(call.name)
        try:
            return await workflow.execute_activity_method(
                ToolActivities.call_tool,
                ToolInvocation(
                    call_id=call.id,
                    name=call.name,
                    args=call.args if isinstance(call.args, dict) else {},
                    workspace=self._session.config.workspace,
                    max_chars=self._limits.max_tool_result_chars,
                    max_bytes=allowance,
                ),
                start_to_close_timeout=timedelta(seconds=self._limits.tool_timeout),
                schedule_to_close_timeout=self._remaining(),
                heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
                retry_policy=(
                    activity_options.REPEATABLE_TOOL_RETRIES if repeatable else activity_options.AT_MOST_ONCE
                ),
                summary=f"{call.name} · turn {self._session.turn_count} · step {self._steps}",
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise asyncio.CancelledError from error
            return _result_of_failure(call.name, error, repeatable=repeatable)

    def _settle(self) -> None:
        """Let the model see the newest step: from here every call of it has a result."""
        if self._unsettled is not None:
            self._session.show_step(state=self._unsettled.state)
            self._unsettled = None

    def _settle_unanswered(self) -> None:
        """Give every call that got no result one that is true, so that what the model sees next is valid (SES-9)."""
        if self._unsettled is not None:
            for call in self._session.newest_step().tool_calls:
                if call.result is None:
                    self._session.add_result(call.id, self._unanswered(call))
            self._settle()

    def _unanswered(self, call: ToolCall) -> ToolResult:
        if call.id in self._started_calls and not self._is_repeatable(call.name):
            return _outcome_unknown(call.name, "the turn ended first")
        return ToolResult(outcome=f"{call.name} was cancelled", status="cancelled")

    def _tool(self, name: str) -> ToolSpec | None:
        return next((tool for tool in self._session.tools or [] if tool.name == name), None)

    def _is_repeatable(self, name: str) -> bool:
        tool = self._tool(name)
        return tool is not None and tool.effect != "at_most_once"

    # ---- ending

    def _fail(self, error_type: ErrorType, sentence: str) -> None:
        self._settle_unanswered()
        self._close_request()
        told = f"Cancelled: {sentence}" if error_type == "cancelled" else sentence
        self._session.fail_turn(error_type, told, now=workflow.now())

    def _failure(self, error: ActivityError, *, of: str | None = None) -> BaseException:
        """Say how a failed activity ends the turn."""
        if is_cancelled_exception(error):
            return asyncio.CancelledError()
        if isinstance(error.cause, ActivityTimeout) and workflow.now() >= self._deadline:
            return self._out_of_time()
        error_type, sentence = describe_failure(error)
        return TurnFailed(error_type, f"{of}." if of else sentence)

    def _remaining(self) -> timedelta:
        """Time left until `turn_timeout`: it bounds activities, so that it costs no timer of its own."""
        remaining = (self._deadline - workflow.now()).total_seconds()
        if remaining <= 0:
            raise self._out_of_time()
        return timedelta(seconds=ceil(remaining))

    def _out_of_time(self) -> TurnFailed:
        return TurnFailed(
            "budget", f"The turn took longer than limits.turn_timeout allows ({self._limits.turn_timeout:g} s)."
        )

    def _stop_if_told(self) -> None:
        if self._stop_reason is not None:
            raise asyncio.CancelledError

    def _log_end(self) -> None:
        view = self._session.view
        workflow.logger.info("Conversation: %d messages (~%d tokens)", view.message_count, view.estimated_tokens)


def _result_of_failure(name: str, error: ActivityError, *, repeatable: bool) -> ToolResult:
    timed_out = isinstance(error.cause, ActivityTimeout)
    if not repeatable:
        return _outcome_unknown(name, "it did not finish in time" if timed_out else "the worker failed while it ran")
    why = "it did not finish in time" if timed_out else "the worker failed while it ran"
    return ToolResult(outcome=f"{name} failed: {why}", status="error")


def _outcome_unknown(name: str, why: str) -> ToolResult:
    return ToolResult(
        outcome=f"Outcome unknown: {name} was started, and {why}",
        content="It may have had its effect. It is not repeated by itself.",
        status="outcome_unknown",
    )


def _short(tokens: int) -> str:
    return str(tokens) if tokens < 1000 else f"{tokens / 1000:.1f}k"
