"""Starting, listing, describing, configuring, ending and deleting sessions."""

from uuid import uuid4

from fastapi import APIRouter, Response
from temporalio.client import WorkflowExecutionDescription

from turnkeeper.api.bodies import Cancel, ConfigureBody, End, StartSession, session_links, session_path
from turnkeeper.api.changes import Starts, field_names
from turnkeeper.api.dependencies import ChangesDep, ServicesDep, SessionId
from turnkeeper.api.history.visible_sessions import visible_session
from turnkeeper.api.http.openapi import SERVER, SESSION, WORKER, errors
from turnkeeper.api.problems import problem
from turnkeeper.api.prompts import attachments_of, new_prompt
from turnkeeper.api.roles import MAX_HISTORY_BYTES, access, require_for_fields
from turnkeeper.models.http_responses import (
    Cancelling,
    DeletionReceipt,
    SessionChanged,
    SessionDescription,
    SessionLinks,
    SessionStarted,
)
from turnkeeper.models.ids import WorkflowId, session_id_of
from turnkeeper.models.session.messages import (
    CancelTurn,
    EndSession,
    StateRequest,
)
from turnkeeper.models.session.prompts import check_text
from turnkeeper.models.transcript.conversation import ConversationState

router = APIRouter(tags=["sessions"])


@router.post(
    "/workflow",
    status_code=201,
    max_body_size=MAX_HISTORY_BYTES,
    operation_id="start_session",
    responses=errors(*SERVER, "too-large", "session-exists"),
)
@access("writer")
async def start_session(
    services: ServicesDep,
    changes: ChangesDep,
    response: Response,
    body: StartSession | None = None,
) -> SessionStarted:
    """Start a session; 409 if its id was used before."""
    options = body or StartSession()
    require_for_fields(changes.caller, options)
    workflow_id = changes.caller.workflow_id(options.id or str(uuid4()))
    fields = field_names(options, without=("id", "prompt", "attachments"))
    starts: Starts = "unless it exists" if options.id else "new"
    async with changes.begin("start", workflow_id, fields=fields, starts=starts) as entry:
        start = await services.new_sessions.requested_input(options, workflow_id, changes.caller)
        attachments = attachments_of(options.attachments)
        prepared = await services.attachments.prepare(workflow_id, attachments, limits=start.limits)
        if options.prompt is not None or prepared.attachments:
            text = options.prompt or ""
            check_text(text, limits=start.limits, field="prompt", may_be_blank=bool(prepared.attachments))
            first = new_prompt(text, message_id=None, mode="enqueue", attachments=prepared.attachments)
            start, entry.message_id = start.model_copy(update={"first_prompt": first}), first.id
        if options.id:
            await services.transcripts.raise_if_id_was_used(workflow_id)
        await services.attachments.store(workflow_id, prepared.contents, is_started_next=True)
        await services.sessions.start(workflow_id, start)
    response.headers["Location"] = session_path(workflow_id)
    return SessionStarted(workflow_id=session_id_of(workflow_id), message_id=entry.message_id)


@router.get("/workflow/{id}", operation_id="describe_session", responses=errors(*WORKER))
@access("reader")
async def describe_session(services: ServicesDep, workflow_id: SessionId) -> SessionDescription:
    """Describe a session: configuration, status and usage. It is `stuck` if its workflow task keeps failing."""
    description = await services.reader.describe_if_retained(workflow_id)
    links = session_links(services.settings, workflow_id, namespace=services.client.namespace)
    if description is None:  # ended so long ago that the Web UI has nothing of it
        links = links.model_copy(update={"temporal": None})
    elif await services.reader.is_stuck(workflow_id, description):
        return await _stuck(description, workflow_id, links)
    state = await services.reader.state(workflow_id, StateRequest(limit=0))
    return _description_of(state, workflow_id, links)


@router.patch(
    "/workflow/{id}",
    status_code=202,
    operation_id="configure_session",
    responses=errors(*WORKER, "too-large", "session-ended"),
)
@access("writer")
async def configure_session(
    services: ServicesDep, changes: ChangesDep, workflow_id: SessionId, body: ConfigureBody
) -> SessionChanged:
    """Change the session from its next turn on. `limits` and `history` change only the fields that are present."""
    require_for_fields(changes.caller, body)
    async with changes.begin("configure", workflow_id, fields=field_names(body)):
        await services.sessions.configure(workflow_id, await services.new_sessions.change(body, workflow_id))
    return SessionChanged(workflow_id=session_id_of(workflow_id))


