"""Creating, reading and cancelling tasks (TSK-1 to TSK-4). The rules are in `rules` and `session`.

The id of a task follows from its `idempotency_key`, so Temporal itself starts no second one, whichever gateways receive
the request. The memo has a digest of the request, so that another request with the same key is rejected, and the first
receipt, so that a repeated request gets the same one.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Any
from uuid import NAMESPACE_URL, uuid4, uuid5

from pydantic import ConfigDict

from turnkeeper.api.bodies import Id, PromptText
from turnkeeper.api.callers import Caller
from turnkeeper.api.changes import RequestChanges, Starts, field_names
from turnkeeper.api.problems import ProblemError, problem
from turnkeeper.api.prompts import new_prompt
from turnkeeper.api.services import Services
from turnkeeper.api.timeouts import read_store, seconds_from_now
from turnkeeper.features.listing.lists import SessionLists, parent_of
from turnkeeper.features.tasks.histories import rank, store_hand_off
from turnkeeper.features.tasks.rules.hand_off import MAX_PAGES, Inheritance
from turnkeeper.features.tasks.session.sub_tasks import sub_task_id
from turnkeeper.features.tasks.session.task import CreateTask, PreparedTask, policy_of, prepare_task
from turnkeeper.features.tasks.session.task_state import (
    DESCRIPTION_BYTES,
    MEMO_KEY,
    TaskNote,
    TextsToCondense,
)
from turnkeeper.features.tasks.session_part import with_task
from turnkeeper.features.tasks.task_reader import CANCELLING, TaskReader, identity_of, read_note
from turnkeeper.models.http_responses import Task, TaskPage, TaskReceipt
from turnkeeper.models.ids import WorkflowId, sibling_id, workflow_id
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.messages import Configure, SessionInput, configured, make_title
from turnkeeper.models.session.prompts import PromptMode, check_text
from turnkeeper.models.settings.history_policy import HistoryPolicy
from turnkeeper.models.texts import head_within
from turnkeeper.models.transcript.conversation import TaskStatus, TaskValidationWarning
from turnkeeper.models.wire import Strict
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.session_index import IndexedSession, IndexQuery

WARNINGS_BYTES = 32_000
"""How many bytes of warnings are in the memo; a repeated request gets no more."""


def new_task_id(task: CreateTask, *, tenant: str) -> WorkflowId:
    """Return the id of a tenant's new task, which is the same for the same `idempotency_key` and parent.

    >>> new_task_id(CreateTask(description="Go.", idempotency_key="k1"), tenant="")
    'task-b660dfa6-8481-5ecc-b79b-2b3679e3a9aa'
    """
    key = task.idempotency_key
    unique = uuid5(NAMESPACE_URL, f"urn:turnkeeper:task:{task.parent or ''}:{key}") if key else uuid4()
    task_id = sub_task_id(task.parent, unique.hex[:12]) if task.parent else f"task-{unique}"
    return workflow_id(task_id, tenant=tenant)


def request_digest(task: CreateTask) -> str:
    """Return the SHA-256 of the request in hex. Of messages, only the fields that a task uses count."""
    request: dict[str, Any] = task.model_dump(mode="json", exclude={"conversation_history", "idempotency_key"})
    request["priority"] = task.priority if "priority" in task.model_fields_set else None
    history: object = task.conversation_history
    if isinstance(history, list):
        history = [_digested_message(message) for message in history]
    request["conversation_history"] = history
    return sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def _digested_message(message: object) -> list[object]:
    # Only the latest messages are validated: earlier ones can be any JSON.
    fields = message if isinstance(message, Mapping) else {}
    texts = [fields.get(name) for name in ("role", "content", "timestamp")]
    return [*(text if isinstance(text, str) else None for text in texts), fields.get("attachments")]


def task_input(
    task: CreateTask,
    prepared: PreparedTask,
    *,
    to_condense: TextsToCondense | None,
    base: SessionInput,
) -> SessionInput:
    """Return the input of a task's session. Raises `RejectedError` if its first prompt is too long."""
    change = Configure(title=task.title or make_title(task.description), model=task.model, tool_policy=task.tool_policy)
    start = configured(base, change).model_copy(update={"unattended": task.unattended})
    if task.timeout is not None:
        start = start.model_copy(update={"limits": start.limits.model_copy(update={"turn_timeout": task.timeout})})
    check_text(prepared.prompt, limits=start.limits, field="description")
    context = prepared.input(to_condense=to_condense)
    return with_task(start, context.model_copy(update={"parent": task.parent, "open_seconds": None}))


def note_of(task: CreateTask, prepared: PreparedTask) -> TaskNote:
    room, warnings = WARNINGS_BYTES, list[TaskValidationWarning]()
    for warning in prepared.warnings:
        room -= len(warning.model_dump_json())
        if room < 0:
            break
        warnings.append(warning)
    return TaskNote(
        digest=request_digest(task),
        description=head_within(task.description, DESCRIPTION_BYTES),
        context=prepared.report,
        warnings=warnings,
    )


CANCEL_SECONDS = 1.5
"""How long a cancellation waits for the task to end."""

MAX_TURNS = 200
"""Turns of the first page that is read for a task that inherits its parent's conversation."""


