"""The AI SDK adapter: the same sessions for `useChat` and everything built on it (API-1).

A chat is a session, a user's message is a prompt, and the answer is a turn. A stream only watches its turn: any number
of clients can leave and resume it, and the turn continues. `docs/ai-sdk.md` says how to connect a page.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Response
from pydantic_core import to_json

from turnkeeper.api.changes import RequestChanges
from turnkeeper.api.dependencies import ChangesDep, ServicesDep, SessionId
from turnkeeper.api.http.event_stream import EVENT_STREAM, EventStreamResponse
from turnkeeper.api.http.openapi import PROMPT, SERVER, WORKER, errors
from turnkeeper.api.problems import ProblemError, invalid, problem
from turnkeeper.api.prompts.prompt_sender import new_prompt, retry_prompt, retry_prompt_id
from turnkeeper.api.roles import MAX_HISTORY_BYTES, access, require
from turnkeeper.api.services import Services
from turnkeeper.features.ai_sdk.chunks import ANSWER_RESTARTED, UIMessageChunk, chunk_for_version_6
from turnkeeper.features.ai_sdk.messages import AnswerMessage, PostChat, UIMessage, UserMessage, messages_of
from turnkeeper.features.ai_sdk.streams import TurnStream, turn_to_resume
from turnkeeper.features.ai_sdk.turn_chunks import TurnChunks, turn_of_answer
from turnkeeper.models.ids import ID_PATTERN, WorkflowId, session_id_of
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.approvals import ResolveApproval
from turnkeeper.models.session.messages import StateRequest
from turnkeeper.models.session.queue.prompts import check_text
from turnkeeper.models.transcript.trajectory import ModelStep

router = APIRouter(tags=["ai-sdk"], max_body_size=MAX_HISTORY_BYTES)

MESSAGE_PATTERN = ID_PATTERN.removesuffix("$") + "(:answer)?$"

MAX_TRIES = 1_000
"""Retries of one message."""

DECISION_UNUSED_NOTICE = "A tool call was already decided otherwise, or has expired: your decision on it has no effect."

STREAM_HEADER = "x-vercel-ai-ui-message-stream"
STREAM_VERSION = "v1"
VERSION_HEADER = "x-ai-sdk-version"
DONE_EVENT = b"data: [DONE]\n\n"

_EXAMPLE = [
    '{"type":"start","messageId":"m1:answer","messageMetadata":{"turnId":"m1"}}',
    '{"type":"start-step"}',
    '{"type":"text-start","id":"text-1"}',
    '{"type":"text-delta","id":"text-1","delta":"It is noon."}',
    '{"type":"text-end","id":"text-1"}',
    '{"type":"finish-step"}',
    '{"type":"finish","finishReason":"stop","messageMetadata":{}}',
    "[DONE]",
]

_STREAM: dict[str, Any] = {
    "model": UIMessageChunk,
    "description": "The turn as a UI message stream: one chunk per event, then `[DONE]`.",
    "headers": {STREAM_HEADER: {"description": "The stream's version.", "schema": {"const": STREAM_VERSION}}},
    "content": {EVENT_STREAM: {"example": "".join(f"data: {data}\n\n" for data in _EXAMPLE)}},
}

Version = Literal["6", "7"]
ClientVersion = Annotated[
    Version,
    Header(alias=VERSION_HEADER, description="The major version of the npm package `ai` that reads the stream."),
]


@router.post(
    "/api/chat",
    status_code=200,
    operation_id="ai_sdk_chat",
    response_class=EventStreamResponse,
    responses={
        200: _STREAM,
        **errors(
            *WORKER, *PROMPT, "session-exists", "unknown-call", "not-failed", "not-awaiting-approval", "other-arguments"
        ),
    },
)
@access("writer")
async def ai_sdk_chat(
    services: ServicesDep, changes: ChangesDep, body: PostChat, version: ClientVersion = "7"
) -> Response:
    """Send the last message of an AI SDK chat, and stream the turn that answers it.

    - A user's message is a prompt; the session starts if it does not exist. While another turn runs, the prompt and the
      stream wait. Sending the same `id` again makes no second prompt.
    - An assistant's message with `approval-responded` tool calls decides on them, and the message continues. Behind a
      user's message, the newest such message counts too for calls that still wait, if the caller may decide. The user's
      message is sent in any case; if a call was decided otherwise, the stream begins with a `data-notice`.
    - `regenerate-message` sends the prompt of the newest turn again, if that turn failed or was stopped.

    The turn continues when the client disconnects. `POST /workflow/{id}/cancel` stops it.
    """
    workflow_id = changes.caller.workflow_id(body.id)
    turn = await _send(services, workflow_id, body, changes)
    return _stream(services, TurnStream(services, workflow_id, turn), version)


@router.get(
    "/api/chat/{id}/stream",
    status_code=200,
    operation_id="ai_sdk_resume",
    response_class=EventStreamResponse,
    responses={
        200: _STREAM,
        204: {"description": "No turn is running: there is nothing to resume."},
        **errors(*SERVER, "no-worker", "session-stuck"),
    },
)
@access("reader")
async def ai_sdk_resume(services: ServicesDep, workflow_id: SessionId, version: ClientVersion = "7") -> Response:
    """Stream the running turn of an AI SDK chat, from its beginning.

    The AI SDK sends this request whenever a page is opened, even for a new chat.
    """
    turn_id = await turn_to_resume(services, workflow_id)
    if turn_id is None:
        return Response(status_code=204)
    return _stream(
        services, TurnStream(services, workflow_id, TurnChunks(session_id_of(workflow_id), turn_id)), version
    )


@router.get(
    "/api/chat/{id}/messages",
    operation_id="ai_sdk_messages",
    responses=errors(*WORKER, "unknown-turn", "archive-unavailable"),
)
@access("reader")
async def ai_sdk_messages(
    services: ServicesDep,
    workflow_id: SessionId,
    before: Annotated[str | None, Query(pattern=MESSAGE_PATTERN, description="Only messages before this one.")] = None,
    limit: Annotated[int | None, Query(ge=1, le=10_000, description="Maximum number of turns.")] = None,
) -> list[UIMessage]:
    """Return the newest past messages of a chat, about 1 MB, oldest first, for a page that was reloaded.

    A running turn has only its prompt here; its stream has the answer. An empty list means that there are no older
    messages.
    """
    turn_id = before and (turn_of_answer(before) or before)
    state = await services.transcripts.page(workflow_id, before=turn_id, limit=limit)
    return list(messages_of(state.messages, session_id=session_id_of(workflow_id)))


def _stream(services: Services, stream: TurnStream, version: Version) -> EventStreamResponse:
    return EventStreamResponse(_events(stream, version), services.timeouts, headers={STREAM_HEADER: STREAM_VERSION})


async def _events(stream: TurnStream, version: Version) -> AsyncGenerator[bytes, None]:
    async with aclosing(stream.chunks()) as all_chunks:
        async for chunks in all_chunks:
            for chunk in chunks if version == "7" else map(chunk_for_version_6, chunks):
                if chunk is None:
                    continue
                yield b"data: " + to_json(chunk) + b"\n\n"
                if chunk is ANSWER_RESTARTED:
                    yield DONE_EVENT
                    return
    yield DONE_EVENT


async def _send(services: Services, workflow_id: WorkflowId, body: PostChat, changes: RequestChanges) -> TurnChunks:
    """Send the last message; return the chunks of its turn, none of which was sent yet. Raises `ProblemError`."""
    last = body.last
    if isinstance(last, AnswerMessage):
        require(changes.caller, "approver")
        return await _decide(services, workflow_id, body, last, changes)
    if body.trigger == "regenerate-message":
        async with changes.begin("retry", workflow_id, message_id=last.id if last else None):
            return await _retry(services, workflow_id, body, last)
    if body.messageId is not None:
        raise invalid("messageId", "earlier messages can't be edited; send the text as a new message")
    assert last is not None  # noqa: S101  # validated: only `regenerate-message` needs no message
    are_used = not body.decided_before or await _decide_before(services, workflow_id, body.decided_before, changes)
    field = f"{body.last_field}.parts"
    async with changes.begin("prompt", workflow_id, message_id=last.id, starts="unless it exists"):
        files = last.attachments(field=body.last_field, session_id=session_id_of(workflow_id))
        check_text(last.text, limits=Limits(), field=field, may_be_blank=bool(files))
        prepared = await services.attachments.prepare(workflow_id, files, name=field)
        prompt = new_prompt(last.text, message_id=last.id, mode="enqueue", attachments=prepared.attachments)
        start = partial(services.new_sessions.default_input, workflow_id, user=changes.caller.user)
        await services.sender.send(workflow_id, prompt, start=start, contents=prepared.contents)
    chunks = TurnChunks(session_id_of(workflow_id), last.id, awaits_worker=True)
    chunks.first_notice = None if are_used else DECISION_UNUSED_NOTICE
    return chunks


async def _decide(
    services: Services, workflow_id: WorkflowId, body: PostChat, answer: AnswerMessage, changes: RequestChanges
) -> TurnChunks:
    """Send the decisions, one after the other. Raises `ProblemError` for the first that fails; those before it stay."""
    field = body.last_field
    if body.trigger != "submit-message":
        raise invalid(f"{field}.role", "must be user, to answer a message again")
    decisions = list(answer.decisions(field=field))
    if not decisions:
        raise invalid(f"{field}.parts", "has no tool call in state approval-responded, so there is nothing to decide")
    if answer.turn_id is None:
        raise invalid(f"{field}.id", "is not the id of an answer from this server")
    for decision in decisions:
        async with changes.begin(decision.decision, workflow_id, call_id=decision.call_id):
            await services.sessions.resolve_approval(workflow_id, decision, by=changes.caller.user)
    return TurnChunks(session_id_of(workflow_id), answer.turn_id, answer.client_state)


async def _decide_before(
    services: Services, workflow_id: WorkflowId, answer: AnswerMessage, changes: RequestChanges
) -> bool:
    """Send the decisions of an answer before the newest message on calls that still wait; the others have no effect.

    A client sends old decisions again with every message, so none is in the way of the message. Returns whether none
    differs from what became of its call. Raises `ProblemError` where the session can't be reached.
    """
    try:
        state = await services.reader.state(workflow_id, StateRequest(limit=1))
    except ProblemError as problem:
        if problem.problem.status == 404:
            return True
        raise
    turn = state.messages[-1] if state.messages else None
    if turn is None or turn.is_complete or turn.id != answer.turn_id:
        return True
    calls = {call.id: call for step in turn.steps if isinstance(step, ModelStep) for call in step.tool_calls}
    are_used = True
    for decision in answer.known_decisions():
        call = calls.get(decision.call_id)
        if call is None or call.approval is None:
            continue
        if not call.awaits_approval:
            are_used &= call.approval.is_given == (decision.decision == "approve")
        elif changes.caller.has("approver"):  # for others the stream says that the call waits
            are_used &= await _decide_now(services, workflow_id, decision, changes)
    return are_used


async def _decide_now(
    services: Services, workflow_id: WorkflowId, decision: ResolveApproval, changes: RequestChanges
) -> bool:
    """Send a decision; return whether it was accepted. Raises `ProblemError` for everything but a conflict."""
    try:
        async with changes.begin(decision.decision, workflow_id, call_id=decision.call_id):
            await services.sessions.resolve_approval(workflow_id, decision, by=changes.caller.user)
    except ProblemError as problem:
        if problem.problem.status != 409:
            raise
        return False
    return True


async def _retry(
    services: Services, workflow_id: WorkflowId, body: PostChat, message: UserMessage | None
) -> TurnChunks:
    """Send the newest turn's prompt again, if it is this message's or a retry of it. Repeating it has no effect.

    Without a message the newest turn is meant.
    """
    state = await services.reader.state(workflow_id, StateRequest(limit=1))
    newest = state.messages[-1] if state.messages else None
    # The client has already dropped the answer that it wants again.
    message_id = body.messageId or ""
    turn_id = turn_of_answer(message_id) or (message.id if message else message_id)
    if newest is None or (turn_id and newest.id not in _tries(workflow_id, turn_id)):
        raise problem("not-failed", "Only the newest message of a chat can be answered again.")
    if not newest.is_complete:
        return TurnChunks(session_id_of(workflow_id), newest.id)
    if not newest.is_error:
        detail = "The message has an answer. Only messages that failed or were stopped can be answered again."
        raise problem("not-failed", detail)
    retry_id = await services.sender.send(workflow_id, retry_prompt(workflow_id, newest))
    return TurnChunks(session_id_of(workflow_id), retry_id, awaits_worker=True)


def _tries(workflow_id: WorkflowId, turn_id: str) -> Iterator[str]:
    """Yield the ids of the turn and of its retries, of which the client knows only the first."""
    for _ in range(MAX_TRIES):
        yield turn_id
        turn_id = retry_prompt_id(workflow_id, turn_id)
