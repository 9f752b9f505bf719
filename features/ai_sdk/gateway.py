"""The AI SDK adapter: the same sessions for `useChat` and everything built on it (API-1, AGT-5).

A chat is a session, a user's message is a prompt, and the answer is a turn. A stream only watches its turn: any number
of clients can leave and resume it, and the turn continues. `docs/ai-sdk.md` says how to connect a page.

A stream begins with the turn as the session has it, which may be a place in the queue, and continues with the session's
feed from there, so that nothing is missed in between. All streams of a session share its one feed.

Once a stream has begun, it can't fail with a status. While Temporal or the workers are away it sends a notice and
waits, as the turn does. Problems that waiting doesn't fix become an `error` chunk with the problem's text. So does the
shutdown of the gateway, which would otherwise be an error without words in the AI SDK.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Response
from pydantic_core import to_json

from turnkeeper.api.changes import RequestChanges
from turnkeeper.api.dependencies import ChangesDep, ServicesDep, SessionId
from turnkeeper.api.http.openapi import PROMPT, SERVER, WORKER, errors
from turnkeeper.api.http.streams import EVENT_STREAM, EventStreamResponse
from turnkeeper.api.live.feed import RETRY_SECONDS, Event, ProblemEvent, QueueEvent, UpdateEvent
from turnkeeper.api.live.live_output import PartialEvent, ProgressEvent
from turnkeeper.api.problems import ProblemError, invalid, problem
from turnkeeper.api.prompts import new_prompt, retry_prompt, retry_prompt_id
from turnkeeper.api.roles import MAX_HISTORY_BYTES, access, require
from turnkeeper.api.services import GatewayFeature, Services
from turnkeeper.api.timeouts import seconds_from_now
from turnkeeper.features.ai_sdk.chunks import ANSWER_RESTARTED, UIMessageChunk, chunk_for_version_6
from turnkeeper.features.ai_sdk.messages import AnswerMessage, PostChat, UIMessage, UserMessage, messages_of
from turnkeeper.features.ai_sdk.turn_chunks import Chunks, TurnChunks, turn_of_answer
from turnkeeper.models.ids import ID_PATTERN, WorkflowId, session_id_of
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.approvals import PendingApproval, ResolveApproval
from turnkeeper.models.session.messages import StateRequest, UpdatesRequest
from turnkeeper.models.session.prompts import check_text
from turnkeeper.models.transcript.conversation import FINAL_STATUSES, ConversationMessage, ModelStep, SessionStatus

TEMPORARY_STATUSES = (429, 503, 504)
"""Temporary problems: Temporal is busy or can't be reached, or no worker answers."""

SILENT_WORKER_NOTICE = "Your message is safe. It is answered as soon as a worker is available."
DECISION_AWAITED_NOTICE = "An earlier message needs a decision on a tool call first. Then this one is answered."
STREAM_BROKEN = "The connection ended before the turn did. The turn continues: resume the stream to see the rest."

SILENCE_SECONDS = 1.9
"""How long to wait for a worker to answer after a prompt, before the stream says that none does (API-2)."""


async def turn_to_resume(services: Services, workflow_id: WorkflowId) -> str | None:
    """Return the id of the running turn, or of the next prompt; `None` if there is neither, or no such session.

    Raises `ProblemError`.
    """
    try:
        state = await services.reader.state(workflow_id, StateRequest(limit=0))
        if state.current_message_id or not state.queue_length:
            return state.current_message_id
        waiting = (await services.reader.queue(workflow_id)).waiting
    except ProblemError as problem:
        if problem.problem.status == 404:
            return None
        raise
    return waiting[0].id if waiting else None


