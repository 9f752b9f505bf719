"""The tools that the session runs itself, `run_task` and `report_progress` (TSK-4, TSK-5), and condensing (CTX-15).

The long texts of a task's history are condensed before the first model call of its first turn. They are cut already:
while this runs, and if it fails, the prompt has the cut texts.
"""

import asyncio
from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    TerminatedError,
    WorkflowAlreadyStartedError,
)

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.failures import describe_failure
    from turnkeeper.features.tasks.activities import HandOffActivities
    from turnkeeper.features.tasks.session.new_sub_task import (
        CondenseCall,
        CondenseOutcome,
        PreparedSubTask,
        PrepareSubTask,
        needs_activity,
        prepare_sub_task,
        sub_task_input,
    )
    from turnkeeper.features.tasks.session.sub_tasks import REPORT_PROGRESS, REPORT_PROGRESS_SPEC, RUN_TASK, TASK_TOOLS
    from turnkeeper.features.tasks.session.task import RunTask, read_progress, read_run_task
    from turnkeeper.features.tasks.session.task_state import TaskOutcome, tool_result_of
    from turnkeeper.features.tasks.session_part import FEATURE, tasks_of
    from turnkeeper.features.tasks.workflow.sub_tasks import (
        SubTaskHandle,
        SubTaskRunner,
        TurnAllowance,
        keep_result,
        prepare_in_activity,
        read_text,
    )
    from turnkeeper.models.errors import RejectedError, TaskValidationError, TurnExitError
    from turnkeeper.models.limits import LARGE_RESULT_BYTES
    from turnkeeper.models.session.messages import SessionEnd, SessionInput, make_title
    from turnkeeper.models.transcript.conversation import BlobRef, CondensedTexts, SubTask, ToolCall, ToolResult
    from turnkeeper.models.transcript.large_texts import fits_inline, resolve_args
    from turnkeeper.models.transcript.notes import history_notes
    from turnkeeper.models.wire import REASON_CHARS
    from turnkeeper.workflows import activity_options
    from turnkeeper.workflows.turn.turn_scope import TurnPart, TurnScope, check_cancelled, spent_usage


async def condense_if_due(scope: TurnScope) -> None:
    """Replace the turn's prompt by one with condensed texts, if it has texts to condense.

    The usage counts towards the turn's budget. If it fails, the turn continues with the cut texts.
    """
    session, task = scope.session, tasks_of(scope.session).own
    texts = task.to_condense
    if texts is None:
        return
    outcome = await _outcome(scope, texts.blob)
    session.turn_slot.add_usage(outcome.usage)
    session.turn_slot.add_usage(outcome.spent)
    if outcome.trouble:
        workflow.logger.warning("Long texts of the task's history are cut, not condensed: %s", outcome.trouble)
    reason = outcome.trouble and outcome.trouble[:REASON_CHARS]
    task.end_condensing(
        outcome.prompt,
        CondensedTexts(condensed=outcome.condensed, cut=max(0, texts.count - outcome.condensed), reason=reason),
    )
    scope.refresh_ui()


async def _outcome(scope: TurnScope, texts: BlobRef) -> CondenseOutcome:
    session = scope.session
    scope.check_stop()
    try:
        return await workflow.execute_activity_method(
            HandOffActivities.condense_history,
            CondenseCall(
                turn=session.transcript.count,
                texts=texts,
                model=scope.turn.model,
                request=session.count_request(),
                max_bytes=scope.turn.limits.prompt_bytes,
                **session.budgets.remaining(),
            ),
            start_to_close_timeout=activity_options.CONDENSE_TIMEOUT,
            schedule_to_close_timeout=min(scope.time_left(), activity_options.CONDENSE_PATIENCE),
            heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
            retry_policy=activity_options.SUMMARY_RETRIES,
            summary="long texts of the task's history",
        )
    except ActivityError as error:
        check_cancelled(error)
        return CondenseOutcome(trouble=describe_failure(error)[1], spent=spent_usage(error))


NOT_PREPARED = "The history could not be ranked or condensed now: its long texts are cut, and its latest messages stay."


