"""What a session does for its tasks, and as a task: child workflows, and signals between their sessions (TSK-5, AGT-1).

A foreground task is an ordinary child: its result becomes the result of the tool call, and it is cancelled with the
turn. A background task outlives the run that started it; later runs of its parent only get its signals.

At most one signal to the parent is pending, with the newest state, so a series of changes needs few signals. A pending
signal delays continue-as-new, since Temporal would drop it. What a tree may use, a task asks its root, by signal.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import Priority, WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from turnkeeper.features.tasks.activities import HandOffActivities, KeepResult, TaskTextActivities
    from turnkeeper.features.tasks.session.allowance import Allowance, AllowanceAnswer
    from turnkeeper.features.tasks.session.new_sub_task import PreparedSubTask, PrepareSubTask
    from turnkeeper.features.tasks.session.task import RunTask
    from turnkeeper.features.tasks.session.task_state import DESCRIPTION_BYTES, MEMO_KEY, TaskNote, TaskOutcome
    from turnkeeper.features.tasks.session_part import SessionTasks, tasks_of
    from turnkeeper.models.context.model_view import head_tokens
    from turnkeeper.models.errors import fail
    from turnkeeper.models.ids import PublicId, WorkflowId, sibling_id, tenant_of
    from turnkeeper.models.session.budgets import Amount
    from turnkeeper.models.session.messages import SessionEnd, SessionInput
    from turnkeeper.models.session.session import Session
    from turnkeeper.models.texts import head_within
    from turnkeeper.models.transcript.conversation import BlobRef, HandOffReport, SubTask, ToolResult
    from turnkeeper.models.transcript.large_texts import cut_result
    from turnkeeper.models.wire import Frozen
    from turnkeeper.stores.temporal.search_attributes import initial_attributes, initial_memo, initial_summary
    from turnkeeper.workflows import activity_options
    from turnkeeper.workflows.turn.turn_scope import TurnScope, check_cancelled
    from turnkeeper.workflows.workflow_part import run_in_background

WORKFLOW = "AgenticAIWorkflow"

SubTaskHandle = workflow.ChildWorkflowHandle[Any, SessionEnd]


class SubTaskRunner:
    """Runs the tasks of one session as workflows."""

    def __init__(self, session: Session) -> None:
        self._session_id, self._started = session.id, tasks_of(session).started
        self._workflow_id = WorkflowId(workflow.info().workflow_id)
        self._watching: set[asyncio.Task[None]] = set()

    async def start(
        self, request: RunTask, task: SubTask, start: SessionInput, *, report: HandOffReport | None
    ) -> SubTaskHandle:
        """Start a task; returns once it has started. Raises `WorkflowAlreadyStartedError`."""
        description = head_within(request.description, DESCRIPTION_BYTES)
        note = TaskNote(description=description, context=report)
        handle: SubTaskHandle = await workflow.start_child_workflow(
            WORKFLOW,
            start,
            id=sibling_id(task.task_id, of=self._workflow_id),
            result_type=SessionEnd,
            cancellation_type=ChildWorkflowCancellationType.TRY_CANCEL,
            parent_close_policy=(ParentClosePolicy.ABANDON if task.background else ParentClosePolicy.REQUEST_CANCEL),
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            task_timeout=workflow.info().task_timeout,
            static_summary=initial_summary(start),
            memo={**initial_memo(start, now=workflow.now()), MEMO_KEY: note.model_dump(mode="json")},
            search_attributes=initial_attributes(start, tenant=tenant_of(self._workflow_id), parent=self._session_id),
            priority=Priority(priority_key=request.priority_key),
        )
        # Otherwise the SDK logs the failure of a handle that is never awaited, as for a task cancelled with its turn.
        handle.add_done_callback(lambda done: done.cancelled() or done.exception())
        if task.background:
            self._watch(task.task_id, handle)
        return handle

    async def cancel_all(self) -> None:
        """Cancel all running tasks; errors for ended ones are ignored."""
        cancels = [
            workflow.get_external_workflow_handle(sibling_id(task.task_id, of=self._workflow_id)).cancel()
            for task in self._started.running
        ]
        await asyncio.gather(*cancels, return_exceptions=True)

    def _watch(self, task_id: str, handle: SubTaskHandle) -> None:
        """While this run lasts, record a background task's termination; every other end it signals itself."""

        async def watch() -> None:
            with suppress(ChildWorkflowError):
                await handle
            self._started.close_task(task_id)

        watching = asyncio.create_task(run_in_background(watch))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)


