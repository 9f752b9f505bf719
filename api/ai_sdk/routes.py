"""The AI SDK adapter: what `useChat` and everything built on it speak, over the same sessions (API-1).

A chat is a session, a user's message is a prompt, and the answer to it is a turn. The stream of a turn is watched, not
owned: it can be left and resumed, by as many clients as like, and the turn goes on. `docs/ai-sdk.md` says how a page is
connected.
"""

from collections.abc import AsyncGenerator, AsyncIterable, Iterator
from contextlib import aclosing
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Depends, Header, Query, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic_core import to_json

from turnkeeper.api import problem_texts as texts
from turnkeeper.api import problems
from turnkeeper.api.ai_sdk.chunks import UIMessageChunk
from turnkeeper.api.ai_sdk.history import UIMessage, messages_of
from turnkeeper.api.ai_sdk.messages import AnswerMessage, PostChat, UserMessage
from turnkeeper.api.ai_sdk.older_clients import ANSWER_RESTARTED, chunk_for_version_6
from turnkeeper.api.ai_sdk.streams import TurnStream, turn_to_resume
from turnkeeper.api.ai_sdk.turn_chunks import TurnChunks, turn_of_answer
from turnkeeper.api.dependencies import ServicesDep, SessionId
from turnkeeper.api.http.body_limits import MAX_HISTORY_BYTES
from turnkeeper.api.http.openapi import PROMPT, SERVER, WORKER, errors
from turnkeeper.api.prompts.new_prompt import new_prompt, retry_prompt, retry_prompt_id
from turnkeeper.api.routes.sessions import default_input
from turnkeeper.api.services import Services
from turnkeeper.models.ids import ID_PATTERN
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.queue.prompts import check_text
from turnkeeper.models.session.session import StateRequest

router = APIRouter(tags=["ai-sdk"], max_body_size=MAX_HISTORY_BYTES)

MESSAGE_PATTERN = ID_PATTERN.removesuffix("$") + "(:answer)?$"

MAX_TRIES = 1_000
"""Of one message, one after the other."""

STREAM_HEADER = "x-vercel-ai-ui-message-stream"
STREAM_VERSION = "v1"
VERSION_HEADER = "x-ai-sdk-version"

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
    "description": "The turn as a UI message stream: one chunk an event, then `[DONE]`.",
    "headers": {STREAM_HEADER: {"description": "The stream's version.", "schema": {"const": STREAM_VERSION}}},
    "content": {"text/event-stream": {"example": "".join(f"data: {data}\n\n" for data in _EXAMPLE)}},
}

Version = Literal["6", "7"]
ClientVersion = Annotated[
    Version,
    Header(alias=VERSION_HEADER, description="The major version of the npm package `ai` that reads the stream."),
]

Events = AsyncGenerator[UIMessageChunk, None]


async def send_last_message(
    services: ServicesDep, response: Response, body: PostChat, version: ClientVersion = "7"
) -> AsyncGenerator[Events, None]:
    """Send the last message to the session before the stream begins: what it refuses is a problem, not a chunk."""
    turn = await _send(services, body)
    response.headers[STREAM_HEADER] = STREAM_VERSION
    async with aclosing(_events(TurnStream(services, body.id, turn), version)) as events:
        yield events


async def find_running_turn(
    services: ServicesDep, session_id: SessionId, response: Response, version: ClientVersion = "7"
) -> AsyncGenerator[Events | None, None]:
    """Find the turn that runs. Without one, or without such a session, there is nothing to resume: 204.

    The AI SDK asks for it whenever a page is opened, that of a new chat too.
    """
    response.headers[STREAM_HEADER] = STREAM_VERSION
    turn_id = await turn_to_resume(services, session_id)
    if turn_id is None:
        response.status_code = 204
        yield None
        return
    stream = TurnStream(services, session_id, TurnChunks(session_id, turn_id))
    async with aclosing(_events(stream, version)) as events:
        yield events


@router.post(
    "/api/chat",
    operation_id="ai_sdk_chat",
    response_class=EventSourceResponse,
    responses={
        200: _STREAM,
        **errors(
            *WORKER, *PROMPT, "session-exists", "unknown-call", "not-failed", "not-awaiting-approval", "other-arguments"
        ),
    },
)
async def ai_sdk_chat(events: Annotated[Events, Depends(send_last_message)]) -> AsyncIterable[UIMessageChunk]:
    """Send the last message of an AI SDK chat, and stream the turn that answers it.

    - A user's message is a prompt, in a session that is started if it does not exist. While another turn runs it waits,
      and so does the stream. The same `id` sent again is the same prompt.
    - An assistant's message with `approval-responded` tool calls decides on them; the turn's message goes on.
    - `regenerate-message` sends the prompt of the newest turn again, if that has failed or was stopped.

    The turn goes on when the client disconnects. It is stopped with `POST /workflow/{id}/cancel`.
    """
    async for event in events:
        yield event


