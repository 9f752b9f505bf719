"""Watching a session live, as server-sent events (API-1)."""

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Header, Query, Response
from fastapi.sse import EventSourceResponse

from turnkeeper.api.dependencies import ServicesDep, SessionId
from turnkeeper.api.http.openapi import WORKER, errors
from turnkeeper.api.live.feed import EVENT_ID_PATTERN, Event, cursor_of
from turnkeeper.api.live.shared_reader import WaitingPrompts
from turnkeeper.api.problems import Problem
from turnkeeper.models.session.session import UpdatesRequest
from turnkeeper.models.transcript.conversation import ConversationUpdate
from turnkeeper.models.transcript.partial_output import PartialGrowth

router = APIRouter(tags=["conversation"])

EventBody = ConversationUpdate | WaitingPrompts | PartialGrowth | Problem
"""What stands in the `data` of the events `update`, `queue`, `partial` and `problem`."""


@dataclass(frozen=True)
class OpenFeed:
    """A feed whose first event has been read; without one, there will never be any."""

    first: Event | None
    rest: AsyncGenerator[Event, None]


async def open_feed(
    services: ServicesDep,
    session_id: SessionId,
    response: Response,
    last_seen_message_id: Annotated[str | None, Query(max_length=200, description="From the last update.")] = None,
    since_revision: Annotated[int | None, Query(ge=0, le=2**53, description="`revision` of the last update.")] = None,
    last_event_id: Annotated[
        str,
        Header(
            max_length=300,
            json_schema_extra={"pattern": EVENT_ID_PATTERN},
            description="`id` of the last event; stands above the parameters.",
        ),
    ] = "",
) -> AsyncGenerator[OpenFeed, None]:
    """Read the first event: what goes wrong is a problem, not the end of a stream that has begun.

    204 stops a browser's `EventSource`, which would come back to an ended session for ever.
    """
    cursor = UpdatesRequest(last_seen_message_id=last_seen_message_id or None, since_revision=since_revision)
    if last_event_id:
        cursor = cursor_of(last_event_id)
    async with aclosing(services.feed.events(session_id, cursor)) as events:
        first = await anext(events, None)
        if first is None:
            response.status_code = 204
        yield OpenFeed(first, events)


@router.get(
    "/workflow/{id}/events",
    operation_id="watch_session",
    response_class=EventSourceResponse,
    responses={
        204: {"description": "The session is closed, and the cursor is its end: there is nothing to watch."},
        **errors(*WORKER, "stopping"),
    },
)
async def watch_session(feed: Annotated[OpenFeed, Depends(open_feed)]) -> AsyncIterable[EventBody]:
    """Watch a session live: server-sent events, resumed with `Last-Event-ID` without loss or repetition.

    - `update`: what is new, as `GET /workflow/{id}/conversation` answers it; first of all what is new since the
      cursor, then whenever something happens. Its `id` is the cursor after it. An answer that can be read as an excerpt
      only, with an `agent_message_blob`, is in another update once it can be read whole.
    - `queue`: the waiting prompts, where there are any and whenever they have changed.
    - `partial`: what the model is writing. `fresh` replaces all that was shown before, else the text of each part is to
      be appended. To be shown only for the running turn, and until the step it belongs to is in an update.
    - `problem`: why nothing new can be read for now, such as a session that is stuck, or workers that are away. The
      stream goes on: the next `update` or `queue` says that the session can be read again.

    Further kinds of events may be added; leave aside those you don't know. The stream ends with the session.
    """
    if feed.first is None:
        return
    yield _sse(feed.first)
    async for event in feed.rest:
        yield _sse(event)


def _sse(event: Event) -> EventBody:
    # FastAPI describes the annotated types in OpenAPI, and sends a `ServerSentEvent` as it is.
    return cast(EventBody, event.sse)
