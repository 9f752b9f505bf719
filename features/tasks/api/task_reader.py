"""Reading tasks from their sessions (TSK-4).

A task is a session, so its status is a pure function of the session's state. A search attribute in Temporal says which
sessions are tasks; the state comes from a worker. A request that waits for a task shares its session's watch with all
other readers, and reads the state again after each change.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from temporalio.client import WorkflowExecution, WorkflowExecutionDescription, WorkflowExecutionStatus

from turnkeeper.api.bodies import chat_url, session_links, session_path
from turnkeeper.api.history.approval_reader import ApprovalReader
from turnkeeper.api.history.text_restorer import TextRestorer
from turnkeeper.api.history.visible_sessions import visible_session
from turnkeeper.api.http.closing import Closing
from turnkeeper.api.problems import ProblemError, problem
from turnkeeper.api.store_calls import seconds_from_now
from turnkeeper.api.temporal.session_reader import FINAL_STATUS_OF, SessionReader
from turnkeeper.api.temporal.temporal_calls import call_temporal
from turnkeeper.features.tasks.api.new_task import read_note
from turnkeeper.features.tasks.session.task_state import summary_of_answer, task_status
from turnkeeper.models.http_responses import Task, TaskResult
from turnkeeper.models.ids import WorkflowId, session_id_of
from turnkeeper.models.session.messages import SessionEnd, StateRequest
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationState
from turnkeeper.models.transcript.task_view import FINAL, NO_PARENT, TaskStatus
from turnkeeper.models.transcript.trajectory import Usage
from turnkeeper.stores.temporal import search_attributes

AGAIN_SECONDS = 1.0
"""The pause before the next read when no worker answered."""

STUCK = "The task is stuck: a step keeps failing. Nothing is lost; it continues once the cause is fixed."
CANCELLING = "The task is being cancelled."
NEEDS_PERSON = "A tool call needs your approval."


class TaskReader:
    """Reads all tasks, by their ids. Methods raise `ProblemError`."""

    def __init__(
        self,
        settings: Settings,
        reader: SessionReader,
        texts: TextRestorer,
        approvals: ApprovalReader,
        closing: Closing,
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._texts = texts
        self._approvals = approvals
        self._closing = closing

    async def describe(self, workflow_id: WorkflowId) -> WorkflowExecutionDescription:
        """Return Temporal's description of a task. Raises 404 for a session that is none, 409 for a forgotten one."""
        description = await self.describe_if_retained(workflow_id)
        if description is None:
            raise problem("session-ended", workflow_id=workflow_id)
        return description

    async def describe_if_retained(self, workflow_id: WorkflowId) -> WorkflowExecutionDescription | None:
        """Return the same; `None` if Temporal no longer has the session."""
        try:
            description = await self._reader.describe_if_retained(workflow_id)
        except ProblemError as error:
            if error.problem.status != 404:
                raise
            raise problem("unknown-task", workflow_id=workflow_id) from None
        if description is None:
            return None
        if description.typed_search_attributes.get(search_attributes.TASK_PARENT) is None:
            raise problem("unknown-task", workflow_id=workflow_id)
        return description

    async def task(self, workflow_id: WorkflowId) -> Task:
        """Return a task with its whole answer. A stuck one is `working`, with a status message."""
        description = await self.describe_if_retained(workflow_id)
        if description is None:
            return await self._forgotten_task(workflow_id)
        if await self._reader.is_stuck(workflow_id, description):
            return await self.without_state(description, STUCK)
        state = await self._reader.state(workflow_id, StateRequest(limit=1))
        until = seconds_from_now(self._reader.timeouts.restore)
        turns = await self._texts.restore_answers(workflow_id, state.messages, until=until)
        facts = await self._facts(description)
        return await self._task(workflow_id, facts, state, turns[-1] if turns else None)

    async def _forgotten_task(self, workflow_id: WorkflowId) -> Task:
        """Return a task that Temporal no longer has, as the archive has it. Raises 404 for a session that is none."""
        state = await self._reader.state(workflow_id, StateRequest(limit=1))
        view, until = state.session.task, seconds_from_now(self._reader.timeouts.restore)
        if view is None:
            raise problem("unknown-task", workflow_id=workflow_id)
        turns = await self._texts.restore_answers(workflow_id, state.messages, until=until)
        facts: dict[str, Any] = {
            "task_id": session_id_of(workflow_id),
            "workflow_id": session_id_of(workflow_id),
            "context": view.context,
            "parent": view.parent,
            "url": chat_url(self._settings, workflow_id),
        }
        return await self._task(workflow_id, facts, state, turns[-1] if turns else None)

    async def awaited(self, workflow_id: WorkflowId, *, seconds: float, is_due: Callable[[Task], bool]) -> Task:
        """Return a task once `is_due` returns true for it, or after about `seconds`."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        async with self._reader.watches.watching(workflow_id) as watch:
            while True:
                version, again_at = watch.version, until
                try:
                    task = await self.task(workflow_id)
                    if is_due(task) or self._closing.is_time_up(until):
                        return task
                except ProblemError as problem:
                    if problem.problem.status not in (503, 504) or self._closing.is_time_up(until):
                        raise
                    again_at = min(until, clock() + AGAIN_SECONDS)
                if watch.is_over:  # no further changes are noticed
                    again_at = min(until, clock() + AGAIN_SECONDS)
                await self._closing.wait_for(watch, partial(watch.is_beyond, version), until=again_at)

    async def without_state(self, execution: WorkflowExecution, message: str) -> Task:
        """Return a task from Temporal's facts alone: without a worker, an open one counts as working."""
        visible = await visible_session(execution)
        state: dict[str, Any] = {"status": "working", "status_message": message}
        if execution.status == WorkflowExecutionStatus.COMPLETED:
            state = await self._state_of_result(WorkflowId(execution.id))
        elif execution.status in FINAL_STATUS_OF:
            state = {"status": "cancelled"}
        return Task(
            **await self._facts(execution),
            **state,
            title=visible.title,
            created_at=visible.started_at,
            updated_at=execution.close_time,
        )

    async def _state_of_result(self, workflow_id: WorkflowId) -> dict[str, Any]:
        """Return the status and the result from the result of a task's workflow."""
        handle = self._reader.client.get_workflow_handle(workflow_id, result_type=SessionEnd)
        end = await call_temporal(
            handle.result(rpc_timeout=self._reader.timeouts.rpc), workflow_id, seconds=self._reader.timeouts.call
        )
        outcome = end.task
        if outcome is None:
            return {"status": "cancelled"}
        result = TaskResult(
            summary=summary_of_answer(outcome.answer or outcome.error or "") or None,
            findings=outcome.findings,
            usage=outcome.usage or Usage(),
            transcript_url=self._transcript_url(workflow_id),
        )
        return {
            "status": outcome.status,
            "result": result,
            "error": outcome.error,
            "error_type": outcome.error_type,
        }

    async def _task(
        self,
        workflow_id: WorkflowId,
        facts: dict[str, Any],
        state: ConversationState,
        newest: ConversationMessage | None,
    ) -> Task:
        session = state.session
        status = task_status(
            newest.status if newest else None,
            session=state.status,
            waits=any(task.status == "input_required" for task in session.tasks),
            queue_length=state.queue_length,
        )
        view, is_final = session.task, status in FINAL
        approvals = 0
        if status == "input_required":
            pending = await self._approvals.pending(workflow_id)
            approvals = len(pending.approvals) + pending.omitted
        return Task(
            **facts,
            title=session.title,
            status=status,
            status_message=_status_message(state, status),
            percent=view and view.percent,
            condensed=view and view.condensed,
            created_at=session.created_at,
            updated_at=newest and (newest.agent_timestamp or newest.timestamp),
            approvals=approvals,
            result=self._result(workflow_id, state, newest) if is_final else None,
            error=newest.error if newest and is_final else None,
            error_type=newest.error_type if newest and is_final else None,
        )

    async def _facts(self, execution: WorkflowExecution) -> dict[str, Any]:
        """Return the fields that come from Temporal."""
        workflow_id, session_id = WorkflowId(execution.id), session_id_of(WorkflowId(execution.id))
        links = session_links(self._settings, workflow_id, namespace=execution.namespace)
        parent = execution.typed_search_attributes.get(search_attributes.TASK_PARENT)
        note = await read_note(execution)
        return {
            "task_id": session_id,
            "workflow_id": session_id,
            "description": note and note.description,
            "context": note and note.context,
            "parent": None if parent == NO_PARENT else parent,
            "url": chat_url(self._settings, workflow_id),
            "temporal_url": links.temporal,
        }

    def _result(
        self,
        workflow_id: WorkflowId,
        state: ConversationState,
        newest: ConversationMessage | None,
    ) -> TaskResult:
        answer = newest and newest.agent_message
        why_not = newest.error if newest else None
        view = state.session.task
        return TaskResult(
            summary=summary_of_answer(answer or why_not or "") or None,
            answer=answer,
            findings=view and view.findings,
            usage=state.session.usage,
            transcript_url=self._transcript_url(workflow_id),
        )

    def _transcript_url(self, workflow_id: WorkflowId) -> str:
        return f"{self._settings.gateway_url}{session_path(workflow_id)}/conversation/full"


def _status_message(state: ConversationState, status: TaskStatus) -> str | None:
    if status == "input_required":
        return NEEDS_PERSON
    if state.waiting_reason:
        return state.waiting_reason
    return state.session.task.message if state.session.task else None