class TurnStream:
    """One turn of a session, for one client. `turn` knows what the client has."""

    def __init__(self, services: Services, workflow_id: WorkflowId, turn: TurnChunks) -> None:
        self._services = services
        self._workflow_id = workflow_id
        self._turn = turn

    async def chunks(self) -> AsyncGenerator[Chunks, None]:
        """Yield the chunks of the turn until its end. The turn may still be in the queue."""
        if self._turn.first_notice:
            yield self._turn.notice(self._turn.first_notice)
        if self._turn.awaits_worker and await self._is_silent():
            yield self._turn.notice(SILENT_WORKER_NOTICE)
        while not self._turn.is_over:
            try:
                async with aclosing(self._follow()) as chunks_of_turn:
                    async for chunks in chunks_of_turn:
                        yield chunks
            except ProblemError as problem:
                if self._services.closing.has_begun:
                    yield self._turn.fail(STREAM_BROKEN)
                elif problem.problem.status not in TEMPORARY_STATUSES:
                    yield self._turn.fail(problem.problem.detail)
                else:
                    yield self._turn.notice(problem.problem.detail)
                    await self._services.closing.sleep(until=seconds_from_now(RETRY_SECONDS))

    async def _is_silent(self) -> bool:
        """Return whether no worker answers for the session."""
        try:
            async with self._services.closing.time_limit(seconds_from_now(SILENCE_SECONDS)):
                await self._services.reader.state(self._workflow_id, StateRequest(limit=0))
        except (TimeoutError, ProblemError):
            return True
        return False

    async def _follow(self) -> AsyncGenerator[Chunks, None]:
        """Yield what the session has of the turn, then what is new. Raises `ProblemError`."""
        state = await self._services.reader.state(self._workflow_id, StateRequest(limit=1))
        newest = state.messages[-1] if state.messages else None
        is_newest = newest is not None and newest.id == self._turn.turn_id
        yield await self._on_turn(newest if is_newest else await self._ended_turn())
        if self._turn.is_over:
            return
        yield self._note_decision(state.status)
        cursor = UpdatesRequest(last_seen_message_id=newest.id if newest else None, since_revision=state.revision)
        status = state.status
        async with aclosing(self._services.feed.events(self._workflow_id, cursor)) as events:
            async for event in events:
                status = event.update.status if isinstance(event, UpdateEvent) else status
                yield await self._on_event(event)
                yield self._note_decision(status)
                if self._turn.is_over:
                    return
        yield await self._on_turn(await self._ended_turn())
        if not self._turn.is_over:
            is_closed = status in FINAL_STATUSES
            yield self._turn.fail(f"The session is {status}; this turn has no answer." if is_closed else STREAM_BROKEN)

    def _note_decision(self, status: SessionStatus) -> Chunks:
        """Return a notice if an earlier turn, which this one waits for, needs a decision."""
        if self._turn.has_begun or self._turn.is_over or status != "awaiting_approval":
            return []
        return self._turn.notice(DECISION_AWAITED_NOTICE)

    async def _on_event(self, event: Event) -> Chunks:
        turn: ConversationMessage | None = None
        turn_id, has_begun = self._turn.turn_id, self._turn.has_begun
        match event:
            case ProblemEvent():  # the feed tries again
                problem = event.problem
                return self._turn.notice(problem.detail) if problem.status in TEMPORARY_STATUSES else []
            case PartialEvent():
                return self._turn.on_partial(event.growth)
            case ProgressEvent():
                return self._turn.on_progress(event.progress)
            case UpdateEvent():
                update = event.update
                turns = [*update.updated_messages, *update.new_messages]
                turn = next((turn for turn in turns if turn.id == turn_id), None)
                # The turn may have ended without being seen, or may never come.
                is_absence_final = update.reset if has_begun else update.queue_length == 0
                may_have_ended = turn is None and not update.has_more and is_absence_final
            case QueueEvent():
                may_have_ended = not has_begun and all(prompt.id != turn_id for prompt in event.waiting)
        return await self._on_turn(await self._ended_turn() if may_have_ended else turn)

    async def _ended_turn(self) -> ConversationMessage | None:
        """Return the turn if it has ended, also from the archive. Raises the fate of a prompt that became no turn."""
        return await self._services.fates.ended_turn(self._workflow_id, self._turn.turn_id)

    async def _on_turn(self, turn: ConversationMessage | None) -> Chunks:
        """Return the next chunks of the turn, with its new large texts restored if they can be read."""
        if turn is None:
            return []
        new_steps = [step for step in turn.steps if isinstance(step, ModelStep) and step.number > self._turn.final_step]
        # Results stay excerpts with a link.
        refs = [
            ref
            for step in new_steps
            for ref in (step.thinking_blob, step.text_blob, *(call.args_blob for call in step.tool_calls))
        ]
        hashes = {ref.hash for ref in refs if ref}
        until = seconds_from_now(self._services.timeouts.restore)
        (whole,) = await self._services.texts.restore_texts(self._workflow_id, [turn], hashes, until=until)
        return self._turn.on_turn(whole, await self._pending_of(turn))

    async def _pending_of(self, turn: ConversationMessage) -> dict[str, PendingApproval]:
        """Return what people decide on in the turn, by call id. Raises `ProblemError`."""
        if turn.status != "awaiting_approval":
            return {}
        pending = await self._services.approvals.pending(self._workflow_id)
        return {approval.call_id: approval for approval in pending.approvals if approval.message_id == turn.id}


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


class _AiSdk(GatewayFeature):
    routers = (router,)


GATEWAY = _AiSdk()
