"""Reading tasks from their sessions (TSK-4).

A task is a session, so its status is a pure function of the session's state. A search attribute in Temporal says which
sessions are tasks; the state comes from a worker. A request that waits for a task shares its session's watch with all
other readers, and reads the state again after each change.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from pydantic import ValidationError
from temporalio.client import WorkflowExecution, WorkflowExecutionDescription, WorkflowExecutionStatus

from turnkeeper.api.bodies import chat_url, session_links, session_path
from turnkeeper.api.history.visible_sessions import visible_session
from turnkeeper.api.problems import ProblemError, problem
from turnkeeper.api.services import Services
from turnkeeper.api.temporal.session_reader import FINAL_STATUS_OF
from turnkeeper.api.temporal.temporal_calls import call_temporal
from turnkeeper.api.timeouts import seconds_from_now
from turnkeeper.features.tasks.session.task_state import MEMO_KEY, TaskNote, summary_of_answer, task_status
from turnkeeper.models.http_responses import Task, TaskResult
from turnkeeper.models.ids import WorkflowId, session_id_of
from turnkeeper.models.session.messages import SessionEnd, StateRequest
from turnkeeper.models.transcript.conversation import FINAL, NO_PARENT, ConversationState, TaskStatus, Usage
from turnkeeper.stores.temporal import search_attributes

AGAIN_SECONDS = 1.0
"""The pause before the next read when no worker answered."""

STUCK = "The task is stuck: a step keeps failing. Nothing is lost; it continues once the cause is fixed."
CANCELLING = "The task is being cancelled."
NEEDS_PERSON = "A tool call needs your approval."


class TaskReader:
    """Reads all tasks, by their ids. Methods raise `ProblemError`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def describe(self, workflow_id: WorkflowId) -> WorkflowExecutionDescription:
        """Return Temporal's description of a task. Raises 404 for a session that is none, 409 for a forgotten one."""
        description = await self.describe_if_retained(workflow_id)
        if description is None:
            raise problem("session-ended", workflow_id=workflow_id)
        return description

    async def describe_if_retained(self, workflow_id: WorkflowId) -> WorkflowExecutionDescription | None:
        """Return the same; `None` if Temporal no longer has the session."""
        try:
            description = await self._services.reader.describe_if_retained(workflow_id)
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
        if await self._services.reader.is_stuck(workflow_id, description):
            return await self.without_state(description, STUCK)
        state = await self._services.reader.state(workflow_id, StateRequest(limit=1))
        return await self._task(workflow_id, await self._facts(description), state)

    async def _forgotten_task(self, workflow_id: WorkflowId) -> Task:
        """Return a task that Temporal no longer has, as the archive has it. Raises 404 for a session that is none."""
        state = await self._services.reader.state(workflow_id, StateRequest(limit=1))
        view = state.session.task
        if view is None:
            raise problem("unknown-task", workflow_id=workflow_id)
        identity = identity_of(self._services, workflow_id)
        facts = {**identity, "temporal_url": None, "context": view.context, "parent": view.parent}
        return await self._task(workflow_id, facts, state)

    async def awaited(self, workflow_id: WorkflowId, *, seconds: float, is_due: Callable[[Task], bool]) -> Task:
        """Return a task once `is_due` returns true for it, or after about `seconds`."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        async with self._services.reader.watches.watching(workflow_id) as watch:
            while True:
                version, again_at = watch.version, until
                try:
                    task = await self.task(workflow_id)
                    if is_due(task) or self._services.closing.is_time_up(until):
                        return task
                except ProblemError as problem:
                    if problem.problem.status not in (503, 504) or self._services.closing.is_time_up(until):
                        raise
                    again_at = min(until, clock() + AGAIN_SECONDS)
                if watch.is_over:  # no further changes are noticed
                    again_at = min(until, clock() + AGAIN_SECONDS)
                await self._services.closing.wait_for(watch, partial(watch.is_beyond, version), until=again_at)

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
        handle = self._services.client.get_workflow_handle(workflow_id, result_type=SessionEnd)
        end = await call_temporal(
            handle.result(rpc_timeout=self._services.timeouts.rpc), workflow_id, seconds=self._services.timeouts.call
        )
        outcome = end.task
        if outcome is None:
            return {"status": "cancelled"}
        text, usage = outcome.answer or outcome.error, outcome.usage or Usage()
        result = finished_result(self._services, workflow_id, text, findings=outcome.findings, usage=usage)
        return {"status": outcome.status, "result": result, "error": outcome.error, "error_type": outcome.error_type}

    async def _task(self, workflow_id: WorkflowId, facts: dict[str, Any], state: ConversationState) -> Task:
        until = seconds_from_now(self._services.timeouts.restore)
        turns = await self._services.texts.restore_answers(workflow_id, state.messages, until=until)
        newest, session = turns[-1] if turns else None, state.session
        status = task_status(
            newest.status if newest else None,
            session=state.status,
            waits=any(task.status == "input_required" for task in session.tasks),
            queue_length=state.queue_length,
        )
        view, approvals, ending = session.task, 0, dict[str, Any]()
        if status in FINAL:
            answer, error = (newest.agent_message, newest.error) if newest else (None, None)
            findings, usage = view and view.findings, session.usage
            ending["result"] = finished_result(
                self._services, workflow_id, answer or error, answer=answer, findings=findings, usage=usage
            )
            ending |= {"error": error, "error_type": newest and newest.error_type}
        if status == "input_required":
            pending = await self._services.approvals.pending(workflow_id)
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
            **ending,
        )

    async def _facts(self, execution: WorkflowExecution) -> dict[str, Any]:
        """Return the fields that come from Temporal."""
        parent = execution.typed_search_attributes.get(search_attributes.TASK_PARENT)
        note = await read_note(execution)
        return {
            **identity_of(self._services, WorkflowId(execution.id)),
            "description": note and note.description,
            "context": note and note.context,
            "parent": None if parent == NO_PARENT else parent,
        }


def _status_message(state: ConversationState, status: TaskStatus) -> str | None:
    if status == "input_required":
        return NEEDS_PERSON
    if state.waiting_reason:
        return state.waiting_reason
    return state.session.task.message if state.session.task else None


def identity_of(services: Services, workflow_id: WorkflowId) -> dict[str, Any]:
    """Return the fields of a task that say which one it is, and where people see it."""
    session_id = session_id_of(workflow_id)
    links = session_links(services.settings, workflow_id, namespace=services.client.namespace)
    return {
        "task_id": session_id,
        "workflow_id": session_id,
        "url": chat_url(services.settings, workflow_id),
        "temporal_url": links.temporal,
    }


def finished_result(services: Services, workflow_id: WorkflowId, text: str | None, **fields: Any) -> TaskResult:
    """Return the result of a task that has ended; `text` is its answer, or why there is none."""
    url = f"{services.settings.gateway_url}{session_path(workflow_id)}/conversation/full"
    return TaskResult(summary=summary_of_answer(text or "") or None, transcript_url=url, **fields)


async def read_note(execution: WorkflowExecution) -> TaskNote | None:
    """Return the note in a task's memo; `None` if it has none."""
    try:
        return TaskNote.model_validate((await execution.memo()).get(MEMO_KEY))
    except ValidationError:
        return None
