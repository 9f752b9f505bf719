"""Sending prompts, reading the conversation by polls, by a stream of events (API-1) or whole, and approvals (AGT-8)."""

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import JSONResponse

from turnkeeper.api.bodies import Chat, Retry, SendPrompt, session_path
from turnkeeper.api.changes import Starts
from turnkeeper.api.dependencies import CallId, ChangesDep, MessageId, ServicesDep, SessionId
from turnkeeper.api.http.authentication import until_credential_ends
from turnkeeper.api.http.compression import matches, poll_etag
from turnkeeper.api.http.openapi import PROMPT, WORKER, errors
from turnkeeper.api.http.streams import EventStreamResponse
from turnkeeper.api.live.feed import EVENT_ID_PATTERN, Event, UpdateEvent, WaitingPrompts, cursor_of
from turnkeeper.api.problems import Problem, invalid
from turnkeeper.api.prompts import attachments_of, chat_session_id, new_prompt, retry_prompt
from turnkeeper.api.roles import MAX_HISTORY_BYTES, access
from turnkeeper.api.services import Services
from turnkeeper.models.http_responses import (
    ApprovalDecided,
    ConversationResponse,
    FullConversation,
    PageLinks,
    PromptAccepted,
    PromptFate,
)
from turnkeeper.models.ids import ID_PATTERN, WorkflowId, session_id_of
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.approvals import Decision, PendingApprovals, ResolveApproval
from turnkeeper.models.session.messages import UpdatesRequest
from turnkeeper.models.session.prompts import PromptSignal, QueueView, check_text
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationState, ConversationUpdate
from turnkeeper.models.transcript.partial_output import CallProgress, PartialGrowth

router = APIRouter(tags=["conversation"])

Wait = Annotated[float | None, Query(ge=0, le=60, allow_inf_nan=False, description="Maximum seconds to wait.")]

LastSeen = Annotated[str | None, Query(max_length=200, description="From the last response or update.")]

SinceRevision = Annotated[int | None, Query(ge=0, le=2**53, description="`revision` of the last response or update.")]

IdempotencyKey = Annotated[
    str | None,
    Header(
        pattern=ID_PATTERN,
        description="The prompt's id, instead of `id` in the body. If both are present, they must be equal.",
    ),
]

ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {
        "model": PromptAccepted,
        "description": "The prompt is safe. It becomes a turn, or gets another fate that can be queried.",
        "headers": {"Location": {"description": "Where its fate can be read.", "schema": {"type": "string"}}},
    }
}


EventBody = ConversationUpdate | WaitingPrompts | PartialGrowth | CallProgress | Problem
"""The `data` of the events `update`, `queue`, `partial`, `progress` and `problem`."""


def accepted(workflow_id: WorkflowId, message_id: str) -> JSONResponse:
    """Return the response for a prompt that Temporal has."""
    body = {"workflow_id": session_id_of(workflow_id), "message_id": message_id}
    return JSONResponse(body, 202, {"Location": f"{session_path(workflow_id)}/queue/{message_id}"})


async def get_wait(
    wait: Annotated[
        float | None, Query(ge=0, le=60, allow_inf_nan=False, description="Maximum seconds to wait.")
    ] = None,
    prefer: Annotated[str | None, Header(description="`wait=30` (RFC 7240) is the same as `?wait=30`.")] = None,
) -> float:
    """Return how many seconds a prompt's turn is waited for; invalid preferences are ignored, as the RFC requires.

    >>> import asyncio
    >>> asyncio.run(get_wait(None, "respond-async, wait=90")), asyncio.run(get_wait(None, "wait=-1"))
    (60.0, 0.0)
    """
    preferred = _PREFERRED_WAIT.search(prefer or "")
    return wait if wait is not None else min(float(preferred[1]), 60.0) if preferred else 0.0


_PREFERRED_WAIT = re.compile(r"(?:^|,)\s*wait\s*=\s*\"?([0-9]{1,9})\"?\s*(?:[,;]|$)", re.IGNORECASE)