async def read_text(ref: BlobRef) -> str | None:
    """Return a text of this session that is stored by reference; `None` if it can't be read now."""
    try:
        text: str | None = await workflow.execute_activity_method(
            TaskTextActivities.read_large_text,
            ref,
            start_to_close_timeout=activity_options.TEXT_TIMEOUT,
            schedule_to_close_timeout=activity_options.TEXT_PATIENCE,
            retry_policy=activity_options.ARCHIVE_RETRIES,
            summary="large text of a task",
        )
    except ActivityError as error:
        check_cancelled(error)
        return None
    return text


async def keep_result(result: ToolResult, *, inline_bytes: int) -> ToolResult:
    """Return the result, with content over `inline_bytes` by reference. While the store is down, content is cut."""
    try:
        return await workflow.execute_activity_method(
            TaskTextActivities.keep_large_result,
            KeepResult(result=result, inline_bytes=inline_bytes),
            start_to_close_timeout=activity_options.TEXT_TIMEOUT,
            schedule_to_close_timeout=activity_options.TEXT_PATIENCE,
            retry_policy=activity_options.ARCHIVE_RETRIES,
            summary="answer of a task",
        )
    except ActivityError as error:
        check_cancelled(error)
        return cut_result(result, inline_bytes=inline_bytes)


async def with_whole_answer(outcome: TaskOutcome) -> TaskOutcome:
    """Return the outcome with its whole answer; if the store can't be read, with the excerpt."""
    if outcome.answer_blob is None:
        return outcome
    answer = await read_text(outcome.answer_blob)
    return outcome if answer is None else outcome.model_copy(update={"answer": answer, "answer_blob": None})


async def prepare_in_activity(call: PrepareSubTask, *, time_left: timedelta) -> PreparedSubTask | None:
    """Return the context of a task; `None` if the activity fails."""
    try:
        return await workflow.execute_activity_method(
            HandOffActivities.prepare_sub_task,
            call,
            start_to_close_timeout=activity_options.HAND_OFF_TIMEOUT,
            schedule_to_close_timeout=min(time_left, activity_options.HAND_OFF_PATIENCE),
            retry_policy=activity_options.HAND_OFF_RETRIES,
            summary=f"history of {call.task_id}",
        )
    except ActivityError as error:
        check_cancelled(error)
        workflow.logger.warning("The history of %s is only cut: %s", call.task_id, error.cause or error)
        return None


CHANGED = "task_changed"
"""The kind of the message."""

PARENT_GONE = "The session that started this task has ended."


