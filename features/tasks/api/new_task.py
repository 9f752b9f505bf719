"""The id, the session input and the memo of a new task.

The id of a task follows from its `idempotency_key`, so Temporal itself starts no second one, whichever gateways receive
the request. The memo has a digest of the request, so that another request with the same key is rejected, and the first
receipt, so that a repeated request gets the same one.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from uuid import NAMESPACE_URL, uuid4, uuid5

from pydantic import ValidationError
from temporalio.client import WorkflowExecution

from turnkeeper.features.tasks.session.sub_tasks import sub_task_id
from turnkeeper.features.tasks.session.task import CreateTask, PreparedTask
from turnkeeper.features.tasks.session.task_input import (
    DESCRIPTION_BYTES,
    MEMO_KEY,
    TaskInput,
    TaskNote,
    TextsToCondense,
)
from turnkeeper.features.tasks.session_part import with_task
from turnkeeper.models.bounds import head_within
from turnkeeper.models.ids import WorkflowId, workflow_id
from turnkeeper.models.session.messages import Configure, SessionInput, configured, make_title
from turnkeeper.models.session.queue.prompts import check_text
from turnkeeper.models.transcript.task_view import TaskValidationWarning

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
    request["conversation_history"] = _digested_history(task.conversation_history)
    return sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def _digested_history(history: object) -> object:
    if not isinstance(history, list):
        return history if isinstance(history, str) else None
    return [_digested_message(message) for message in history]


def _digested_message(message: object) -> list[object]:
    texts: list[object] = [_text(message, name) for name in ("role", "content", "timestamp")]
    attachments = message.get("attachments") if isinstance(message, Mapping) else None
    return [*texts, attachments]


def _text(message: object, name: str) -> str | None:
    # Only the latest messages are validated: earlier ones can be any JSON.
    text = message.get(name) if isinstance(message, Mapping) else None
    return text if isinstance(text, str) else None


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
    context = TaskInput(
        context=prepared.context,
        report=prepared.report,
        parent=task.parent,
        open_seconds=None,
        attachments=prepared.attachments,
        to_condense=to_condense,
    )
    return with_task(start, context)


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


async def read_note(execution: WorkflowExecution) -> TaskNote | None:
    """Return the note in a task's memo; `None` if it has none."""
    try:
        return TaskNote.model_validate((await execution.memo()).get(MEMO_KEY))
    except ValidationError:
        return None