@router.get(
    "/api/chat/{id}/stream",
    operation_id="ai_sdk_resume",
    response_class=EventSourceResponse,
    responses={
        200: _STREAM,
        204: {"description": "No turn is running: there is nothing to resume."},
        **errors(*SERVER, "no-worker", "session-stuck"),
    },
)
async def ai_sdk_resume(events: Annotated[Events | None, Depends(find_running_turn)]) -> AsyncIterable[UIMessageChunk]:
    """Stream the running turn of an AI SDK chat from its beginning, then as it happens."""
    if events is None:
        return
    async for event in events:
        yield event


@router.get(
    "/api/chat/{id}/messages",
    operation_id="ai_sdk_messages",
    responses=errors(*WORKER, "unknown-turn", "archive-unavailable"),
)
async def ai_sdk_messages(
    services: ServicesDep,
    session_id: SessionId,
    before: Annotated[
        str | None, Query(pattern=MESSAGE_PATTERN, description="Only messages before this one, the first of a page.")
    ] = None,
    limit: Annotated[int | None, Query(ge=1, le=10_000, description="Most turns.")] = None,
) -> list[UIMessage]:
    """Return the past messages of a chat, oldest first, for a page that was reloaded: the newest ones, about 1 MB.

    Of a turn that still runs there is what the user said; its stream tells the answer from its beginning. None of a
    page: there are no older ones.
    """
    turn_id = before and (turn_of_answer(before) or before)
    state = await services.transcripts.page(session_id, before=turn_id, limit=limit)
    return list(messages_of(state.messages, session_id=session_id))


async def _events(stream: TurnStream, version: Version) -> Events:
    # FastAPI describes the annotated type in OpenAPI, and sends a `ServerSentEvent` as it is.
    done_event = cast(UIMessageChunk, ServerSentEvent(raw_data="[DONE]"))
    async with aclosing(stream.chunks()) as all_chunks:
        async for chunks in all_chunks:
            for chunk in chunks if version == "7" else map(chunk_for_version_6, chunks):
                if chunk is None:
                    continue
                yield cast(UIMessageChunk, ServerSentEvent(raw_data=to_json(chunk).decode()))
                if chunk is ANSWER_RESTARTED:
                    yield done_event
                    return
    yield done_event


async def _send(services: Services, body: PostChat) -> TurnChunks:
    """Send the last message; return the turn that comes of it, of which nothing has been sent yet.

    Raises `ProblemError`, as do the functions below.
    """
    last = body.last
    if isinstance(last, AnswerMessage):
        return await _decide(services, body, last)
    if body.trigger == "regenerate-message":
        return await _retry(services, body, last)
    if body.messageId is not None:
        raise problems.invalid("messageId", texts.NO_EDITING)
    assert last is not None  # noqa: S101  # validated: only an answer is given again without a message
    check_text(last.text, limits=Limits(), field=f"{body.last_field}.parts")
    prompt = new_prompt(last.text, message_id=last.id, mode="enqueue")
    await services.transcripts.raise_if_id_was_used(body.id)
    receipt = await services.sender.send(body.id, prompt, start=default_input(services.settings, body.id))
    return TurnChunks(body.id, last.id, awaits_worker=not receipt.is_known)


async def _decide(services: Services, body: PostChat, answer: AnswerMessage) -> TurnChunks:
    field = body.last_field
    if body.trigger != "submit-message":
        raise problems.invalid(f"{field}.role", texts.NOT_USER)
    decisions = list(answer.decisions(field=field))
    if not decisions:
        raise problems.invalid(f"{field}.parts", texts.NOTHING_DECIDED)
    if answer.turn_id is None:
        raise problems.invalid(f"{field}.id", texts.OTHER_ANSWER_ID)
    for decision in decisions:
        await services.sessions.resolve_approval(body.id, decision)
    return TurnChunks(body.id, answer.turn_id, answer.client_state)


async def _retry(services: Services, body: PostChat, message: UserMessage | None) -> TurnChunks:
    """Send the newest turn's prompt again, if it is this message's, or a try of it; twice is once.

    A client that names no message means the newest turn, whichever that is.
    """
    state = await services.reader.state(body.id, StateRequest(limit=1))
    newest = state.messages[-1] if state.messages else None
    # The turn whose answer is to be given again; the client has dropped the answer itself.
    message_id = body.messageId or ""
    turn_id = turn_of_answer(message_id) or (message.id if message else message_id)
    if newest is None or (turn_id and newest.id not in _tries(body.id, turn_id)):
        raise problems.not_failed(texts.NOT_NEWEST)
    if not newest.is_complete:
        return TurnChunks(body.id, newest.id)
    if not newest.is_error:
        raise problems.not_failed(texts.ALREADY_ANSWERED)
    receipt = await services.sender.send(body.id, retry_prompt(body.id, newest))
    return TurnChunks(body.id, receipt.message_id, awaits_worker=not receipt.is_known)


def _tries(session_id: str, turn_id: str) -> Iterator[str]:
    """Yield the turn, and those that tried it again: a client knows its own message only."""
    for _ in range(MAX_TRIES):
        yield turn_id
        turn_id = retry_prompt_id(session_id, turn_id)
