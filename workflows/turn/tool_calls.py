"""Runs the tool calls of a step, after the decisions of people (AGT-1, AGT-7, AGT-8).

The effect of a tool decides if Temporal runs a call again whose worker died (`_is_repeatable`). All approvals of a step
are requested at once, so one timer serves them all. Each call then waits on its own, while others run, until a person
decides through the update `resolve_approval`, or the time is over. A waiting call has no activity, so the session can
continue as new meanwhile: calls, requests and decisions are part of the carried state.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.failures import has_worker_died
    from turnkeeper.activities.tools import ToolActivities
    from turnkeeper.models.errors import TurnExitError
    from turnkeeper.models.limits import LARGE_RESULT_BYTES
    from turnkeeper.models.session.approvals import NO_DIFFERENCE, approved_file, rejection_result
    from turnkeeper.models.transcript.conversation import FileChange, ModelStep, ToolCall, ToolResult
    from turnkeeper.models.transcript.large_texts import bound_result
    from turnkeeper.models.transcript.model_call import PreviewCall, ToolInvocation
    from turnkeeper.workflows import activity_options
    from turnkeeper.workflows.turn.turn_scope import TurnScope, check_cancelled


class Approvals:
    """The approvals of a turn's newest step."""

    def __init__(self, scope: TurnScope) -> None:
        self._scope = scope
        self._session = scope.session
        self._expiry: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def requested(self, calls: list[ToolCall], changes: Mapping[str, FileChange]) -> AsyncIterator[None]:
        """Request approvals of `calls`, unless requested before; inside the block, pending ones expire.

        `changes`: what some of them would change in a file.
        """
        new = [call.id for call in calls if call.approval is None]
        if new:
            self._session.turn_slot.change(self._scope.turn.with_approvals_asked(new, changes, now=workflow.now()))
            self._scope.refresh_ui()
        self._expiry = asyncio.create_task(self._expire())
        try:
            yield
        finally:
            self._expiry.cancel()

    async def wait_for_decision(self, call_id: str) -> None:
        """Wait until a call is decided, or continue-as-new is due."""
        await workflow.wait_condition(lambda: self._may_go_on(call_id))
        if self._is_awaited(call_id) and self._expiry and self._expiry.done():
            self._expiry.result()  # raises: only a bug ends it early

    def _may_go_on(self, call_id: str) -> bool:
        is_over = self._expiry is not None and self._expiry.done()
        return is_over or not self._is_awaited(call_id) or self._scope.is_due_for_new_run()

    def _is_awaited(self, call_id: str) -> bool:
        return self._scope.turn.call(call_id).awaits_approval

    async def _expire(self) -> None:
        """Expire pending approvals at their time; all were requested at the same moment."""
        while self._scope.turn.awaits_approval:
            awaiting = [call for call in self._scope.turn.newest_step.tool_calls if call.awaits_approval]
            until = min(call.approval.expires_at for call in awaiting if call.approval)
            seconds = max(0.0, (until - workflow.now()).total_seconds())
            await workflow.sleep(seconds, summary=self._summary(awaiting))
            self._session.turn_slot.change(self._scope.turn.with_approvals_expired(workflow.now()))
            self._scope.refresh_ui()

    def _summary(self, awaiting: list[ToolCall]) -> str:
        """Return the timer's summary for the Web UI, within Temporal's length limit."""
        distinct = ", ".join(dict.fromkeys(call.name for call in awaiting))
        names = distinct if len(distinct) <= 80 else f"{len(awaiting)} tool calls"
        return f"approval of {names} · turn {self._session.transcript.count} · step {self._scope.turn.steps}"


_QUEUE_TIMEOUTS = (TimeoutType.SCHEDULE_TO_START, TimeoutType.SCHEDULE_TO_CLOSE)
"""Timeouts that can end an activity before a worker has it."""