@router.post(
    "/workflow/{id}/cancel",
    status_code=202,
    operation_id="cancel_turn",
    responses=errors(*WORKER, "too-large", "session-ended", "not-running"),
)
@access("writer")
async def cancel_turn(
    services: ServicesDep, changes: ChangesDep, workflow_id: SessionId, body: Cancel | None = None
) -> Cancelling:
    """Stop a turn. With `message_id` a late request can't stop the next turn by mistake.

    The model reads who stopped it, and the `reason`.
    """
    options = body or Cancel()
    async with changes.begin("cancel", workflow_id, message_id=options.message_id) as entry:
        if entry.message_id is None:
            state = await services.reader.state(workflow_id, StateRequest(limit=0))
            entry.message_id = state.current_message_id
        if entry.message_id is None:
            raise problem("not-running")
        stop = CancelTurn(message_id=entry.message_id, reason=options.reason)
        receipt = await services.sessions.cancel_turn(workflow_id, stop, by=changes.caller.user)
    return Cancelling(workflow_id=session_id_of(workflow_id), cancelling=receipt.cancelling)


@router.post(
    "/workflow/{id}/end",
    status_code=202,
    operation_id="end_session",
    responses=errors(*SESSION, "too-large", "session-ended"),
)
@access("writer")
async def end_session(
    services: ServicesDep, changes: ChangesDep, workflow_id: SessionId, body: End | None = None
) -> SessionChanged:
    """End the session after its queued prompts, or discard them."""
    options = body or End()
    end = EndSession(reason=options.reason, discard_queue=options.discard_queue)
    async with changes.begin("end", workflow_id, fields=("discard_queue",) if end.discard_queue else ()):
        await services.sessions.end(workflow_id, end)
    return SessionChanged(workflow_id=session_id_of(workflow_id))


@router.delete(
    "/workflow/{id}",
    status_code=202,
    operation_id="delete_session",
    responses={
        200: {"model": DeletionReceipt, "description": "The session is deleted."},
        202: {"description": "The session is being deleted. Repeat the request to get the receipt."},
        **errors(*SESSION, "archive-unavailable", "deletion-refused"),
    },
)
@access("admin")
async def delete_session(
    services: ServicesDep, changes: ChangesDep, workflow_id: SessionId, response: Response
) -> DeletionReceipt:
    """Terminate the session and delete all its runs, archived turns and large texts. Repeat it to get the receipt.

    200 once everything is deleted. A deletion that has begun always finishes, as soon as a worker and the archive are
    available; 503 while the archive is unavailable.
    """
    async with changes.begin("delete", workflow_id):
        receipt = await services.deleter.delete(workflow_id)
    if receipt.status == "deleted":
        response.status_code = 200
    return receipt


def _description_of(state: ConversationState, workflow_id: WorkflowId, links: SessionLinks) -> SessionDescription:
    session = state.session
    return SessionDescription(
        workflow_id=session_id_of(workflow_id),
        title=session.title,
        user=session.user,
        model=session.model,
        agent=session.agent,
        status=state.status,
        waiting_until=state.waiting_until,
        waiting_reason=state.waiting_reason,
        created_at=session.created_at,
        turn_count=session.turn_count,
        queue_length=state.queue_length,
        usage=session.usage,
        tasks_usage=session.tasks_usage,
        archived_count=state.archived_count,
        archive=session.archive,
        conversation_metrics=session.conversation_metrics,
        links=links,
    )


async def _stuck(
    description: WorkflowExecutionDescription, workflow_id: WorkflowId, links: SessionLinks
) -> SessionDescription:
    visible = await visible_session(description)
    return SessionDescription(
        workflow_id=session_id_of(workflow_id),
        title=visible.title,
        user=visible.user,
        model=None,
        status="stuck",
        created_at=visible.started_at,
        turn_count=None,
        links=links,
    )