class TaskReporter:
    """Sends the changes of a task to its parent."""

    def __init__(self, session: Session, send: Callable[[PublicId, str, Frozen], Awaitable[None]]) -> None:
        """`send` sends a message of a kind to the tasks of another session."""
        self._session, self._tasks = session, tasks_of(session)
        self._send = send
        self.is_sending = False
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Send every change until this run ends."""
        task = self._tasks.input.task
        if task and task.reports:
            self._task = asyncio.create_task(run_in_background(self._run))

    async def _run(self) -> None:
        while True:
            await workflow.wait_condition(lambda: self._tasks.due_change is not None)
            await self.send()

    async def send(self) -> None:
        """Send the latest change, if there is one. If the parent is gone, the task ends."""
        await workflow.wait_condition(lambda: not self.is_sending)
        change, task = self._tasks.due_change, self._tasks.input.task
        if change is None or task is None:
            return
        self.is_sending = True
        try:
            if task.parent:
                await self._send(PublicId(task.parent), CHANGED, change)
        except ApplicationError:  # Temporal reports an ended or unknown workflow as not found
            self._session.end(PARENT_GONE, discard_queue=True, now=workflow.now())
        finally:
            self.is_sending = False
        self._tasks.own.note_sent(change)


REQUEST, GRANT = "request_allowance", "grant_allowance"
"""Kinds of messages: of a task to its root, and the answer."""

ANSWER_TOKENS = 1_000
"""Tokens that a step is expected to need beyond its request."""


class TurnAllowance:
    """The tokens and cost that a turn may use, and the tasks that it may start.

    A root decides itself; a task asks, and waits for the answer as long as its turn has time.
    """

    def __init__(self, scope: TurnScope) -> None:
        self._scope = scope
        self._session = scope.session
        self._tasks = tasks_of(scope.session)

    async def start_of(self, task_id: PublicId) -> AllowanceAnswer:
        """Return the first portion of a task that this session starts, or why it may not be started."""
        allowance = self._tasks.allowance
        if allowance is None:
            return self._tasks.register_task(task_id)
        number = allowance.ask_to_start(task_id)
        fallback = AllowanceAnswer(number=number, rejection=f"No task was started: {_has_ended(allowance)}")
        return await self._answer(allowance, number) or fallback

    async def draw(self) -> None:
        """Ask the root for a larger portion if the present one is too small for the next step."""
        allowance, used = self._tasks.allowance, self._tasks.used
        need = self._need(used)
        if allowance is None or not allowance.is_too_small(used, need=need):
            return
        if await self._answer(allowance, allowance.ask(used, need=need)) is None and allowance.used_up(used):
            fail("budget", f"The task has used up its portion and can get no more: {_has_ended(allowance)}")

    async def _answer(self, allowance: Allowance, number: int) -> AllowanceAnswer | None:
        """Wait for the root's answer to a request; `None`: the root has ended."""
        self._scope.check_stop()
        try:
            await workflow.wait_condition(
                lambda: allowance.is_root_gone or allowance.answer_to(number) is not None,
                timeout=self._scope.time_left(),
                timeout_summary=f"allowance from {allowance.start.root}",
            )
        except TimeoutError:
            fail("budget", f"Session {allowance.start.root}, whose budget this task shares, gives no answer.")
        answer = allowance.answer_to(number)
        allowance.forget(number)
        self._scope.check_stop()
        return answer

    def _need(self, used: Amount) -> Amount:
        """Estimate what the next step needs: the request as it is now, at the price of the steps so far."""
        view = self._session.context.view
        tokens = head_tokens(self._session.head) + view.estimated_tokens + ANSWER_TOKENS
        return Amount(tokens=tokens, cost=used.cost * tokens / used.tokens if used.tokens else 0.0)


def _has_ended(allowance: Allowance) -> str:
    return f"session {allowance.start.root}, whose budget it shares, has ended."


class AllowanceMail:
    """Sends a session's requests to the root of its tree, or a root's answers.

    They are sent one after the other, in order, and beside the turn: so stopping a turn loses none. A session does not
    continue as new while one is to be sent.
    """

    def __init__(self, tasks: SessionTasks, send: Callable[[PublicId, str, Frozen], Awaitable[None]]) -> None:
        """`send` sends a message of a kind to the tasks of another session."""
        self._tasks = tasks
        self._send = send
        self._is_sending = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_sending(self) -> bool:
        """Whether anything is to be sent."""
        return self._is_sending or self._has_any()

    def begin(self) -> None:
        """Send everything from now on, until this run ends."""
        self._task = asyncio.create_task(run_in_background(self._run))

    async def flush(self) -> None:
        """Wait until everything is sent."""
        await workflow.wait_condition(lambda: not self.is_sending)

    def _has_any(self) -> bool:
        allowance = self._tasks.allowance
        return bool(self._tasks.accounts.outbox or (allowance and allowance.outbox))

    async def _run(self) -> None:
        accounts, allowance = self._tasks.accounts, self._tasks.allowance
        while True:
            await workflow.wait_condition(self._has_any)
            self._is_sending = True
            if accounts.outbox:
                task_id, answer = accounts.outbox.pop(0)
                try:
                    await self._send(task_id, GRANT, answer)
                except ApplicationError:  # Temporal reports an ended or unknown workflow as not found
                    workflow.logger.info("%s has ended before it got its allowance", task_id)
            elif allowance:
                try:
                    await self._send(allowance.start.root, REQUEST, allowance.outbox.pop(0))
                except ApplicationError:
                    allowance.is_root_gone = True
            self._is_sending = False
