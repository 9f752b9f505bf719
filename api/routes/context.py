"""What the next model, or a person, is told of a conversation (CTX-12)."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse

from api.dependencies import ReplaysDep, SessionId
from api.routes.blobs import AS_TEXT_ONLY

router = APIRouter(tags=["conversation"])

INCOMPLETE = "Turnkeeper-Incomplete"


@router.get(
    "/workflow/{id}/context",
    operation_id="get_context",
    response_class=PlainTextResponse,
    responses={
        200: {
            "description": "The replay text.",
            "content": {
                "text/plain": {
                    "schema": {"type": "string"},
                    "example": "=== HISTORY ===\n(showing last 2 of 6 messages)\n\n$user: Hi\n\n$respond: Hello!",
                }
            },
            "headers": {
                INCOMPLETE: {
                    "description": "`true` where something that was asked for can't be read now; the text says what.",
                    "schema": {"type": "string"},
                }
            },
        },
    },
)
async def get_context(
    replays: ReplaysDep,
    session_id: SessionId,
    context_format: Annotated[Literal["replay"], Query(alias="format", description="`replay`: the replay text.")],
    max_history: Annotated[int, Query(ge=0, le=10_000, description="Most events of HISTORY; 0: all.")] = 20,
) -> PlainTextResponse:
    """Return the conversation as plain text: HISTORY, and CURRENT while a turn is unfinished or was cut off.

    Archived turns and large texts included; HISTORY has about 10 MB at most. While the archive can't be read, the text
    has what the session holds.
    """
    replay = await replays.text(session_id, max_history=max_history)
    headers = AS_TEXT_ONLY if replay.is_whole else {**AS_TEXT_ONLY, INCOMPLETE: "true"}
    return PlainTextResponse(replay.text, headers=headers)