class ToolCalls:
    """The tool calls of a turn."""

    def __init__(self, scope: TurnScope) -> None:
        self._scope = scope
        self._session = scope.session
        self._approvals = Approvals(scope)
        self._scheduled: set[str] = set()
        self.reads: dict[str, ToolResult] = {}
        """Results of quick reads by call id; the model call's activity ran them (OPS-8)."""

    async def check(self, step: ModelStep, reserve: Callable[[int], Awaitable[None]]) -> None:
        """Raise `TurnFailedError` if the turn has no budget or room for the calls of `step`.

        `reserve` makes as much room for their results as it can.
        """
        turn = self._scope.turn
        turn.budgets.check_calls(turn.calls)
        asking, calls = list(filter(self._needs_approval, step.tool_calls)), len(step.tool_calls)
        kinds = {"asks": bool(asking), "shows_changes": any(map(self._writes_a_file, asking))}
        await reserve(turn.bytes.of_results(calls, **kinds))
        self._scope.turn.bytes.check_room_for_results(calls, **kinds, cap=self._session.room.turn_cap)

    async def run(self) -> None:
        """Run the pending calls of the newest step, `max_parallel_tools` at a time (AGT-1).

        If continue-as-new is due, some may stay without a result. No activity is running afterwards.
        """
        pending = self._scope.turn.pending_calls
        asking = list(filter(self._needs_approval, pending))
        writing = [call for call in asking if call.approval is None and self._writes_a_file(call)]
        if writing and self._scope.is_due_to_pause():
            return  # the next run asks
        changes = await self._preview_changes(writing) if writing else {}
        async with self._approvals.requested(asking, changes):
            await self._run_all(pending)

    async def _preview_changes(self, calls: list[ToolCall]) -> dict[str, FileChange]:
        """Return what each of `calls` would change in its file, by id; a note where no worker can tell in time."""
        max_bytes = self._scope.turn.bytes.diff(len(calls))
        try:
            previews = await workflow.execute_activity_method(
                ToolActivities.preview_changes,
                PreviewCall(calls=list(map(self._invocation, calls)), max_bytes=max_bytes),
                start_to_close_timeout=activity_options.PREVIEW_TIMEOUT,
                schedule_to_close_timeout=min(activity_options.PREVIEW_PATIENCE, self._scope.time_left()),
                heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
                retry_policy=activity_options.PREVIEW_RETRIES,
                summary=f"changes of {len(calls)} files" if len(calls) > 1 else f"change of a file · {calls[0].id}",
            )
        except ActivityError as error:
            check_cancelled(error)
            return {call.id: FileChange(note=NO_DIFFERENCE) for call in calls}
        return previews.changes

    async def _run_all(self, calls: list[ToolCall]) -> None:
        turn = self._scope.turn
        gate = asyncio.Semaphore(turn.limits.max_parallel_tools)
        inline_bytes = turn.bytes.inline_result(len(calls))
        running = [asyncio.create_task(self._run_tool(call, gate, inline_bytes)) for call in calls]
        try:
            await asyncio.gather(*running)
        except (asyncio.CancelledError, TurnExitError):
            # None may outlive the step: its late result would go to another step.
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            raise

    def answer_unanswered(self) -> None:
        """Give every call without a result a truthful one, so that the model's next request is valid (SES-9)."""
        for call in self._scope.turn.pending_calls:
            self._session.add_result(call.id, self._unanswered(call))

    async def _run_tool(self, call: ToolCall, gate: asyncio.Semaphore, inline_bytes: int) -> None:
        """Run a call and record its result; if continue-as-new is due, leave the call to the next run."""
        rejection = self._reject_call(call)
        if rejection is None and self._needs_approval(call):
            await self._approvals.wait_for_decision(call.id)
            call = self._scope.turn.call(call.id)
            if call.awaits_approval:
                return
            rejection = rejection_result(call)
        if rejection:
            result = bound_result(rejection, max_bytes=self._scope.turn.limits.small_text_bytes)
        else:
            async with gate:
                if self._scope.is_due_to_pause():
                    return
                result = await self._execute(call, inline_bytes)
        self._session.add_result(call.id, result)
        self._scope.refresh_ui()

    def _reject_call(self, call: ToolCall) -> ToolResult | None:
        """Return the result of a call that can't run: unknown, malformed or denied; else `None` (AGT-7, AGT-8)."""
        tool = self._session.tools.find(call.name)
        if tool is None:
            names = ", ".join(tool.name for tool in self._session.tools.offered) or "none"
            return ToolResult(outcome=f"Unknown tool {call.name!r}", content=f"Tools: {names}", status="error")
        if isinstance(call.args, str):
            return ToolResult(
                outcome=f"The arguments of {call.name} are not a JSON object", content=call.args, status="error"
            )
        if self._scope.decide(tool) == "deny":
            return ToolResult(outcome=f"{call.name} is denied by this session's tool policy", status="denied")
        return None

    def _needs_approval(self, call: ToolCall) -> bool:
        """Return whether a call needs a person's approval; this stays true after it was requested."""
        if call.approval is not None:
            return True
        if self._reject_call(call):
            return False
        tool = self._session.tools.find(call.name)
        return tool is not None and self._scope.decide(tool) == "ask"

    def _writes_a_file(self, call: ToolCall) -> bool:
        tool = self._session.tools.find(call.name)
        return tool is not None and tool.writes_a_file

    async def _execute(self, call: ToolCall, inline_bytes: int) -> ToolResult:
        self._scope.check_stop()
        for part in self._scope.parts:
            if part.runs(call.name):
                return await part.run(call, inline_bytes=inline_bytes)
        if read := self.reads.pop(call.id, None):
            return read
        turn, time_left = self._scope.turn, self._scope.time_left()
        self._scheduled.add(call.id)
        repeatable = self._is_repeatable(call.name)
        invocation = self._invocation(call)
        tool_timeout = timedelta(seconds=turn.limits.tool_timeout)
        try:
            return await workflow.execute_activity_method(
                ToolActivities.call_tool,
                invocation.model_copy(update={"inline_bytes": inline_bytes}),
                # A foreign server that reports progress may take longer: the toolbox counts.
                start_to_close_timeout=tool_timeout if invocation.patience is None else time_left,
                schedule_to_close_timeout=time_left,
                heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
                retry_policy=(
                    activity_options.REPEATABLE_TOOL_RETRIES if repeatable else activity_options.AT_MOST_ONCE
                ),
                summary=f"{call.name} · {call.id}",
            )
        except ActivityError as error:
            check_cancelled(error)
            return _result_of_failure(call.name, error, repeatable=repeatable)

    def _invocation(self, call: ToolCall) -> ToolInvocation:
        tool = self._session.tools.find(call.name)
        return ToolInvocation(
            call_id=call.id,
            name=call.name,
            server=tool.server if tool else "",
            built_in=tool is not None and tool.built_in,
            tool_digest=tool.digest if tool and tool.server else "",
            args=call.args if isinstance(call.args, dict) else {},
            args_blob=call.args_blob,
            file_sha256=approved_file(call),
            user=self._session.config.user if tool and tool.server else None,
            agent=self._scope.turn.message.agent if tool and tool.server else None,
            patience=self._scope.turn.limits.tool_timeout if tool and tool.server else None,
            workspace=self._session.config.workspace,
            max_chars=self._scope.turn.limits.max_tool_result_chars,
            max_bytes=LARGE_RESULT_BYTES,
        )

    def _unanswered(self, call: ToolCall) -> ToolResult:
        may_have_acted = any(part.may_have_acted(call.id) for part in self._scope.parts)
        if may_have_acted or (call.id in self._scheduled and not self._only_reads(call.name)):
            return _outcome_unknown(f"the turn ended before {call.name} returned")
        return ToolResult(outcome=f"{call.name} was cancelled", status="cancelled")

    def _only_reads(self, name: str) -> bool:
        tool = self._session.tools.find(name)
        return tool is not None and tool.effect == "read"

    def _is_repeatable(self, name: str) -> bool:
        tool = self._session.tools.find(name)
        return tool is not None and tool.effect != "at_most_once"


def _result_of_failure(name: str, error: ActivityError, *, repeatable: bool) -> ToolResult:
    if repeatable:
        return ToolResult(outcome=f"{name} failed: {_loss_reason(error)}", status="error")
    if not _has_started(error):
        return ToolResult(outcome=f"{name} was not started: no worker was free in time", status="error")
    return _outcome_unknown(f"{name} was started, but {_loss_reason(error)}")


def _loss_reason(error: ActivityError) -> str:
    if has_worker_died(error):
        return "its worker died while it ran"
    return "it did not finish in time" if isinstance(error.cause, ActivityTimeout) else "the worker failed while it ran"


def _has_started(error: ActivityError) -> bool:
    """Return whether Temporal gave the last attempt to a worker. Only a timeout of the queue says that it did not."""
    cause = error.cause
    may_have_waited = isinstance(cause, ActivityTimeout) and cause.type in _QUEUE_TIMEOUTS
    return not may_have_waited or error.started_event_id != 0


def _outcome_unknown(why: str) -> ToolResult:
    return ToolResult(
        outcome=f"Outcome unknown: {why}",
        content="It may have had its effect. It is not repeated by itself.",
        status="outcome_unknown",
    )
