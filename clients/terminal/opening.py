"""How a session is started or continued from a terminal."""

import secrets
from dataclasses import dataclass

from turnkeeper.clients.python.errors import GatewayProblem
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.models.answers import FullConversation
from turnkeeper.models.command_line import command_line

FEW_TURNS = 3
"""How many turns of a session that is continued are shown."""


@dataclass(frozen=True)
class OpenedSession:
    """A session that exists. `page`: its newest turns; `None` where no worker can say."""

    session_id: str
    is_new: bool
    page: FullConversation | None = None


async def open_session(gateway: GatewayClient, session_id: str | None, *, turns: int = FEW_TURNS) -> OpenedSession:
    """Continue a session, or start one under a name that can be typed. Raises `GatewayError`."""
    await gateway.health()
    if session_id is not None:
        return OpenedSession(session_id, is_new=False, page=await newest_page(gateway, session_id, turns=turns))
    while True:
        name = f"chat-{secrets.token_hex(4)}"
        try:
            return OpenedSession((await gateway.start(name)).workflow_id, is_new=True)
        except GatewayProblem as problem:
            if problem.problem.name != "session-exists":
                raise


async def newest_page(gateway: GatewayClient, session_id: str, *, turns: int = FEW_TURNS) -> FullConversation | None:
    """Return the newest turns; `None` while nobody can say. Raises `GatewayProblem` where there is no such session."""
    try:
        return await gateway.page(session_id, limit=turns)
    except GatewayProblem as problem:
        if problem.may_pass:
            return None
        raise


def resume_command(session_id: str, *, url: str | None) -> str:
    """Return the command that continues a session, as it is typed here; `url` where the gateway is another stack's.

    >>> resume_command("demo", url="http://there:80")
    '...turnkeeper chat --session demo --url http://there:80'
    """
    return command_line("chat", "--session", session_id, *(("--url", url) if url else ()))