class TaskTurn(TurnPart):
    """What tasks add to a turn: their tools, which need no activity, and their budgets."""

    def __init__(self, scope: TurnScope, runner: SubTaskRunner) -> None:
        self._scope = scope
        self._session = scope.session
        self._tasks = tasks_of(scope.session)
        self._runner = runner
        self._allowance = TurnAllowance(scope)
        self._started: set[str] = set()
        """The ids of the calls whose tasks have begun to start: they may have had an effect."""

    async def begin(self) -> None:
        await condense_if_due(self._scope)

    async def draw(self) -> None:
        await self._allowance.draw()

    def runs(self, name: str) -> bool:
        """Return whether `name` is one of these tools; a foreign tool may have its name."""
        own = [REPORT_PROGRESS_SPEC, *self._tasks.unoffered_tools]
        return name in TASK_TOOLS and self._session.tools.find(name) in own

    def may_have_acted(self, call_id: str) -> bool:
        return call_id in self._started

    async def run(self, call: ToolCall, *, inline_bytes: int) -> ToolResult:
        """Run a call of one of these tools. Wrong arguments give an error result."""
        started_at = workflow.now()
        try:
            result = await self._result(call, inline_bytes)
        except RejectedError as rejection:
            result = ToolResult(outcome=f"{call.name}: {rejection.message}", status="error")
        except TaskValidationError as error:
            result = ToolResult(outcome=f"{call.name}: {error} (got {error.value})", status="error")
        duration = round((workflow.now() - started_at).total_seconds() * 1000)
        return result.model_copy(update={"duration_ms": duration})

    async def _result(self, call: ToolCall, inline_bytes: int) -> ToolResult:
        args = await self._arguments(call)
        if call.name == REPORT_PROGRESS:
            self._tasks.own.report(read_progress(args))
            self._scope.refresh_ui()
            return ToolResult(outcome="Progress was reported")
        request = read_run_task(args, handoffs=self._session.config.handoffs)
        allowance, started = self._tasks.allowance, self._tasks.started
        reason = started.rejection(self._scope.turn.limits, depth=allowance.start.depth if allowance else 0)
        if reason:
            return ToolResult(outcome=reason, status="error")
        self._scope.time_left()  # raises if there is none
        prepared = None
        if not needs_activity(self._session, request):
            prepared = prepare_sub_task(self._session, request, now=workflow.now())
        # It is recorded before anything is awaited: then parallel calls can't start more than the limits allow.
        title = request.title or make_title(request.description)
        task = started.start(call_id=call.id, title=title, background=request.background)
        self._scope.refresh_ui()
        try:
            answer = await self._allowance.start_of(task.task_id)
            if answer.rejection:
                started.drop(task.task_id)
                return ToolResult(outcome=answer.rejection, status="error")
            prepared = prepared or await self._prepare(request, task, args)
            if prepared.error:
                self._tasks.discard_task(task.task_id, "failed")
                return ToolResult(outcome=f"{RUN_TASK}: {prepared.error}", status="error")
            seconds_left = self._scope.time_left().total_seconds()
            self._scope.refresh_ui()
            start = sub_task_input(
                self._session, request, task, prepared, portion=answer.granted, seconds_left=seconds_left
            )
        except (asyncio.CancelledError, TurnExitError):
            self._tasks.discard_task(task.task_id, "cancelled")
            raise
        except TaskValidationError:
            self._tasks.discard_task(task.task_id, "failed")
            raise
        return await self._run_task(request, task, start, prepared, inline_bytes)

    async def _prepare(self, request: RunTask, task: SubTask, args: Any) -> PreparedSubTask:
        """Return the context of a recorded task from an activity; if it fails, with texts that are only cut."""
        prepared = await prepare_in_activity(
            PrepareSubTask(task_id=task.task_id, args=args, presets=self._tasks.input.presets, now=workflow.now()),
            time_left=self._scope.time_left(),
        )
        if prepared is None:
            prepared = prepare_sub_task(self._session, request, now=workflow.now())
            prepared = prepared.model_copy(update={"notes": [*prepared.notes, NOT_PREPARED]})
        return prepared

    async def _arguments(self, call: ToolCall) -> object:
        """Return the arguments of a call, read from the store where they are large. Raises `RejectedError`."""
        if call.args_blob is None or not isinstance(call.args, dict):
            return call.args
        text = await read_text(call.args_blob)
        texts = {} if text is None else {call.args_blob.hash: text}
        args = resolve_args(call.args, call.args_blob, texts)
        if args is None:
            raise RejectedError("invalid", "its arguments are in the store of large texts, which can't be read now.")
        return args

    async def _run_task(
        self, request: RunTask, task: SubTask, start: SessionInput, prepared: PreparedSubTask, inline_bytes: int
    ) -> ToolResult:
        notes = prepared.notes
        self._started.add(task.call_id)
        starting = asyncio.ensure_future(self._runner.start(request, task, start, report=prepared.task.report))
        try:
            # A background task is started even if the turn is stopped at this moment.
            handle = await (asyncio.shield(starting) if task.background else starting)
        except WorkflowAlreadyStartedError:
            self._tasks.discard_task(task.task_id, "failed")
            return ToolResult(outcome=f"No task was started: a session {task.task_id} exists already", status="error")
        if task.background:
            text = "Its answer will come as a message."
            if notes:
                text = f"{text}\n\n{history_notes(notes)}"
            return ToolResult(outcome=f"Task {task.task_id} was started", content=text)
        outcome = await self._outcome(task, handle)
        limits = self._scope.turn.limits
        result = tool_result_of(
            task, outcome, notes=notes, max_chars=limits.max_tool_result_chars, max_bytes=LARGE_RESULT_BYTES
        )
        return result if fits_inline(result, inline_bytes) else await keep_result(result, inline_bytes=inline_bytes)

    async def _outcome(self, task: SubTask, handle: SubTaskHandle) -> TaskOutcome:
        """Wait for a task. If the turn runs out of time, cancel the task and raise `TurnFailedError`."""
        try:
            while not handle.done():
                # The turn's clock stands still while people decide, so there may be more time than before.
                with suppress(asyncio.TimeoutError):
                    await workflow.wait_condition(
                        handle.done, timeout=self._scope.time_left(), timeout_summary=f"time of {task.task_id}"
                    )
            outcome = _outcome_of(handle.result())
        except ChildWorkflowError as error:
            outcome = _outcome_of_failure(error)
        finally:
            # This also runs when the worker evicts the session, so it may not use Temporal's API.
            if not handle.done():
                handle.cancel()
        self._tasks.end_sub_task(task.task_id, outcome, now=workflow.now())
        return outcome


def _outcome_of(end: SessionEnd) -> TaskOutcome:
    if result := end.features.get(FEATURE):
        return TaskOutcome.model_validate(result)
    return TaskOutcome(status="failed", error="The task's session ended without a result.")


def _outcome_of_failure(error: ChildWorkflowError) -> TaskOutcome:
    cause = error.cause
    if isinstance(cause, CancelledError):
        return TaskOutcome(status="cancelled", error="The task was cancelled.")
    if isinstance(cause, TerminatedError):
        return TaskOutcome(status="cancelled", error="The task was terminated.")
    reason = cause.message if isinstance(cause, ApplicationError) else "its workflow failed"
    return TaskOutcome(status="failed", error=f"The task failed: {reason}")