class TaskMessage(Strict):
    """A further prompt for a task. The same `id` sent twice is one prompt."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "also the Python files", "id": "m-1"}]})

    text: PromptText
    id: Id | None = None
    mode: PromptMode = "enqueue"


class Tasks:
    """All tasks. Methods raise `ProblemError`, `RejectedError` and `TaskValidationError`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lists = services.get(SessionLists)
        self._tasks = TaskReader(services)

    # ---- creating

    async def prepare(self, task: CreateTask, *, tenant: str) -> PreparedTask:
        """Return the first prompt of a task and what was changed; nothing is started. A parent is one of `tenant`."""
        parent, presets = task.parent_to_inherit_from, self._services.settings.hand_off
        policy = policy_of(task, presets, inherits=parent is not None)
        inherited = await self._inheritance(workflow_id(parent, tenant=tenant), policy) if parent else None
        # In a thread: ranking hundreds of messages takes tens of milliseconds.
        prepare = partial(prepare_task, task, now=datetime.now(UTC), inherited=inherited, presets=presets, rank=rank)
        prepared = await asyncio.to_thread(prepare) if policy.ranks else prepare()
        if task.parent and not parent:
            await self._services.reader.describe(workflow_id(task.parent, tenant=tenant))
        return prepared

    async def _inheritance(self, parent: WorkflowId, policy: HistoryPolicy) -> Inheritance:
        """Return the latest messages of a session that `policy` inherits, from at most `MAX_PAGES` pages."""
        inherited, before = Inheritance(policy), None
        for _ in range(MAX_PAGES):
            # Most turns have messages of all roles. Otherwise the next page is as large as possible.
            limit = None if before else min(policy.max_read, MAX_TURNS)
            page = await self._services.transcripts.page(parent, before=before, limit=limit)
            inherited = inherited.with_older(page.messages, has_older=page.has_more)
            if inherited.is_enough:
                break
            before = page.messages[0].id
        return inherited

    async def create(self, task: CreateTask, changes: RequestChanges) -> TaskReceipt:
        """Start a task. The same `idempotency_key` returns the same task; for another request it is a 409."""
        workflow_id = new_task_id(task, tenant=changes.caller.tenant)
        fields = field_names(task, without=("description", "idempotency_key"))
        starts: Starts = "unless it exists" if task.idempotency_key else "new"
        async with changes.begin("create_task", workflow_id, fields=fields, starts=starts):
            return await self._create(workflow_id, task, changes.caller)

    async def _create(self, workflow_id: WorkflowId, task: CreateTask, caller: Caller) -> TaskReceipt:
        if task.idempotency_key:
            receipt = await self._created_before(workflow_id, task)
            if receipt:
                return receipt
            await self._services.transcripts.raise_if_id_was_used(workflow_id)
        prepared = await self.prepare(task, tenant=caller.tenant)
        parent = sibling_id(task.parent, of=workflow_id) if task.parent else None
        prepared, to_condense = await store_hand_off(
            self._services.stores.blobs, prepared, task_id=workflow_id, parent_id=parent
        )
        note = note_of(task, prepared)
        base = await self._services.new_sessions.default_input(workflow_id, user=caller.user, agent=task.agent)
        start = task_input(task, prepared, to_condense=to_condense, base=base)
        try:
            await self._services.sessions.start(
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
            description = await self._services.reader.describe(workflow_id)
        except ProblemError as error:
            if error.problem.status == 404:
                return None
            raise
        note = await read_note(description)
        if note is None or note.digest != request_digest(task):
            raise problem("idempotency-key-reused", key=task.idempotency_key or "")
        return self._receipt(workflow_id, note, await self._status_of(workflow_id))

    async def _status_of(self, workflow_id: WorkflowId) -> TaskStatus:
        """Return a task's status in the index; without it, an open one counts as working."""
        try:
            finding = self._services.stores.index.find(workflow_id)
            row = await read_store(finding, until=seconds_from_now(self._services.timeouts.restore))
        except StoreUnavailableError:
            return "working"
        return row.task_status or "working" if row else "working"

    def _receipt(self, workflow_id: WorkflowId, note: TaskNote, status: TaskStatus) -> TaskReceipt:
        return TaskReceipt(
            **identity_of(self._services, workflow_id),
            status=status,
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

    async def list(self, query: IndexQuery, *, limit: int, cursor: str | None = None) -> TaskPage:
        """Return a page of tasks, those with the latest activity first, as the index has them."""
        rows, next_cursor = await self._lists.rows(replace(query, is_task=True), limit=limit, cursor=cursor)
        return TaskPage(tasks=[self._listed(row) for row in rows], next_cursor=next_cursor)

    def _listed(self, row: IndexedSession) -> Task:
        return Task(
            **identity_of(self._services, row.session_id),
            title=row.title,
            status=row.task_status or "working",
            status_message=row.message,
            percent=row.percent,
            parent=parent_of(row),
            created_at=row.started_at,
            updated_at=row.last_activity_at,
            context=row.hand_off,
        )

    # ---- changing

    async def message(self, workflow_id: WorkflowId, message: TaskMessage, changes: RequestChanges) -> str:
        """Send a task a further prompt, and return its id; a completed task starts working again."""
        prompt = new_prompt(message.text, message_id=message.id, mode=message.mode)
        async with changes.begin("message_task", workflow_id, message_id=prompt.id):
            check_text(message.text, limits=Limits(), field="text")
            await self._tasks.describe(workflow_id)
            return await self._services.sender.send(workflow_id, prompt)

    async def cancel(self, workflow_id: WorkflowId, *, reason: str | None = None) -> Task:
        """Cancel a task and all tasks below it, and return it after a moment; an ended one stays as it is."""
        description = await self._tasks.describe_if_retained(workflow_id)
        if description is None:
            return await self._tasks.task(workflow_id)
        await self._services.sessions.cancel(workflow_id, reason=reason)
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
