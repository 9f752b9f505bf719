"""The gateway's times in one object, so that tests can have others, and store reads with a time limit (API-2)."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from turnkeeper.stores.database.database import StoreUnavailableError


@dataclass(kw_only=True)
class Timeouts:
    """How long the gateway waits for others, and how often it looks after things, in seconds.

    `create_app` gets one, and `Services` has it. A new time is a field here with its default and its reason; what uses
    it gets the object in its constructor, or uses that of its `SessionReader`, and reads the field each time it waits.
    A time that no test needs to change stays a constant of its module.
    """

    # ---- Temporal
    call: float = 2.0
    """One call, with or without a worker; with a description after it, under 3 s (API-2)."""
    tick: float = 0.5
    """Between two checks whether Temporal answers, while sessions are watched: an outage is noticed after 2.5 s."""
    watch_poll: float = 30.0
    """One long poll for a watched session's next events."""
    watch_linger: float = 30.0
    """How long a session is watched after its last watcher has left, and until a long poll ends: clients return."""

    # ---- stores
    request: float = 2.7
    """All reads of one request; after that it is answered without the rest (API-2)."""
    restore: float = 0.7
    """Restoring answers that are stored by reference; after that the client gets their excerpts."""
    deletion: float = 1.0
    """One step of a deletion in the stores."""

    # ---- prompts and updates
    queue_read: float = 2.0
    """How long a queue that was read as full gets no further prompts (SES-6)."""
    repeat: float = 5.0
    """How long a poll repeats a turn after its end. The clocks of gateway and Temporal must differ by less."""

    # ---- clients
    ping: float = 15.0
    """An event stream that is silent for so long sends a comment: clients and proxies take it for lost otherwise."""
    stalled: float = 30.0
    """How long a client of an event stream may take to accept an event before it is disconnected. It can resume."""
    keep_alive: float = 5.0
    """How long a connection may be idle between two requests."""
    stop: float = 3.0
    """For open requests to finish when the gateway stops. Waits and streams end at once."""
    render_queue: float = 1.0
    """How long a text waits for the renderer before the client is told to try again."""
    import_queue: float = 10.0
    """How long a document waits for the imports before it."""

    # ---- credentials
    recheck: float = 2.0
    """Between two checks of open requests' credentials. With `lookup_cache`, streams end within five seconds."""
    lookup_cache: float = 1.0
    """How long a key or login is used without looking it up again. An ended one is refused within this time."""
    issuer_renewal: float = 600.0
    """How long the keys of the tokens' issuer are used without reading them again."""
    issuer_unknown_key: float = 30.0
    """How long a token with an unknown key causes no further request to the issuer."""
    issuer_failure: float = 2.0
    """The same after a request that failed."""
    issuer_leeway: float = 30.0
    """By how much the issuer's clock may differ from ours."""

    # ---- the index
    repair_start: float = 2.0
    """From the start of a gateway, which has more urgent things to do, to its first comparison."""
    repair_pause: float = 60.0
    """Between two comparisons of the index with Temporal's list."""

    @property
    def rpc(self) -> timedelta:
        """`call`, as the SDK takes it."""
        return timedelta(seconds=self.call)


Answer = TypeVar("Answer")


async def read_store(reading: Awaitable[Answer], *, until: float) -> Answer:
    """Return the result of `reading`. Raises `StoreUnavailableError` once the loop's clock reaches `until`."""
    try:
        async with asyncio.timeout_at(until):
            return await reading
    except TimeoutError:
        raise StoreUnavailableError("The store did not answer in time.") from None


def seconds_from_now(seconds: float) -> float:
    """Return the time in `seconds`, on the loop's clock."""
    return asyncio.get_running_loop().time() + seconds
