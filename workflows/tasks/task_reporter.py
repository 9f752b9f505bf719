"""Signals from a task to its parent session (TSK-5).

Only one signal is pending at a time, with the newest state, so a series of changes needs few signals. A pending signal
delays continue-as-new, since Temporal would drop it.
"""

import asyncio

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.session.session import Session
    from turnkeeper.models.session.tasks.task_state import TaskChange
    from turnkeeper.workflows.background import run_in_background

NO_PARENT = "The session that started this task has ended."


class TaskReporter:
    """Tells the parent of a task how it goes on."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.is_sending = False
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Signal every change from now on, for as long as this run lasts."""
        task = self._session.config.task
        if task and task.reports:
            self._task = asyncio.create_task(run_in_background(self._run, rules=self._session.rules))

    async def _run(self) -> None:
        while True:
            await workflow.wait_condition(lambda: self._session.due_task_change is not None)
            await self.send()

    async def send(self) -> None:
        """Signal the latest change, if there is one; a task whose parent is gone ends."""
        await workflow.wait_condition(lambda: not self.is_sending)
        change = self._session.due_task_change
        if change is None:
            return
        self.is_sending = True
        try:
            await self._signal(change)
        except ApplicationError:  # Temporal says of a workflow that has ended or was never there that it is not found
            self._session.end(NO_PARENT, discard_queue=True, now=workflow.now())
        finally:
            self.is_sending = False
        self._session.note_task_change_sent(change)

    async def _signal(self, change: TaskChange) -> None:
        start = self._session.config.task
        if start and start.parent:
            await workflow.get_external_workflow_handle(start.parent).signal("task_changed", change)
