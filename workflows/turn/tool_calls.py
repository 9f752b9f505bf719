"""Running the tools that a step asked for: which are run, how many at once, and what became of each (AGT-1, AGT-7)."""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.tools import ToolActivities
    from turnkeeper.models.errors import TurnFailed
    from turnkeeper.models.limits import LARGE_RESULT_BYTES
    from turnkeeper.models.session.approvals import APPROVAL_BYTES
    from turnkeeper.models.session.tool_policy import ToolDecision, decide
    from turnkeeper.models.transcript.large_texts import bound_result
    from turnkeeper.models.transcript.model_call import ToolInvocation, ToolSpec
    from turnkeeper.models.transcript.trajectory import ModelStep, ToolCall, ToolResult
    from turnkeeper.workflows import activity_options
    from turnkeeper.workflows.turn.approvals import Approvals
    from turnkeeper.workflows.turn.turn_frame import Frame

RULES_ASKING_BEFORE_WRITES = 2
"""From these default rules on, built-in tools that write are asked about as well (AGT-8)."""

RESULT_BYTES = 200
"""What a result takes beside its content."""


class ToolCalls:
    """The tool calls of a turn."""

    def __init__(self, frame: Frame) -> None:
        """Run tools for the turn of `frame`."""
        self._frame = frame
        self._session = frame.session
        self._approvals = Approvals(frame)
        self._started: set[str] = set()

    def count(self, step: ModelStep) -> None:
        """Count the step's calls towards the turn's limits. Raises `TurnFailed` over them."""
        frame, calls = self._frame, len(step.tool_calls)
        frame.calls += calls
        frame.budgets.check_calls(frame.calls)
        a_result = frame.limits.small_text_bytes + RESULT_BYTES
        if any(map(self._needs_approval, step.tool_calls)):
            a_result += APPROVAL_BYTES
        if self._session.turn_bytes + calls * a_result > frame.limits.least_turn_bytes:
            most = (self._session.turn_cap(frame.limits) - self._session.turn_bytes) // a_result
            if calls > most:
                raise TurnFailed(
                    "budget", f"One step asked for {calls} tool calls; the turn has room for {max(0, most)} results."
                )

    async def run(self) -> bool:
        """Give every call of the newest step that has none its result; `max_parallel_tools` run at once (AGT-1).

        `False`: the turn pauses, and some have none yet. Nothing is in flight then.
        """
        waiting = [call for call in self._session.newest_step().tool_calls if call.result is None]
        async with self._approvals.asked_for([call for call in waiting if self._needs_approval(call)]):
            await self._run_all(waiting)
        return all(call.result for call in self._session.newest_step().tool_calls)

    async def _run_all(self, calls: list[ToolCall]) -> None:
        gate = asyncio.Semaphore(self._frame.limits.max_parallel_tools)
        inline_bytes = self._inline_bytes(len(calls))
        running = [asyncio.create_task(self._run_tool(call, gate, inline_bytes)) for call in calls]
        try:
            await asyncio.gather(*running)
        except (asyncio.CancelledError, TurnFailed):
            # None may outlive the step: its late result would be taken for another step's.
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            raise

    def answer_unanswered(self) -> None:
        """Give every call that got no result one that is true, so that what the model sees next is valid (SES-9)."""
        for call in self._session.newest_step().tool_calls:
            if call.result is None:
                self._session.add_result(call.id, self._unanswered(call))

    def _inline_bytes(self, calls: int) -> int:
        """Share what a turn may hold inline fairly among the results of a step (SES-15)."""
        limits, held = self._frame.limits, self._session.turn_bytes
        share = (limits.turn_inline_bytes - held) // max(1, calls)
        return max(limits.small_text_bytes, min(limits.inline_bytes(held), share))

    async def _run_tool(self, call: ToolCall, gate: asyncio.Semaphore, inline_bytes: int) -> None:
        refused = self._refuse_call(call)
        if refused is None and self._needs_approval(call):
            if not await self._approvals.is_decided(call.id):
                return
            refused = self._approvals.rejection(call.id)
        if refused:
            result = bound_result(refused, most_bytes=self._frame.limits.small_text_bytes)
        else:
            async with gate:
                if self._frame.pauses():
                    return
                result = await self._execute(call, inline_bytes)
        self._session.add_result(call.id, result)
        self._frame.on_change()

    def _refuse_call(self, call: ToolCall) -> ToolResult | None:
        """Return the result of a call that is not run: unknown, malformed or denied (AGT-7, AGT-8)."""
        tool = self._session.tools.find(call.name)
        if tool is None:
            names = ", ".join(tool.name for tool in self._session.tools.specs or []) or "none"
            return ToolResult(outcome=f"Unknown tool {call.name!r}", content=f"Tools: {names}", status="error")
        if isinstance(call.args, str):
            return ToolResult(
                outcome=f"The arguments of {call.name} are no JSON object", content=call.args, status="error"
            )
        if self._decide(tool) == "deny":
            return ToolResult(outcome=f"{call.name} is denied by this session's tool policy", status="denied")
        return None

    def _needs_approval(self, call: ToolCall) -> bool:
        """Tell whether a call runs only once a person has decided on it; one that was asked about stays so."""
        if call.approval is not None or self._refuse_call(call):
            return call.approval is not None
        tool = self._session.tools.find(call.name)
        return tool is not None and self._decide(tool) == "ask"

    def _decide(self, tool: ToolSpec) -> ToolDecision:
        session = self._session
        return decide(
            self._frame.terms.tool_policy,
            tool,
            unattended=session.config.unattended,
            allowed=session.tools.allowances,
            trusts_built_in=session.default_rules < RULES_ASKING_BEFORE_WRITES,
        )

    async def _execute(self, call: ToolCall, inline_bytes: int) -> ToolResult:
        frame = self._frame
        frame.stop_if_told()
        remaining = frame.remaining()
        self._started.add(call.id)
        repeatable = self._is_repeatable(call.name)
        tool = self._session.tools.find(call.name)
        try:
            return await workflow.execute_activity_method(
                ToolActivities.call_tool,
                ToolInvocation(
                    call_id=call.id,
                    name=call.name,
                    server=tool.server if tool else "",
                    built_in=tool is not None and tool.built_in,
                    tool_digest=tool.digest if tool and tool.server else "",
                    args=call.args if isinstance(call.args, dict) else {},
                    args_blob=call.args_blob,
                    workspace=self._session.config.workspace,
                    max_chars=frame.limits.max_tool_result_chars,
                    max_bytes=LARGE_RESULT_BYTES,
                    inline_bytes=inline_bytes,
                ),
                start_to_close_timeout=timedelta(seconds=frame.limits.tool_timeout),
                schedule_to_close_timeout=remaining,
                heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
                retry_policy=(
                    activity_options.REPEATABLE_TOOL_RETRIES if repeatable else activity_options.AT_MOST_ONCE
                ),
                summary=f"{call.name} · turn {self._session.turn_count} · step {frame.steps}",
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise asyncio.CancelledError from error
            return _result_of_failure(call.name, error, repeatable=repeatable)

    def _unanswered(self, call: ToolCall) -> ToolResult:
        if call.id in self._started and not self._is_repeatable(call.name):
            return _outcome_unknown(call.name, "the turn ended first")
        return ToolResult(outcome=f"{call.name} was cancelled", status="cancelled")

    def _is_repeatable(self, name: str) -> bool:
        tool = self._session.tools.find(name)
        return tool is not None and tool.effect != "at_most_once"


def _result_of_failure(name: str, error: ActivityError, *, repeatable: bool) -> ToolResult:
    timed_out = isinstance(error.cause, ActivityTimeout)
    why = "it did not finish in time" if timed_out else "the worker failed while it ran"
    if not repeatable:
        return _outcome_unknown(name, why)
    return ToolResult(outcome=f"{name} failed: {why}", status="error")


def _outcome_unknown(name: str, why: str) -> ToolResult:
    return ToolResult(
        outcome=f"Outcome unknown: {name} was started, and {why}",
        content="It may have had its effect. It is not repeated by itself.",
        status="outcome_unknown",
    )
