"""Signals from a task to its parent session (TSK-5).

At most one signal is pending, with the newest state, so a series of changes needs few signals. A pending signal
delays continue-as-new, since Temporal would drop it.
"""

import asyncio

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.ids import WorkflowId, sibling_id
    from turnkeeper.models.session.session import Session
    from turnkeeper.models.session.tasks.task_state import TaskChange
    from turnkeeper.models.session.views import due_task_change
    from turnkeeper.workflows.background import run_in_background

PARENT_GONE = "The session that started this task has ended."


class TaskReporter:
    """Signals the changes of a task to its parent."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.is_sending = False
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Signal every change until this run ends."""
        task = self._session.config.task
        if task and task.reports:
            self._task = asyncio.create_task(run_in_background(self._run))

    async def _run(self) -> None:
        while True:
            await workflow.wait_condition(lambda: due_task_change(self._session) is not None)
            await self.send()

    async def send(self) -> None:
        """Signal the latest change, if there is one. If the parent is gone, the task ends."""
        await workflow.wait_condition(lambda: not self.is_sending)
        change = due_task_change(self._session)
        if change is None:
            return
        self.is_sending = True
        try:
            await self._signal(change)
        except ApplicationError:  # Temporal reports an ended or unknown workflow as not found
            self._session.end(PARENT_GONE, discard_queue=True, now=workflow.now())
        finally:
            self.is_sending = False
        self._session.own_task.note_sent(change)

    async def _signal(self, change: TaskChange) -> None:
        start = self._session.config.task
        if start and start.parent:
            parent = sibling_id(start.parent, of=WorkflowId(workflow.info().workflow_id))
            await workflow.get_external_workflow_handle(parent).signal("task_changed", change)
