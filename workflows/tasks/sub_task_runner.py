"""Starts a session's tasks as child workflows, and cancels them (TSK-5).

A foreground task is an ordinary child: its result becomes the result of the tool call, and it is cancelled with the
turn. A background task outlives the run that started it; later runs of its parent only get its signals.
"""

import asyncio
from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.common import Priority, WorkflowIDReusePolicy
from temporalio.exceptions import ChildWorkflowError
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.bounds import head_within
    from turnkeeper.models.ids import WorkflowId, sibling_id, tenant_of
    from turnkeeper.models.session.messages import SessionEnd, SessionInput
    from turnkeeper.models.session.session import Session
    from turnkeeper.models.session.tasks.task_arguments import RunTask
    from turnkeeper.models.session.tasks.task_input import DESCRIPTION_BYTES, MEMO_KEY, TaskNote
    from turnkeeper.models.transcript.task_view import SubTask
    from turnkeeper.workflows.background import run_in_background
    from turnkeeper.workflows.new_session import initial_attributes, initial_memo, initial_summary

WORKFLOW = "AgenticAIWorkflow"

SubTaskHandle = workflow.ChildWorkflowHandle[Any, SessionEnd]


class SubTaskRunner:
    """Runs the tasks of one session as workflows."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._workflow_id = WorkflowId(workflow.info().workflow_id)
        self._watching: set[asyncio.Task[None]] = set()

    async def start(self, request: RunTask, task: SubTask, start: SessionInput) -> SubTaskHandle:
        """Start a task; returns once it has started. Raises `WorkflowAlreadyStartedError`."""
        description = head_within(request.description, DESCRIPTION_BYTES)
        note = TaskNote(description=description, context=start.task and start.task.report)
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
            search_attributes=initial_attributes(start, tenant=tenant_of(self._workflow_id)),
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
            for task in self._session.sub_tasks.running
        ]
        await asyncio.gather(*cancels, return_exceptions=True)

    def _watch(self, task_id: str, handle: SubTaskHandle) -> None:
        """While this run lasts, record a background task's termination; every other end it signals itself."""

        async def watch() -> None:
            with suppress(ChildWorkflowError):
                await handle
            self._session.sub_tasks.close_task(task_id)

        watching = asyncio.create_task(run_in_background(watch))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)
