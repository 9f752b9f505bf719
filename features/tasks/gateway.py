"""What tasks add to the gateway: agents that start with the conversation that led to their task (TSK-1 to TSK-4)."""

from collections.abc import Iterable
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from turnkeeper.api.dependencies import CallerDep, ChangesDep, ServicesDep, TaskId
from turnkeeper.api.http.openapi import ANY, TASK, WORKER, errors
from turnkeeper.api.roles import MAX_HISTORY_BYTES, access, require_for_fields
from turnkeeper.api.routes.conversation import ACCEPTED, accepted
from turnkeeper.api.services import GatewayFeature, Services
from turnkeeper.features.tasks.rules.hand_off import ExchangeRelevance
from turnkeeper.features.tasks.rules.task_context import ConversationHistory
from turnkeeper.features.tasks.session.task import CreateTask
from turnkeeper.features.tasks.tasks import TaskMessage, Tasks
from turnkeeper.models.http_responses import Task, TaskPage, TaskReceipt
from turnkeeper.models.ids import ID_PATTERN
from turnkeeper.models.transcript.conversation import HandOffReport, TaskStatus, TaskValidationWarning
from turnkeeper.models.wire import Reason, Strict
from turnkeeper.stores.session_index import IndexQuery


class CancelTask(Strict):
    """Cancel a task; the `reason` is in Temporal's history."""

    reason: Reason | None = None


class TaskPreview(BaseModel):
    """A task as it would start: its history, a report on how the history was cut, and its first `prompt`."""

    context: HandOffReport
    warnings: list[TaskValidationWarning]
    conversation_history: ConversationHistory | None
    prompt: str
    relevance: list[ExchangeRelevance] = []
    """Of each exchange, and why it stayed or was left out; empty if the policy has no `relevant_to` (CTX-15)."""


router = APIRouter(tags=["tasks"], max_body_size=MAX_HISTORY_BYTES)

WaitSeconds = Annotated[
    float, Query(ge=0, le=60, allow_inf_nan=False, description="Seconds to wait until it has ended or needs a person.")
]


@router.post(
    "/tasks/preview",
    operation_id="preview_task",
    responses=errors(*WORKER, "too-large", "archive-unavailable"),
)
@access("reader")
async def preview_task(services: ServicesDep, caller: CallerDep, body: CreateTask) -> TaskPreview:
    """Return the context that a task's agent would get, with warnings about what would be fixed or left out.

    Nothing is started.
    """
    prepared = await services.get(Tasks).prepare(body, tenant=caller.tenant)
    return TaskPreview(
        context=prepared.report,
        warnings=prepared.warnings,
        conversation_history=prepared.context.conversation_history,
        prompt=prepared.prompt,
        relevance=prepared.relevance,
    )


@router.post(
    "/tasks",
    status_code=201,
    operation_id="create_task",
    responses=errors(*WORKER, "too-large", "archive-unavailable", "session-exists", "idempotency-key-reused"),
)
@access("writer")
async def create_task(services: ServicesDep, changes: ChangesDep, body: CreateTask, response: Response) -> TaskReceipt:
    """Start a task: a session whose first prompt is the description and what led to it.

    Warnings say what was changed of the history, and never fail a task. The same `idempotency_key` with the same
    request is the same task, also after it has ended; a key belongs to its `parent`.
    """
    require_for_fields(changes.caller, body)
    receipt = await services.get(Tasks).create(body, changes)
    response.headers["Location"] = f"/tasks/{receipt.task_id}"
    return receipt


@router.get("/tasks", operation_id="list_tasks", responses=errors(*ANY, "archive-unavailable"))
@access("reader")
async def list_tasks(
    services: ServicesDep,
    caller: CallerDep,
    status: Annotated[TaskStatus | None, Query(description="Only tasks with this status.")] = None,
    parent: Annotated[
        str | None, Query(pattern=ID_PATTERN, description="Only tasks of this session; `none`: those of no session.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=100, description="Most tasks a page.")] = 20,
    cursor: Annotated[str | None, Query(max_length=4_000, description="`next_cursor` of the page before.")] = None,
) -> TaskPage:
    """List tasks, those that sessions have started included, the latest activity first, without what came of them."""
    query = IndexQuery(tenant=caller.tenant, task_status=status, parent=parent)
    return await services.get(Tasks).list(query, limit=limit, cursor=cursor)


@router.get("/tasks/{id}", operation_id="get_task", responses=errors(*TASK))
@access("reader")
async def get_task(services: ServicesDep, workflow_id: TaskId, wait_seconds: WaitSeconds = 0) -> Task:
    """Return a task; with `wait_seconds`, once it has ended or a person has to decide, or after that time."""
    return await services.get(Tasks).get(workflow_id, wait_seconds=wait_seconds)


@router.post(
    "/tasks/{id}/messages",
    status_code=202,
    operation_id="message_task",
    responses={**ACCEPTED, **errors(*TASK, "too-large", "queue-full", "session-ended")},
)
@access("writer")
async def message_task(
    services: ServicesDep, changes: ChangesDep, workflow_id: TaskId, body: TaskMessage
) -> JSONResponse:
    """Send a task a further prompt; once this answers 202 it is safe. A task that has answered works again."""
    return accepted(workflow_id, await services.get(Tasks).message(workflow_id, body, changes))


@router.post("/tasks/{id}/cancel", status_code=202, operation_id="cancel_task", responses=errors(*TASK, "too-large"))
@access("writer")
async def cancel_task(
    services: ServicesDep, changes: ChangesDep, workflow_id: TaskId, body: CancelTask | None = None
) -> Task:
    """Cancel a task and all tasks below it, and end its session; one that has ended stays as it is."""
    async with changes.begin("cancel_task", workflow_id):
        return await services.get(Tasks).cancel(workflow_id, reason=body.reason if body else None)


class _Tasks(GatewayFeature):
    routers = (router,)

    def services(self, services: Services) -> Iterable[object]:
        yield Tasks(services)


GATEWAY = _Tasks()
