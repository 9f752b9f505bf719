"""Starts or continues a session from a terminal."""

import secrets
from dataclasses import dataclass

from turnkeeper.clients.python.errors import GatewayProblemError
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.models.http_responses import FullConversation

SHOWN_TURNS = 3
"""How many turns of a continued session are printed."""


@dataclass(frozen=True)
class OpenedSession:
    """A session that exists. `page`: its newest turns; None if no worker is running."""

    session_id: str
    is_new: bool
    page: FullConversation | None = None


async def open_session(gateway: GatewayClient, session_id: str | None, *, turns: int = SHOWN_TURNS) -> OpenedSession:
    """Continue a session, or start one with an id that is easy to type. Raises `GatewayError`."""
    await gateway.health()
    if session_id is not None:
        return OpenedSession(session_id, is_new=False, page=await newest_page(gateway, session_id, turns=turns))
    session = await gateway.start(f"chat-{secrets.token_hex(5)}")
    return OpenedSession(session.workflow_id, is_new=True)


async def newest_page(gateway: GatewayClient, session_id: str, *, turns: int = SHOWN_TURNS) -> FullConversation | None:
    """Return the newest turns; None after a temporary problem. Raises `GatewayProblemError` for an unknown session."""
    try:
        return await gateway.page(session_id, limit=turns)
    except GatewayProblemError as problem:
        if problem.is_temporary:
            return None
        raise
