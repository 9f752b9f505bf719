"""Preparing tasks: reads what a task inherits, and stores what is to be condensed; the decisions are in `models`."""

import asyncio
from datetime import UTC, datetime
from functools import partial

from turnkeeper.api.history.transcript_reader import TranscriptReader
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.models.ids import WorkflowId, workflow_id
from turnkeeper.models.session.task import CreateTask, PreparedTask, policy_of, prepare_task
from turnkeeper.models.session.tasks.task_input import TextsToCondense
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.tasks.history_policy import HistoryPolicy
from turnkeeper.models.tasks.inheritance import MAX_PAGES, Inheritance
from turnkeeper.stores.blobs import Blobs
from turnkeeper.stores.ranking.bm25 import rank
from turnkeeper.stores.tasks.hand_off import store_hand_off

MAX_TURNS = 200
"""Turns of the first page."""


class TaskPreparer:
    """Prepares tasks. Methods raise `ProblemError` and `TaskValidationError`."""

    def __init__(self, settings: Settings, reader: SessionReader, transcripts: TranscriptReader, blobs: Blobs) -> None:
        self._presets = settings.hand_off
        self._reader = reader
        self._transcripts = transcripts
        self._blobs = blobs

    async def prepare(self, task: CreateTask, *, tenant: str) -> PreparedTask:
        """Return the context that a task's agent would get. Nothing is started. A parent is a session of `tenant`."""
        parent = task.parent_to_inherit_from
        policy = policy_of(task, self._presets, inherits=parent is not None)
        inherited = await self._inheritance(workflow_id(parent, tenant=tenant), policy) if parent else None
        # In a thread: ranking hundreds of messages takes tens of milliseconds.
        prepare = partial(
            prepare_task, task, now=datetime.now(UTC), inherited=inherited, presets=self._presets, rank=rank
        )
        prepared = await asyncio.to_thread(prepare) if policy.ranks else prepare()
        if task.parent and not parent:
            await self._reader.describe(workflow_id(task.parent, tenant=tenant))
        return prepared

    async def store(
        self, prepared: PreparedTask, *, workflow_id: WorkflowId, parent: WorkflowId | None
    ) -> tuple[PreparedTask, TextsToCondense | None]:
        """Store what the task `workflow_id` refers to: attachments, those of `parent` too, and texts to condense."""
        return await store_hand_off(self._blobs, prepared, task_id=workflow_id, parent_id=parent)

    async def _inheritance(self, workflow_id: WorkflowId, policy: HistoryPolicy) -> Inheritance:
        """Return the latest messages of a session that `policy` inherits, from at most `MAX_PAGES` pages."""
        inherited, before = Inheritance(policy), None
        for _ in range(MAX_PAGES):
            # Most turns have messages of all roles. Otherwise the next page is as large as possible.
            limit = None if before else min(policy.max_read, MAX_TURNS)
            page = await self._transcripts.page(workflow_id, before=before, limit=limit)
            inherited = inherited.with_older(page.messages, has_older=page.has_more)
            if inherited.is_enough:
                break
            before = page.messages[0].id
        return inherited