@router.post(
    "/workflow/{id}/prompt",
    status_code=202,
    max_body_size=MAX_HISTORY_BYTES,
    operation_id="send_prompt",
    responses={
        **ACCEPTED,
        200: {"model": ConversationMessage, "description": "With `wait`: the finished turn."},
        **errors(*PROMPT, "session-exists", "state-full", "not-waiting"),
    },
)
@access("writer")
async def send_prompt(
    request: Request,
    services: ServicesDep,
    changes: ChangesDep,
    workflow_id: SessionId,
    body: SendPrompt,
    wait: Annotated[float, Depends(get_wait)],
    start: Annotated[bool, Query(description="Start the session if it does not exist.")] = False,
    idempotency_key: IdempotencyKey = None,
) -> JSONResponse:
    """Send a prompt. After a 202 it is safe and will be processed, even if no worker is running now.

    With `wait`, the turn is returned once it has ended. A `wait` ends with a 202 too if the key or token ends
    meanwhile. 429 if the queue was seen full a moment ago, or if no worker has processed very many prompts.
    """
    message_id = _prompt_id(body, idempotency_key)
    starts: Starts = "unless it exists" if start else "nothing"
    async with changes.begin("prompt", workflow_id, message_id=message_id, starts=starts) as entry:
        prompt, contents = await _prompt_of(services, workflow_id, body, message_id)
        new = partial(services.new_sessions.default_input, workflow_id, user=changes.caller.user) if start else None
        entry.message_id = message_id = await services.sender.send(workflow_id, prompt, start=new, contents=contents)
    if wait:
        turn: ConversationMessage | None = None
        with until_credential_ends(request.scope):
            turn = await services.fates.wait_for_turn(workflow_id, message_id, seconds=wait)
        if turn:
            return JSONResponse(turn.model_dump(mode="json"))
    return accepted(workflow_id, message_id)


@router.post(
    "/workflow/{id}/retry",
    status_code=202,
    operation_id="retry_turn",
    responses={**ACCEPTED, **errors(*WORKER, *PROMPT, "unknown-turn", "not-failed", "archive-unavailable")},
)
@access("writer")
async def retry_turn(
    services: ServicesDep,
    changes: ChangesDep,
    workflow_id: SessionId,
    body: Retry | None = None,
) -> JSONResponse:
    """Send the prompt of a failed turn again; 409 if the turn did not fail.

    With `message_id`, repeating the request has no effect. Without it the newest failed turn is retried, which may be
    an earlier retry. The conversation has both turns; for the model the new one takes the place of the failed one,
    unless another turn ran in between.
    """
    turn_id = body.message_id if body else None
    async with changes.begin("retry", workflow_id, message_id=turn_id) as entry:
        prompt = retry_prompt(workflow_id, await services.transcripts.failed_turn(workflow_id, turn_id))
        entry.message_id = message_id = await services.sender.send(workflow_id, prompt)
    return accepted(workflow_id, message_id)


@router.post(
    "/chat",
    status_code=202,
    max_body_size=MAX_HISTORY_BYTES,
    operation_id="chat",
    responses={**ACCEPTED, **errors(*PROMPT, "session-exists")},
)
@access("writer")
async def chat(
    services: ServicesDep,
    changes: ChangesDep,
    body: Chat,
    idempotency_key: IdempotencyKey = None,
) -> JSONResponse:
    """Start or continue a session in one call.

    Sending the same `Idempotency-Key` (or `id`) twice makes one prompt. The id of a new session is derived from the key
    and `user_name`, so that a repeated call finds the session.
    """
    prompt_id = _prompt_id(body, idempotency_key)
    workflow_id = changes.caller.workflow_id(
        body.workflow_id or (chat_session_id(prompt_id, user=body.user_name) if prompt_id else str(uuid4()))
    )
    starts: Starts = "unless it exists" if body.workflow_id or prompt_id else "new"
    async with changes.begin("prompt", workflow_id, message_id=prompt_id, starts=starts) as entry:
        prompt, contents = await _prompt_of(services, workflow_id, body, prompt_id)
        user = body.user_name or changes.caller.user
        start = partial(services.new_sessions.default_input, workflow_id, user=user, agent=body.agent)
        entry.message_id = message_id = await services.sender.send(workflow_id, prompt, start=start, contents=contents)
    return accepted(workflow_id, message_id)


@router.get(
    "/workflow/{id}/conversation",
    operation_id="get_conversation",
    response_model=ConversationResponse,
    responses={
        200: {"headers": {"ETag": {"description": "Identifies this response.", "schema": {"type": "string"}}}},
        304: {"description": "`If-None-Match` contains the ETag: nothing has changed since."},
        **errors(*WORKER),
    },
)
@access("reader")
async def get_conversation(
    services: ServicesDep,
    workflow_id: SessionId,
    last_seen_message_id: LastSeen = None,
    since_revision: SinceRevision = None,
    limit: Annotated[int | None, Query(ge=1, le=10_000, description="Maximum number of new messages.")] = None,
    wait: Wait = None,
    if_none_match: Annotated[str | None, Header(max_length=2_000)] = None,
) -> Any:
    """Return what is new since the last response; with `wait`, as soon as there is something new.

    New is what is neither covered by the cursor nor in the response that `If-None-Match` identifies. An `ETag` stands
    for the session, its revision, the cursor and the limit. Without `since_revision`, the last seen turn is repeated
    until 5 s after its end, and a `wait` for it ends after a second: the client may not have seen how it ended.

    Without a worker, a request without cursor is answered from the archive, with `archive_time`.
    """
    request = UpdatesRequest(
        last_seen_message_id=last_seen_message_id or None, since_revision=since_revision, limit=limit
    )

    def etag_of(event: UpdateEvent) -> str:
        return poll_etag(event.first_run_id, request, event.update.revision)

    def is_known(event: UpdateEvent) -> bool:
        return matches(etag_of(event), if_none_match or "")

    event = await services.feed.poll(
        workflow_id, request, seconds=wait or 0.0, is_known=is_known if if_none_match else None
    )
    etag = etag_of(event)
    if if_none_match and is_known(event):
        return Response(status_code=304, headers={"ETag": etag, "Vary": "Accept-Encoding"})
    # Without an ETag where the archive answered, or an answer is only an excerpt: the client must read it again.
    headers = {"ETag": etag} if event.is_whole else {}
    return Response(event.as_answer(session_id_of(workflow_id)), headers=headers, media_type="application/json")


