"""The tool calls that wait for approval in a session and in the tasks below it (AGT-8, TSK-5)."""

import asyncio

from turnkeeper.api.problems import ProblemError
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.models.ids import WorkflowId, session_id_of, sibling_id
from turnkeeper.models.session.approvals import PendingApproval, PendingApprovals
from turnkeeper.models.session.messages import StateRequest
from turnkeeper.models.transcript.conversation import FINAL_STATUSES

MAX_TASKS = 50
"""How many tasks of a session are queried; the others count as omitted."""

MAX_BYTES = 1_000_000
"""About the most JSON bytes of what is returned."""

AT_ONCE = 8


class TaskApprovals:
    """Reads the calls that wait for approval. Methods raise `ProblemError`."""

    def __init__(self, reader: SessionReader) -> None:
        self._reader = reader

    async def pending(self, workflow_id: WorkflowId) -> PendingApprovals:
        """Return the waiting calls of a session, then those of its tasks, each with the id of its own session.

        Only tasks with the status `input_required` are queried. A task that doesn't answer counts as omitted.
        """
        own, blocked = await self._of_session(workflow_id)
        approvals, omitted = _with_session(own.approvals, workflow_id), own.omitted
        room = MAX_BYTES - sum(map(_size, approvals))
        queried_count = 0
        while blocked:
            batch, blocked = blocked[:AT_ONCE], blocked[AT_ONCE:]
            if queried_count + len(batch) > MAX_TASKS:
                omitted += len(batch) + len(blocked)
                break
            queried_count += len(batch)
            for task, answer in zip(batch, await asyncio.gather(*map(self._of_task, batch)), strict=True):
                if answer is None:
                    omitted += 1
                    continue
                pending, below = answer
                blocked += below
                omitted += pending.omitted
                for approval in _with_session(pending.approvals, task):
                    room -= _size(approval)
                    if room < 0:
                        omitted += 1
                    else:
                        approvals.append(approval)
        return own.model_copy(update={"approvals": approvals, "omitted": omitted})

    async def _of_task(self, workflow_id: WorkflowId) -> tuple[PendingApprovals, list[WorkflowId]] | None:
        try:
            return await self._of_session(workflow_id)
        except ProblemError:
            return None

    async def _of_session(self, workflow_id: WorkflowId) -> tuple[PendingApprovals, list[WorkflowId]]:
        """Return the session's own approvals, and its tasks with the status `input_required`."""
        pending = await self._reader.pending_approvals(workflow_id)
        state = await self._reader.state(workflow_id, StateRequest(limit=0))
        if state.status in FINAL_STATUSES:
            return pending, []
        blocked = [task.task_id for task in state.session.tasks if task.status == "input_required"]
        return pending, [sibling_id(task_id, of=workflow_id) for task_id in blocked]


def _with_session(approvals: list[PendingApproval], workflow_id: WorkflowId) -> list[PendingApproval]:
    return [approval.model_copy(update={"workflow_id": session_id_of(workflow_id)}) for approval in approvals]


def _size(approval: PendingApproval) -> int:
    return len(approval.model_dump_json())
