"""What people are asked to decide in a session and in the tasks below it (AGT-8, TSK-5)."""

import asyncio

from turnkeeper.api.problems import ProblemError
from turnkeeper.api.temporal.session_reader import FINAL_STATUSES, SessionReader
from turnkeeper.models.session.approvals import PendingApproval, PendingApprovals
from turnkeeper.models.session.session import StateRequest

MAX_TASKS = 50
"""Tasks of one session that are asked; the approvals of others count as omitted."""

MAX_BYTES = 1_000_000
"""About the most JSON bytes of what is returned."""

AT_ONCE = 8


class TaskApprovals:
    """Reads what waits for a decision. Methods raise `ProblemError`."""

    def __init__(self, reader: SessionReader) -> None:
        self._reader = reader

    async def pending(self, session_id: str) -> PendingApprovals:
        """Return the calls that wait in a session, then those in its tasks, each with the session that it belongs to.

        A task is asked only where its parent says that it waits for a person. One that can't be asked counts as
        omitted.
        """
        own, blocked = await self._of_session(session_id)
        approvals, omitted = _with_session(own.approvals, session_id), own.omitted
        room = MAX_BYTES - sum(map(_size, approvals))
        queried_count = 0
        while blocked:
            batch, blocked = blocked[:AT_ONCE], blocked[AT_ONCE:]
            if queried_count + len(batch) > MAX_TASKS:
                omitted += len(batch) + len(blocked)
                break
            queried_count += len(batch)
            for task_id, answer in zip(batch, await asyncio.gather(*map(self._of_task, batch)), strict=True):
                if answer is None:
                    omitted += 1
                    continue
                pending, below = answer
                blocked += below
                omitted += pending.omitted
                for approval in _with_session(pending.approvals, task_id):
                    room -= _size(approval)
                    if room < 0:
                        omitted += 1
                    else:
                        approvals.append(approval)
        return own.model_copy(update={"approvals": approvals, "omitted": omitted})

    async def _of_task(self, task_id: str) -> tuple[PendingApprovals, list[str]] | None:
        try:
            return await self._of_session(task_id)
        except ProblemError:
            return None

    async def _of_session(self, session_id: str) -> tuple[PendingApprovals, list[str]]:
        """Return the session's own approvals, and the ids of its tasks that wait for a person."""
        pending = await self._reader.pending_approvals(session_id)
        state = await self._reader.state(session_id, StateRequest(limit=0))
        if state.status in FINAL_STATUSES:
            return pending, []
        return pending, [task.task_id for task in state.session.tasks if task.status == "input_required"]


def _with_session(approvals: list[PendingApproval], session_id: str) -> list[PendingApproval]:
    return [approval.model_copy(update={"workflow_id": session_id}) for approval in approvals]


def _size(approval: PendingApproval) -> int:
    return len(approval.model_dump_json())