@dataclass(frozen=True)
class OpenFeed:
    """A feed whose first event has been read. `first` is `None` if there will never be an event."""

    first: Event | None
    rest: AsyncGenerator[Event, None]


async def open_feed(
    services: ServicesDep,
    workflow_id: SessionId,
    last_seen_message_id: LastSeen = None,
    since_revision: SinceRevision = None,
    last_event_id: Annotated[
        str | None,
        Header(
            max_length=300,
            json_schema_extra={"pattern": EVENT_ID_PATTERN},
            description="`id` of the last event. Takes precedence over the parameters.",
        ),
    ] = None,
) -> AsyncGenerator[OpenFeed, None]:
    """Read the first event before the response begins, so that an error is a problem and not a broken stream."""
    cursor = UpdatesRequest(last_seen_message_id=last_seen_message_id or None, since_revision=since_revision)
    if last_event_id:
        cursor = cursor_of(last_event_id)
    async with aclosing(services.feed.events(workflow_id, cursor)) as events:
        yield OpenFeed(await anext(events, None), events)


@router.get(
    "/workflow/{id}/events",
    status_code=200,
    operation_id="watch_session",
    response_class=EventStreamResponse,
    responses={
        200: {"model": EventBody},
        204: {"description": "The session is closed and the client has everything."},
        **errors(*WORKER),
    },
)
@access("reader")
async def watch_session(services: ServicesDep, feed: Annotated[OpenFeed, Depends(open_feed)]) -> Response:
    """Watch a session live: server-sent events that resume at `Last-Event-ID` without loss or repetition.

    - `update`: what is new, as in `GET /workflow/{id}/conversation`: first since the cursor, then after every change.
      Its `id` is the new cursor. If an answer is only an excerpt, with an `agent_message_blob`, another update has the
      whole answer once it can be read.
    - `queue`: the queued prompts, if there are any, and after every change.
    - `partial`: what the model is writing. With `fresh` it replaces what was shown before; otherwise append the text of
      each part. Show it only for the running turn, until an update contains its step.
    - `progress`: how far a running tool call is, as its server reports it, instead of that call's earlier one. Show it
      until an update contains the call's result. The texts are the server's: foreign, but legible and of one line.
    - `problem`: why the session can't be read now, such as a stuck session or missing workers. The stream continues;
      the next `update` or `queue` means that the session can be read again.

    More kinds of events may be added; ignore those that you don't know. The stream ends with the session.
    """
    if feed.first is None:
        # A browser's `EventSource` would reconnect to an ended session forever; 204 stops it.
        return Response(status_code=204)
    return EventStreamResponse(
        _encoded(feed.first, feed.rest, partials_obstacle=services.feed.partials_obstacle), services.timeouts
    )


@router.get(
    "/workflow/{id}/conversation/full",
    operation_id="get_full_conversation",
    responses=errors(*WORKER, "unknown-turn", "archive-unavailable"),
)
@access("reader")
async def get_full_conversation(
    services: ServicesDep,
    workflow_id: SessionId,
    before: Annotated[str | None, Query(pattern=ID_PATTERN, description="Only turns before this one.")] = None,
    limit: Annotated[int | None, Query(ge=1, le=10_000, description="Maximum turns per page.")] = None,
) -> FullConversation:
    """Return a page of the transcript, archived turns included, oldest first: the newest, or the one before `before`.

    A page has about 1 MB, or a single turn that is larger. While the archive is unavailable, a page contains what the
    session itself has, and is a 503 if that is nothing. Without a worker, it is what the archive has, as of
    `archive_time`, and 504 if that is nothing.
    """
    state = await services.transcripts.page(workflow_id, before=before, limit=limit)
    return FullConversation(**dict(state), links=PageLinks(older=_older(workflow_id, state, limit)))


