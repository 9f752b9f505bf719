"""The tool calls that wait for approval in a session and in the tasks below it (AGT-8, TSK-5)."""

import asyncio
from collections.abc import Sequence

from turnkeeper.api.history.transcript_reader import TextRestorer
from turnkeeper.api.problems import ProblemError
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.api.timeouts import seconds_from_now
from turnkeeper.models.ids import WorkflowId, session_id_of, sibling_id
from turnkeeper.models.session.approvals import PendingApproval, PendingApprovals
from turnkeeper.models.session.messages import StateRequest
from turnkeeper.models.transcript.conversation import FINAL_STATUSES

MAX_TASKS = 50
"""How many tasks of a session are queried; the others count as omitted."""

MAX_BYTES = 1_000_000
"""About the most JSON bytes of what is returned."""

AT_ONCE = 8


class ApprovalReader:
    """Reads the calls that wait for approval. Methods raise `ProblemError`."""

    def __init__(self, reader: SessionReader, texts: TextRestorer) -> None:
        self._reader = reader
        self._texts = texts

    async def pending(self, workflow_id: WorkflowId) -> PendingApprovals:
        """Return the waiting calls of a session, then those of its tasks, each with the id of its own session.

        Their texts have all arguments that can be read in `Timeouts.request`; the first call is returned whatever its
        size. Only tasks with the status `input_required` are queried. A task that doesn't answer counts as omitted.
        """
        until = seconds_from_now(self._reader.timeouts.request)
        own, blocked = await self._of_session(workflow_id)
        approvals, omitted, room = list[PendingApproval](), 0, MAX_BYTES
        answers: list[tuple[WorkflowId, PendingApprovals | None]] = [(workflow_id, own)]
        queried_count = 0
        while answers:
            for session, pending in answers:
                omitted += pending.omitted if pending else 1
                waiting = pending.approvals if pending else []
                for approval in await self._with_texts(session, waiting, room=room, first=not approvals, until=until):
                    size = len(approval.model_dump_json())
                    if approvals and size > room:
                        omitted += 1
                    else:
                        approvals.append(approval)
                        room -= size
            batch, blocked = blocked[:AT_ONCE], blocked[AT_ONCE:]
            queried_count += len(batch)
            if queried_count > MAX_TASKS:
                omitted += len(batch) + len(blocked)
                break
            blocked_tasks = await asyncio.gather(*map(self._of_task, batch))
            answers = [(task, answer and answer[0]) for task, answer in zip(batch, blocked_tasks, strict=True)]
            blocked += [task for answer in blocked_tasks if answer for task in answer[1]]
        return own.model_copy(update={"approvals": approvals, "omitted": omitted})

    async def _with_texts(
        self, session: WorkflowId, waiting: Sequence[PendingApproval], *, room: int, first: bool, until: float
    ) -> list[PendingApproval]:
        """Return a session's approvals, with the text of all arguments where these fit into `room` bytes.

        All are read at once. With `first`, the first one is read whatever its size.
        """
        hashes = set[str]()
        for index, approval in enumerate(waiting):
            blob = approval.args_blob
            if blob and (blob.bytes <= room or (first and not index)):
                hashes.add(blob.hash)
                room -= blob.bytes
        until = min(until, seconds_from_now(self._reader.timeouts.restore))
        texts = await self._texts.read_texts(session, hashes, until=until)
        whole = list[PendingApproval]()
        for approval in waiting:
            if approval.args_blob and approval.args_blob.hash in hashes:
                # In a thread: a megabyte takes a while.
                approval = await asyncio.to_thread(approval.with_text, texts.get(approval.args_blob.hash))
            whole.append(approval.model_copy(update={"workflow_id": session_id_of(session)}))
        return whole

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
