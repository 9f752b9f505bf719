"""What the model sees of a conversation: the context view, or the replay text (CTX-8, CTX-12)."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse

from turnkeeper.api.dependencies import ServicesDep, SessionId
from turnkeeper.api.history.replay_text import ReplayTextReader
from turnkeeper.api.http.openapi import WORKER, errors
from turnkeeper.api.problems import invalid
from turnkeeper.api.roles import access
from turnkeeper.api.routes.contents.blobs import PLAIN_TEXT_HEADERS
from turnkeeper.models.context.context_view import ContextView
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.messages import ContextRequest, ReplayRequest

router = APIRouter(tags=["conversation"])

INCOMPLETE = "Turnkeeper-Incomplete"

Format = Annotated[
    Literal["view", "replay"],
    Query(
        alias="format",
        description="`view`: what the model sees of each turn. `replay`: the conversation as replay text.",
    ),
]
Before = Annotated[int | None, Query(ge=1, description="`view`: only turns before this number (from 1).")]
Limit = Annotated[int | None, Query(ge=1, le=2_000, description="`view`: maximum number of turns; default 500.")]
MaxHistory = Annotated[
    int | None,
    Query(ge=0, le=10_000, description="`replay`: maximum number of events in HISTORY; 0 for all, default 20."),
]


@router.get(
    "/workflow/{id}/context",
    operation_id="get_context",
    response_model=ContextView,
    responses={
        200: {
            "description": "The context view as JSON, or the replay text.",
            "content": {
                "text/plain": {
                    "schema": {"type": "string"},
                    "example": "=== HISTORY ===\n(showing last 2 of 6 messages)\n\n$user: Hi\n\n$respond: Hello!",
                }
            },
            "headers": {
                INCOMPLETE: {
                    "description": "`true` if part of the text can't be read now; the text says what is missing.",
                    "schema": {"type": "string"},
                }
            },
        },
        **errors(*WORKER),
    },
)
@access("reader")
async def get_context(
    services: ServicesDep,
    workflow_id: SessionId,
    context_format: Format = "view",
    before: Before = None,
    limit: Limit = None,
    max_history: MaxHistory = None,
) -> ContextView | PlainTextResponse:
    """Return what the model sees now, turn by turn, or the conversation as replay text.

    The replay text has HISTORY, up to about 10 MB, and CURRENT while a turn is unfinished. It includes archived turns
    and large texts. While the archive is unavailable, it contains what the session itself has.
    """
    if context_format == "replay":
        _reject_parameters("view", before=before, limit=limit)
        request = ReplayRequest.model_validate(_provided(max_history=max_history))
        return await _replay_text(services.replays, workflow_id, request)
    _reject_parameters("replay", max_history=max_history)
    page = ContextRequest.model_validate(_provided(before=before, limit=limit))
    return await services.reader.context_view(workflow_id, page)


async def _replay_text(replays: ReplayTextReader, workflow_id: WorkflowId, request: ReplayRequest) -> PlainTextResponse:
    replay = await replays.text(workflow_id, max_history=request.max_history)
    headers = PLAIN_TEXT_HEADERS if replay.is_whole else {**PLAIN_TEXT_HEADERS, INCOMPLETE: "true"}
    return PlainTextResponse(replay.text, headers=headers)


def _provided(**parameters: int | None) -> dict[str, int]:
    return {name: value for name, value in parameters.items() if value is not None}


def _reject_parameters(other_format: str, **parameters: int | None) -> None:
    """Reject parameters of the other format, so that no option is silently ignored (API-2)."""
    for name in _provided(**parameters):
        raise invalid(name, f"is for format={other_format} only")
