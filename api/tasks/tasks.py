"""Creating, reading and cancelling tasks (TSK-1 to TSK-4). The rules are in `models`."""

import asyncio
from collections.abc import MutableSequence, Sequence
from contextlib import suppress
from functools import partial

from temporalio.client import WorkflowExecution

from turnkeeper.api.bodies import TaskMessage
from turnkeeper.api.history.index_cursors import BEGINNING, index_cursor, index_position
from turnkeeper.api.history.transcript_reader import TranscriptReader
from turnkeeper.api.problems import ProblemError, problem
from turnkeeper.api.prompts.prompt_sender import PromptSender, new_prompt
from turnkeeper.api.session_links import chat_url, session_links
from turnkeeper.api.store_calls import seconds_from_now
from turnkeeper.api.tasks.forgotten_tasks import ForgottenTasks
from turnkeeper.api.tasks.new_task import (
    new_task_id,
    note_of,
    read_note,
    request_digest,
    task_input,
)
from turnkeeper.api.tasks.task_preparer import TaskPreparer
from turnkeeper.api.tasks.task_reader import CANCELLING, TaskReader
from turnkeeper.api.temporal.lists.listing import list_task_executions
from turnkeeper.api.temporal.session_commands import SessionCommands
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.models.http_responses import Task, TaskPage, TaskReceipt
from turnkeeper.models.ids import WorkflowId, session_id_of, sibling_id
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.queue.prompts import check_text
from turnkeeper.models.session.task import CreateTask, PreparedTask
from turnkeeper.models.session.tasks.task_note import MEMO_KEY, TaskNote
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.task_view import FINAL, TaskStatus
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.session_index import IndexPosition, position_of

CANCEL_SECONDS = 1.5
"""How long a cancellation waits for the task to end."""

STATUS_SECONDS = 1.0
"""How long the receipt of a repeated request waits for a worker's answer."""

LIST_SECONDS = 5.0

READS_AT_ONCE = 8
"""How many tasks of a list are read concurrently."""

MAX_SCANNED = 200
"""How many tasks one list request reads; then it returns a cursor."""


