"""After the last fault: all work is done in the end, and meanwhile there is progress (OPS-10)."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.faults.campaign.calls import Calls
from tests.faults.campaign.watchers import Poller
from tests.waiting import pass_time

STALL_SECONDS = 60.0
"""A session that has work and makes no progress for this long is stuck."""

IDLE_SECONDS = 3.0
"""A session that was idle for this long has no accepted prompt that is still on its way to it."""

ROUND_SECONDS = 1.0


@dataclass
class Standing:
    """The progress of a session as seen from outside; times are in event loop time."""

    status: str = "unknown"
    settled_at: float | None = None
    stalled: float | None = None
    progress: tuple[object, ...] = ()
    progress_at: float = 0.0
    idle_since: float | None = None


async def settle(
    sessions: Sequence[str], clients: Sequence[Calls], pollers: Mapping[str, Poller], *, seconds: float
) -> dict[str, Standing]:
    """Wait until every session is idle or stuck, at most `seconds`; return how each came out."""
    clock = asyncio.get_running_loop().time
    began = clock()
    standings = {session: Standing(progress_at=began) for session in sessions}
    while clock() - began < seconds:
        going = [name for name, one in standings.items() if one.settled_at is None and one.stalled is None]
        if not going:
            break
        for number, name in enumerate(going):
            await _look(name, clients[number % len(clients)], pollers.get(name), standings[name])
        await pass_time(ROUND_SECONDS)
    for one in standings.values():
        one.settled_at = None if one.settled_at is None else one.settled_at - began
    return standings


async def _look(session: str, client: Calls, poller: Poller | None, standing: Standing) -> None:
    now = asyncio.get_running_loop().time()
    reply = await client.send("GET", f"/workflow/{session}")
    if reply.outcome == "ok":
        standing.status = reply.body["status"]
        if standing.status == "idle" and not reply.body["queue_length"]:
            standing.idle_since = now if standing.idle_since is None else standing.idle_since
            if now - standing.idle_since >= IDLE_SECONDS:
                standing.settled_at = standing.idle_since
            return
        standing.idle_since = None
        revision = poller.revision if poller else None
        progress = (reply.body["turn_count"], reply.body["queue_length"], standing.status, revision)
        if progress != standing.progress:
            standing.progress, standing.progress_at = progress, now
    if now - standing.progress_at > STALL_SECONDS:
        standing.stalled = now - standing.progress_at
