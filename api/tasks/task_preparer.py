"""Preparing tasks: reads what a task inherits; the decisions are in `models`."""

from datetime import UTC, datetime

from turnkeeper.api.history.transcript_reader import TranscriptReader
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.models.ids import WorkflowId, workflow_id
from turnkeeper.models.session.task import CreateTask, PreparedTask, prepare_task
from turnkeeper.models.tasks.history_policy import HistoryPolicy
from turnkeeper.models.tasks.inheritance import Inheritance

MAX_PAGES = 4
"""About 4 MB of transcript. From a longer conversation a task inherits only the newest part, with a warning (TSK-2)."""


class TaskPreparer:
    """Prepares tasks. Methods raise `ProblemError` and `TaskValidationError`."""

    def __init__(self, reader: SessionReader, transcripts: TranscriptReader) -> None:
        self._reader = reader
        self._transcripts = transcripts

    async def prepare(self, task: CreateTask, *, tenant: str) -> PreparedTask:
        """Return the context that a task's agent would get. Nothing is started. A parent is a session of `tenant`."""
        parent = task.parent_to_inherit_from
        inherited = await self._inheritance(workflow_id(parent, tenant=tenant), task.history_policy) if parent else None
        prepared = prepare_task(task, now=datetime.now(UTC), inherited=inherited)
        if task.parent and not parent:
            await self._reader.describe(workflow_id(task.parent, tenant=tenant))
        return prepared

    async def _inheritance(self, workflow_id: WorkflowId, policy: HistoryPolicy) -> Inheritance:
        """Return the latest messages of a session that `policy` inherits, from at most `MAX_PAGES` pages."""
        inherited, before = Inheritance(policy), None
        for _ in range(MAX_PAGES):
            # Most turns have messages of all roles. Otherwise the next page is as large as possible.
            limit = None if before else policy.max_messages
            page = await self._transcripts.page(workflow_id, before=before, limit=limit)
            inherited = inherited.with_older(page.messages, has_older=page.has_more)
            if inherited.is_enough:
                break
            before = page.messages[0].id
        return inherited
