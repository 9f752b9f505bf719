"""Running the tools that a step asked for: which are run, how many at once, and what became of each (AGT-1, AGT-7)."""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.tools import ToolActivities
    from turnkeeper.models.errors import TurnExit
    from turnkeeper.models.limits import LARGE_RESULT_BYTES
    from turnkeeper.models.session.approvals import rejection_of
    from turnkeeper.models.session.tool_policy import ToolDecision, decide
    from turnkeeper.models.transcript.large_texts import bound_result
    from turnkeeper.models.transcript.model_call import ToolInvocation, ToolSpec
    from turnkeeper.models.transcript.trajectory import ModelStep, ToolCall, ToolResult
    from turnkeeper.workflows import activity_options
    from turnkeeper.workflows.tasks.sub_task_runner import SubTaskRunner
    from turnkeeper.workflows.turn.approvals import Approvals
    from turnkeeper.workflows.turn.task_tools import TaskTools
    from turnkeeper.workflows.turn.turn_context import TurnContext, check_cancelled

RULES_ASKING_BEFORE_WRITES = 2
"""From these default rules on, built-in tools that write are asked about as well (AGT-8)."""


class ToolCalls:
    """The tool calls of a turn."""

    def __init__(self, context: TurnContext, runner: SubTaskRunner) -> None:
        self._context = context
        self._task_tools = TaskTools(context, runner)
        self._session = context.session
        self._approvals = Approvals(context)
        self._started: set[str] = set()

    def check(self, step: ModelStep) -> None:
        """Raise `TurnFailed` where the calls of `step`, which are counted already, pass the turn's budget or room."""
        turn = self._context.turn
        turn.budgets.check_calls(turn.calls)
        asks = any(map(self._needs_approval, step.tool_calls))
        turn.check_room_for_results(len(step.tool_calls), asks=asks, cap=self._session.room.turn_cap)

    async def run(self) -> None:
        """Give every call of the newest step that has none its result; `max_parallel_tools` run at once (AGT-1).

        Where the run is due for the next one, some may be left without. Nothing is in flight afterwards.
        """
        pending = self._context.turn.pending_calls
        async with self._approvals.asked_for([call for call in pending if self._needs_approval(call)]):
            await self._run_all(pending)

    async def _run_all(self, calls: list[ToolCall]) -> None:
        turn = self._context.turn
        gate = asyncio.Semaphore(turn.limits.max_parallel_tools)
        inline_bytes = turn.result_inline_bytes(len(calls))
        running = [asyncio.create_task(self._run_tool(call, gate, inline_bytes)) for call in calls]
        try:
            await asyncio.gather(*running)
        except (asyncio.CancelledError, TurnExit):
            # None may outlive the step: its late result would be taken for another step's.
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            raise

    def answer_unanswered(self) -> None:
        """Give every call that got no result one that is true, so that what the model sees next is valid (SES-9)."""
        for call in self._context.turn.pending_calls:
            self._session.add_result(call.id, self._unanswered(call))

    async def _run_tool(self, call: ToolCall, gate: asyncio.Semaphore, inline_bytes: int) -> None:
        """Give a call its result; or leave it without one, where the next run is to go on with it."""
        refusal = self._refuse_call(call)
        if refusal is None and self._needs_approval(call):
            await self._approvals.wait_for_decision(call.id)
            decided = self._context.turn.call(call.id)
            if decided.awaits_approval:
                return
            refusal = rejection_of(decided)
        if refusal:
            result = bound_result(refusal, most_bytes=self._context.turn.limits.small_text_bytes)
        else:
            async with gate:
                if self._context.is_due_to_pause():
                    return
                result = await self._execute(call, inline_bytes)
        self._session.add_result(call.id, result)
        self._context.on_change()

    def _refuse_call(self, call: ToolCall) -> ToolResult | None:
        """Return the result of a call that is not run: unknown, malformed or denied (AGT-7, AGT-8)."""
        tool = self._session.find_tool(call.name)
        if tool is None:
            names = ", ".join(tool.name for tool in self._session.offered_tools) or "none"
            return ToolResult(outcome=f"Unknown tool {call.name!r}", content=f"Tools: {names}", status="error")
        if isinstance(call.args, str):
            return ToolResult(
                outcome=f"The arguments of {call.name} are no JSON object", content=call.args, status="error"
            )
        if self._decide(tool) == "deny":
            return ToolResult(outcome=f"{call.name} is denied by this session's tool policy", status="denied")
        return None

    def _needs_approval(self, call: ToolCall) -> bool:
        """Return whether a call runs only once a person has decided on it; one that was asked about stays so."""
        if call.approval is not None or self._refuse_call(call):
            return call.approval is not None
        tool = self._session.find_tool(call.name)
        return tool is not None and self._decide(tool) == "ask"

    def _decide(self, tool: ToolSpec) -> ToolDecision:
        session = self._session
        return decide(
            self._context.turn.tool_policy,
            tool,
            unattended=session.config.unattended,
            allowed=session.tools.allowances,
            trusts_built_in=session.facts.default_rules < RULES_ASKING_BEFORE_WRITES,
        )

    async def _execute(self, call: ToolCall, inline_bytes: int) -> ToolResult:
        self._context.check_stop()
        if self._task_tools.has(call.name):
            return await self._task_tools.run(call, inline_bytes=inline_bytes)
        turn, time_left = self._context.turn, self._context.time_left()
        self._started.add(call.id)
        repeatable = self._is_repeatable(call.name)
        tool = self._session.find_tool(call.name)
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
                    max_chars=turn.limits.max_tool_result_chars,
                    max_bytes=LARGE_RESULT_BYTES,
                    inline_bytes=inline_bytes,
                ),
                start_to_close_timeout=timedelta(seconds=turn.limits.tool_timeout),
                schedule_to_close_timeout=time_left,
                heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
                retry_policy=(
                    activity_options.REPEATABLE_TOOL_RETRIES if repeatable else activity_options.AT_MOST_ONCE
                ),
                summary=f"{call.name} · turn {self._session.turn_count} · step {turn.steps}",
            )
        except ActivityError as error:
            check_cancelled(error)
            return _result_of_failure(call.name, error, repeatable=repeatable)

    def _unanswered(self, call: ToolCall) -> ToolResult:
        if call.id in self._started and not self._is_repeatable(call.name):
            return _outcome_unknown(call.name, "the turn ended first")
        return ToolResult(outcome=f"{call.name} was cancelled", status="cancelled")

    def _is_repeatable(self, name: str) -> bool:
        tool = self._session.find_tool(name)
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
