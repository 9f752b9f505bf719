"""The signals between a task and the root of its tree, about what the task may use (TSK-5).

They are sent one after the other, in the order of the requests, and beside the turn: so stopping a turn loses none. A
session does not continue as new while one is to be sent.
"""

import asyncio

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.ids import PublicId, WorkflowId, sibling_id
    from turnkeeper.models.session.session import Session
    from turnkeeper.models.session.tasks.allowance import AllowanceAnswer, AllowanceRequest
    from turnkeeper.workflows.background import run_in_background


class AllowanceMail:
    """Sends a session's requests to the root of its tree, or a root's answers."""

    def __init__(self, session: Session) -> None:
        self._session = session
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
        allowance = self._session.allowance
        return bool(self._session.accounts.outbox or (allowance and allowance.outbox))

    async def _run(self) -> None:
        while True:
            await workflow.wait_condition(self._has_any)
            self._is_sending = True
            if self._session.accounts.outbox:
                await self._answer(*self._session.accounts.outbox.pop(0))
            elif self._session.allowance:
                await self._request(self._session.allowance.outbox.pop(0))
            self._is_sending = False

    async def _answer(self, task_id: PublicId, answer: AllowanceAnswer) -> None:
        try:
            await self._signal(task_id, "grant_allowance", answer)
        except ApplicationError:
            workflow.logger.info("%s has ended before it got its allowance", task_id)

    async def _request(self, request: AllowanceRequest) -> None:
        allowance = self._session.allowance
        if allowance is None:
            return
        try:
            await self._signal(allowance.start.root, "request_allowance", request)
        except ApplicationError:  # Temporal reports an ended or unknown workflow as not found
            allowance.is_root_gone = True

    async def _signal(self, session_id: PublicId, name: str, message: AllowanceAnswer | AllowanceRequest) -> None:
        target = sibling_id(session_id, of=WorkflowId(workflow.info().workflow_id))
        await workflow.get_external_workflow_handle(target).signal(name, message)
