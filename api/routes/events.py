"""Watching a session live, as server-sent events (API-1)."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response

from turnkeeper.api.dependencies import ServicesDep, SessionId
from turnkeeper.api.http.event_stream import EventStreamResponse
from turnkeeper.api.http.openapi import WORKER, errors
from turnkeeper.api.live.feed import EVENT_ID_PATTERN, Event, cursor_of
from turnkeeper.api.live.shared_reader import WaitingPrompts
from turnkeeper.api.problems import Problem
from turnkeeper.models.session.messages import UpdatesRequest
from turnkeeper.models.transcript.conversation import ConversationUpdate
from turnkeeper.models.transcript.partial_output import PartialGrowth

router = APIRouter(tags=["conversation"])

EventBody = ConversationUpdate | WaitingPrompts | PartialGrowth | Problem
"""The `data` of the events `update`, `queue`, `partial` and `problem`."""


@dataclass(frozen=True)
class OpenFeed:
    """A feed whose first event has been read. `first` is `None` if there will never be an event."""

    first: Event | None
    rest: AsyncGenerator[Event, None]


async def open_feed(
    services: ServicesDep,
    workflow_id: SessionId,
    last_seen_message_id: Annotated[str | None, Query(max_length=200, description="From the last update.")] = None,
    since_revision: Annotated[int | None, Query(ge=0, le=2**53, description="`revision` of the last update.")] = None,
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
async def watch_session(services: ServicesDep, feed: Annotated[OpenFeed, Depends(open_feed)]) -> Response:
    """Watch a session live: server-sent events that resume at `Last-Event-ID` without loss or repetition.

    - `update`: what is new, as in `GET /workflow/{id}/conversation`: first since the cursor, then after every change.
      Its `id` is the new cursor. If an answer is only an excerpt, with an `agent_message_blob`, another update has the
      whole answer once it can be read.
    - `queue`: the queued prompts, if there are any, and after every change.
    - `partial`: what the model is writing. With `fresh` it replaces what was shown before; otherwise append the text of
      each part. Show it only for the running turn, until an update contains its step.
    - `problem`: why the session can't be read now, such as a stuck session or missing workers. The stream continues;
      the next `update` or `queue` means that the session can be read again.

    More kinds of events may be added; ignore those that you don't know. The stream ends with the session.
    """
    if feed.first is None:
        # A browser's `EventSource` would reconnect to an ended session forever; 204 stops it.
        return Response(status_code=204)
    return EventStreamResponse(_encoded(feed.first, feed.rest), services.timeouts)


async def _encoded(first: Event, rest: AsyncGenerator[Event, None]) -> AsyncGenerator[bytes, None]:
    yield first.sse
    async for event in rest:
        yield event.sse
