"""Waits for responses of a gateway, by repeating the request."""

from collections.abc import Awaitable, Callable

from httpx import AsyncClient, Response

from tests.harness import LONG_PAUSE
from tests.waiting import BOUND, until


async def until_not(status: int | tuple[int, ...], ask: Callable[[], Awaitable[Response]]) -> Response:
    """Return the first answer with another status."""
    unwanted = status if isinstance(status, tuple) else (status,)

    async def other() -> Response | None:
        answer = await ask()
        return None if answer.status_code in unwanted else answer

    return await until(other, within=2 * BOUND, max_pause=LONG_PAUSE)


async def until_status(http: AsyncClient, session: str, status: str) -> None:
    """Wait until the session has this status."""

    async def condition() -> bool:
        return (await http.get(f"/workflow/{session}")).json()["status"] == status

    await until(condition)
