"""Prompts in, the conversation out."""

from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import JSONResponse

from api import problems
from api.bodies import (
    Chat,
    ChatAccepted,
    ConversationAnswer,
    FullConversation,
    PageLinks,
    PromptAccepted,
    Retry,
    SendPrompt,
)
from api.dependencies import MessageId, ReadsDep, SessionId, SessionsDep, SettingsDep, TranscriptsDep
from api.etags import matches
from api.routes.sessions import default_input
from api.sessions import new_prompt, prompt_again
from models.conversation import ConversationMessage, ConversationState
from models.ids import ID_PATTERN
from models.limits import Limits
from models.prompts import PromptSignal, QueueView, check_text
from models.session import UpdatesRequest

router = APIRouter(tags=["conversation"])

Wait = Annotated[float | None, Query(ge=0, le=60, allow_inf_nan=False, description="Seconds to wait at most.")]


@router.post(
    "/workflow/{id}/prompt",
    status_code=202,
    operation_id="send_prompt",
    responses={200: {"model": ConversationMessage, "description": "With `wait`: the finished turn."}},
    response_model=PromptAccepted,
)
async def send_prompt(
    sessions: SessionsDep,
    transcripts: TranscriptsDep,
    settings: SettingsDep,
    session_id: SessionId,
    body: SendPrompt,
    wait: Wait = None,
    start: Annotated[bool, Query(description="Start the session if it does not exist.")] = False,
    idempotency_key: Annotated[str | None, Header(pattern=ID_PATTERN)] = None,
) -> Any:
    """Send a prompt; it is safe once this answers 202, whether or not a worker runs."""
    prompt = _prompt_of(body, idempotency_key)
    if start:
        await transcripts.refuse_forgotten(session_id)
        await sessions.start_or_prompt(session_id, default_input(settings, session_id), prompt)
    else:
        await sessions.prompt(session_id, prompt)
    message_id = prompt.id or ""
    if wait:
        turn = await transcripts.finished_turn(session_id, message_id, seconds=wait)
        if turn:
            return JSONResponse(turn.model_dump(mode="json"))
    receipt = await sessions.receipt(session_id, message_id)
    return PromptAccepted(workflow_id=session_id, message_id=message_id, position=receipt.position)


@router.post("/workflow/{id}/retry", status_code=202, operation_id="retry_turn")
async def retry_turn(
    sessions: SessionsDep, transcripts: TranscriptsDep, session_id: SessionId, body: Retry | None = None
) -> PromptAccepted:
    """Send the prompt of a turn that ended without an answer again; 409 if it did not fail.

    With `message_id` twice is once. Without it the newest failed turn is meant: asked again after the retry has failed
    too, that is the retry.
    """
    turn = await transcripts.failed_turn(session_id, body.message_id if body else None)
    prompt = prompt_again(session_id, turn)
    await sessions.prompt(session_id, prompt)
    receipt = await sessions.receipt(session_id, prompt.id or "")
    return PromptAccepted(workflow_id=session_id, message_id=receipt.message_id, position=receipt.position)


@router.post("/chat", status_code=202, operation_id="chat")
async def chat(sessions: SessionsDep, transcripts: TranscriptsDep, settings: SettingsDep, body: Chat) -> ChatAccepted:
    """Start a session or continue one, in one call."""
    session_id = body.workflow_id or str(uuid4())
    prompt = _prompt_of(SendPrompt(message=body.message), None)
    if body.workflow_id:
        await transcripts.refuse_forgotten(session_id)
    await sessions.start_or_prompt(session_id, default_input(settings, session_id, user=body.user_name), prompt)
    receipt = await sessions.receipt(session_id, prompt.id or "")
    return ChatAccepted(workflow_id=session_id, message_id=receipt.message_id)


@router.get(
    "/workflow/{id}/conversation",
    operation_id="get_conversation",
    response_model=ConversationAnswer,
    responses={304: {"description": "Nothing has changed since `If-None-Match`."}},
)
async def get_conversation(
    sessions: SessionsDep,
    reads: ReadsDep,
    session_id: SessionId,
    last_seen_message_id: Annotated[str | None, Query(max_length=200, description="From the last answer.")] = None,
    since_revision: Annotated[int | None, Query(ge=0, le=2**53, description="`revision` of the last answer.")] = None,
    limit: Annotated[int | None, Query(ge=1, le=10_000, description="Most new messages.")] = None,
    wait: Wait = None,
    if_none_match: Annotated[str | None, Header(max_length=2_000)] = None,
) -> Any:
    """Return what is new since the last answer; with `wait`, as soon as there is something."""
    request = UpdatesRequest(
        last_seen_message_id=last_seen_message_id or None, since_revision=since_revision, limit=limit
    )
    event = await (reads.awaited(session_id, request, seconds=wait) if wait else reads.polled(session_id, request))
    etag = f'"{await sessions.first_run_id(session_id)}-{event.update.revision}"'
    if if_none_match and matches(etag, if_none_match):
        return Response(status_code=304, headers={"ETag": etag})
    # An answer that is only an excerpt, since the store is down, is not to be kept as the last word.
    headers = {"ETag": etag} if event.is_whole else {}
    return Response(event.as_answer(session_id), headers=headers, media_type="application/json")


@router.get("/workflow/{id}/conversation/full", operation_id="get_full_conversation")
async def get_full_conversation(
    transcripts: TranscriptsDep,
    session_id: SessionId,
    before: Annotated[str | None, Query(pattern=ID_PATTERN, description="Only turns before this one.")] = None,
    limit: Annotated[int | None, Query(ge=1, le=10_000, description="Most turns a page.")] = None,
) -> FullConversation:
    """Return the transcript, archive included, oldest first: the newest page, or the one before `before`.

    A page has about 1 MB; a turn that alone is longer is sent whole. While the archive can't be read, the newest page
    has what the session holds, and a page of which it holds nothing is a 503.
    """
    state = await transcripts.page(session_id, before=before, limit=limit)
    return FullConversation(**dict(state), links=PageLinks(older=_older(session_id, state, limit)))


@router.get("/workflow/{id}/queue", operation_id="get_queue")
async def get_queue(sessions: SessionsDep, session_id: SessionId) -> QueueView:
    """Return the waiting prompts with their positions, and the last 200 fates."""
    return await sessions.queue(session_id)


@router.delete("/workflow/{id}/queue/{message_id}", status_code=204, operation_id="withdraw_prompt")
async def withdraw_prompt(sessions: SessionsDep, session_id: SessionId, message_id: MessageId) -> None:
    """Take a waiting prompt back; 409 if it has started, 404 if it is not known."""
    await sessions.withdraw(session_id, message_id)


def _prompt_of(body: SendPrompt, idempotency_key: str | None) -> PromptSignal:
    if body.id and idempotency_key and body.id != idempotency_key:
        raise problems.invalid("id", "differs from the Idempotency-Key header; send one of them")
    check_text(body.message, limits=Limits(), field="message")
    return new_prompt(body.message, message_id=body.id or idempotency_key, mode=body.mode)


def _older(session_id: str, state: ConversationState, limit: int | None) -> str | None:
    if not state.has_more or not state.messages:
        return None
    page = f"&limit={limit}" if limit else ""
    return f"/workflow/{session_id}/conversation/full?before={state.messages[0].id}{page}"
