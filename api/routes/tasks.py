"""Tasks: agents that start with the conversation that led to their task."""

from fastapi import APIRouter

from turnkeeper.api.bodies import TaskPreview
from turnkeeper.api.dependencies import ServicesDep
from turnkeeper.api.http.body_limits import MAX_HISTORY_BYTES
from turnkeeper.api.http.openapi import WORKER, errors
from turnkeeper.models.session.task import CreateTask

router = APIRouter(tags=["tasks"], max_body_size=MAX_HISTORY_BYTES)


@router.post(
    "/tasks/preview",
    operation_id="preview_task",
    responses=errors(*WORKER, "too-large", "archive-unavailable"),
)
async def preview_task(services: ServicesDep, body: CreateTask) -> TaskPreview:
    """Return the context that a task's agent would get, with warnings about what would be fixed or left out.

    Nothing is started.
    """
    prepared = await services.tasks.prepare(body)
    return TaskPreview(
        context=prepared.report,
        warnings=prepared.warnings,
        conversation_history=prepared.context.conversation_history,
        prompt=prepared.prompt,
    )