@router.get("/workflow/{id}/queue", operation_id="get_queue", responses=errors(*WORKER))
@access("reader")
async def get_queue(services: ServicesDep, workflow_id: SessionId) -> QueueView:
    """Return the queued prompts with their positions, and the last 200 fates."""
    return await services.reader.queue(workflow_id)


@router.get(
    "/workflow/{id}/queue/{message_id}",
    operation_id="get_prompt_fate",
    responses=errors(*WORKER, "unknown-prompt", "archive-unavailable"),
)
@access("reader")
async def get_prompt_fate(services: ServicesDep, workflow_id: SessionId, message_id: MessageId) -> PromptFate:
    """Return the fate of any prompt that was ever accepted, even if the session has ended.

    Without a worker it comes from the archive; 504 if that doesn't have it.
    """
    return await services.fates.fate_of(workflow_id, message_id)


@router.delete(
    "/workflow/{id}/queue/{message_id}",
    status_code=204,
    operation_id="withdraw_prompt",
    responses=errors(*WORKER, "session-ended", "unknown-prompt", "not-waiting"),
)
@access("writer")
async def withdraw_prompt(
    services: ServicesDep, changes: ChangesDep, workflow_id: SessionId, message_id: MessageId
) -> None:
    """Withdraw a queued prompt; 409 if it has started, 404 if there is none."""
    async with changes.begin("withdraw", workflow_id, message_id=message_id):
        await services.sessions.withdraw(workflow_id, message_id)


def _prompt_id(body: SendPrompt | Chat, idempotency_key: str | None) -> str | None:
    """Return the id that the caller chose, if it did. Raises 422 for two different ones."""
    if body.id and idempotency_key and body.id != idempotency_key:
        raise invalid("id", "differs from the Idempotency-Key header; send only one of them")
    return body.id or idempotency_key


async def _prompt_of(
    services: Services, workflow_id: WorkflowId, body: SendPrompt | Chat, message_id: str | None
) -> tuple[PromptSignal, Mapping[str, bytes]]:
    """Return the signal, and the contents of its attachments to store before it."""
    check_text(body.message, limits=Limits(), field="message", may_be_blank=bool(body.attachments))
    prepared = await services.attachments.prepare(workflow_id, attachments_of(body.attachments))
    mode = body.mode if isinstance(body, SendPrompt) else "enqueue"
    prompt = new_prompt(body.message, message_id=message_id, mode=mode, attachments=prepared.attachments)
    return prompt, prepared.contents


def _older(workflow_id: WorkflowId, state: ConversationState, limit: int | None) -> str | None:
    if not state.has_more or not state.messages:
        return None
    page = f"&limit={limit}" if limit else ""
    return f"{session_path(workflow_id)}/conversation/full?before={state.messages[0].id}{page}"


async def _encoded(
    first: Event, rest: AsyncGenerator[Event, None], *, partials_obstacle: str | None
) -> AsyncGenerator[bytes, None]:
    if partials_obstacle:
        yield f": no partial output: {partials_obstacle}\n\n".encode()
    yield first.sse
    async for event in rest:
        yield event.sse


approvals_router = APIRouter(tags=["approvals"])


@approvals_router.get("/workflow/{id}/approvals", operation_id="get_pending_approvals", responses=errors(*WORKER))
@access("reader")
async def get_pending_approvals(services: ServicesDep, workflow_id: SessionId) -> PendingApprovals:
    """List the tool calls that wait for approval, with their arguments and deadlines.

    Calls of the session's tasks follow its own. Decide each at the approvals of its `workflow_id`.
    """
    return await services.approvals.pending(workflow_id)


@approvals_router.post(
    "/workflow/{id}/approvals/{call_id}",
    operation_id="resolve_approval",
    responses=errors(*WORKER, "too-large", "session-ended", "unknown-call", "not-awaiting-approval", "other-arguments"),
)
@access("approver")
async def resolve_approval(
    services: ServicesDep, changes: ChangesDep, workflow_id: SessionId, call_id: CallId, body: Decision
) -> ApprovalDecided:
    """Approve or reject a call. Repeating a decision has no effect; a different decision afterwards is a 409.

    The call's `decided_by` is the person of the key or token, if that has one.
    """
    request = ResolveApproval(call_id=call_id, **body.model_dump())
    async with changes.begin(body.decision, workflow_id, call_id=call_id):
        receipt = await services.sessions.resolve_approval(workflow_id, request, by=changes.caller.user)
    return ApprovalDecided(workflow_id=session_id_of(workflow_id), call_id=receipt.call_id, decision=receipt.decision)