class Tasks:
    """All tasks. Methods raise `ProblemError`, `RejectedError` and `TaskValidationError`."""

    def __init__(
        self,
        settings: Settings,
        reader: SessionReader,
        sessions: SessionCommands,
        sender: PromptSender,
        transcripts: TranscriptReader,
        preparer: TaskPreparer,
        task_reader: TaskReader,
        forgotten: ForgottenTasks,
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._sessions = sessions
        self._sender = sender
        self._transcripts = transcripts
        self._preparer = preparer
        self._tasks = task_reader
        self._forgotten = forgotten

    # ---- creating

    async def prepare(self, task: CreateTask, *, tenant: str) -> PreparedTask:
        """Return the first prompt of a task and what was changed; nothing is started."""
        return await self._preparer.prepare(task, tenant=tenant)

    async def create(self, task: CreateTask, *, tenant: str, user: str | None) -> TaskReceipt:
        """Start a task of `user`. The same `idempotency_key` returns the same task; for another request it is a 409."""
        workflow_id = new_task_id(task, tenant=tenant)
        if task.idempotency_key:
            receipt = await self._created_before(workflow_id, task)
            if receipt:
                return receipt
            await self._transcripts.raise_if_id_was_used(workflow_id)
        prepared = await self.prepare(task, tenant=tenant)
        parent = sibling_id(task.parent, of=workflow_id) if task.parent else None
        prepared, to_condense = await self._preparer.store(prepared, workflow_id=workflow_id, parent=parent)
        note = note_of(task, prepared)
        start = task_input(
            task, prepared, to_condense=to_condense, workflow_id=workflow_id, user=user, settings=self._settings
        )
        try:
            await self._sessions.start(
                workflow_id,
                start,
                priority_key=task.priority_key,
                memo={MEMO_KEY: note.model_dump(mode="json")},
            )
        except ProblemError as problem:
            # The same request may have arrived twice at the same time.
            receipt = await self._created_before(workflow_id, task) if problem.problem.status == 409 else None
            if receipt is None:
                raise
            return receipt
        return self._receipt(workflow_id, note, "working").model_copy(update={"warnings": prepared.warnings})

    async def _created_before(self, workflow_id: WorkflowId, task: CreateTask) -> TaskReceipt | None:
        """Return the receipt of a task that the same request created. Raises 409 if it was another request."""
        try:
            description = await self._reader.describe(workflow_id)
        except ProblemError as error:
            if error.problem.status == 404:
                return None
            raise
        note = await read_note(description)
        if note is None or note.digest != request_digest(task):
            raise problem("idempotency-key-reused", key=task.idempotency_key or "")
        return self._receipt(workflow_id, note, await self._status_of(description))

    async def _status_of(self, execution: WorkflowExecution) -> TaskStatus:
        """Return a task's status; if no worker answers in time, an open one counts as working."""
        task = await self._tasks.listed(execution, until=seconds_from_now(STATUS_SECONDS))
        return task.status if task else "cancelled"

    def _receipt(self, workflow_id: WorkflowId, note: TaskNote, status: TaskStatus) -> TaskReceipt:
        links = session_links(self._settings, workflow_id, namespace=self._reader.client.namespace)
        return TaskReceipt(
            task_id=session_id_of(workflow_id),
            workflow_id=session_id_of(workflow_id),
            status=status,
            url=chat_url(self._settings, workflow_id),
            temporal_url=links.temporal,
            context=note.context,
            warnings=note.warnings,
        )

    # ---- reading

    async def get(self, workflow_id: WorkflowId, *, wait_seconds: float = 0) -> Task:
        """Return a task; with `wait_seconds`, once it ends or needs approval, or after that time."""
        if wait_seconds:
            return await self._tasks.awaited(
                workflow_id, seconds=wait_seconds, is_due=lambda task: task.status != "working"
            )
        return await self._tasks.task(workflow_id)

    async def list(
        self,
        *,
        tenant: str,
        status: TaskStatus | None = None,
        parent: str | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> TaskPage:
        """Return a page of the tenant's tasks, at most `limit`, without their answers.

        The newest are first; those that Temporal no longer has follow, by their last activity.

        A page can have fewer tasks and a `next_cursor`: at most `MAX_SCANNED` tasks are read for it, in about
        `LIST_SECONDS`.
        """
        matches, scanned, until = list[Task](), 0, seconds_from_now(LIST_SECONDS)
        # A closed session is never working.
        is_open = status is not None and status not in FINAL
        add_forgotten = partial(
            self._add_forgotten, matches, tenant=tenant, status=status, parent=parent, limit=limit, until=until
        )
        after = index_position(cursor)
        if after is not None:
            return TaskPage(tasks=matches, next_cursor=await add_forgotten(after=after))
        while True:
            executions, cursor = await list_task_executions(
                self._reader.client,
                self._reader.timeouts,
                tenant=tenant,
                parent=parent,
                is_open=is_open,
                page_size=limit - len(matches),
                cursor=cursor,
            )
            scanned += len(executions)
            tasks = await self._read_all(executions, until=until)
            matches += [task for task in tasks if status is None or task.status == status]
            is_over = scanned >= MAX_SCANNED or seconds_from_now(0) >= until
            if cursor is None and not is_open:
                with suppress(StoreUnavailableError):  # Temporal's list is complete without them
                    cursor = await add_forgotten(after=None)
                return TaskPage(tasks=matches, next_cursor=cursor)
            if cursor is None or len(matches) >= limit or is_over:
                return TaskPage(tasks=matches, next_cursor=cursor)

    async def _add_forgotten(
        self,
        matches: MutableSequence[Task],
        *,
        tenant: str,
        status: TaskStatus | None,
        parent: str | None,
        limit: int,
        after: IndexPosition | None,
        until: float,
    ) -> str | None:
        """Add tasks that Temporal no longer has to a page; return the cursor of the next one."""
        scanned = 0
        while True:
            rows, following = await self._forgotten.batch(tenant=tenant, parent=parent, after=after)
            for row in rows:
                if len(matches) >= limit or scanned >= MAX_SCANNED or seconds_from_now(0) >= until:
                    return index_cursor(after or BEGINNING)
                task = await self._tasks.forgotten(row.session_id)
                if task and status in (None, task.status):
                    matches.append(task)
                scanned, after = scanned + 1, position_of(row)
            if following is None:
                return None
            after = following
            if seconds_from_now(0) >= until:
                return index_cursor(after)

    async def _read_all(self, executions: Sequence[WorkflowExecution], *, until: float) -> Sequence[Task]:
        slots = asyncio.Semaphore(READS_AT_ONCE)

        async def read(execution: WorkflowExecution) -> Task | None:
            async with slots:
                return await self._tasks.listed(execution, until=until)

        return [task for task in await asyncio.gather(*map(read, executions)) if task]

    # ---- changing

    async def message(self, workflow_id: WorkflowId, message: TaskMessage) -> str:
        """Send a task a further prompt, and return its id; a completed task starts working again."""
        check_text(message.text, limits=Limits(), field="text")
        await self._tasks.describe(workflow_id)
        prompt = new_prompt(message.text, message_id=message.id, mode=message.mode)
        return await self._sender.send(workflow_id, prompt)

    async def cancel(self, workflow_id: WorkflowId, *, reason: str | None = None) -> Task:
        """Cancel a task and all tasks below it, and return it after a moment; an ended one stays as it is."""
        description = await self._tasks.describe_if_retained(workflow_id)
        if description is None:
            return await self._tasks.task(workflow_id)
        await self._sessions.cancel(workflow_id, reason=reason)
        try:
            # Temporal loses a query that arrives while the task's workflow closes: it is not waited for.
            async with asyncio.timeout(2 * CANCEL_SECONDS):
                return await self._tasks.awaited(workflow_id, seconds=CANCEL_SECONDS, is_due=lambda task: task.is_final)
        except TimeoutError:
            pass
        except ProblemError as problem:
            if problem.problem.status not in (503, 504):
                raise
        # Temporal has the request: a worker cancels the task, now or once one is back.
        return await self._tasks.without_state(description, CANCELLING)
