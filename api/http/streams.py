"""Answers that take long: server-sent events, and the end of all waits when the gateway stops (API-2).

**Events.** FastAPI sends the events of a generator through two tasks and two queues, a third of what an event costs the
gateway while 200 clients watch a session. Here the task that has an event writes it to the client.

**The end.** Every wait of a request ends at once, with what it returns when its time is up. A prompt that is waited for
is a 202, a poll returns an update without news, a task is returned as it is, and a stream ends. Requests that are still
not answered `Timeouts.stop` later are answered with a problem (`http/server.py`).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress

from fastapi.sse import KEEPALIVE_COMMENT
from starlette.responses import StreamingResponse
from starlette.types import Message, Send

from turnkeeper.api.timeouts import Timeouts
from turnkeeper.stores.waiting import VersionCounter, cancel_until_done

EVENT_STREAM = "text/event-stream"


class EventStreamResponse(StreamingResponse):
    """A response of encoded events, with comments while there are none."""

    media_type = EVENT_STREAM

    def __init__(
        self, events: AsyncGenerator[bytes, None], timeouts: Timeouts, headers: Mapping[str, str] | None = None
    ) -> None:
        """`events` are closed when the client has left."""
        self._ping_seconds = timeouts.ping
        super().__init__(events, headers={"X-Accel-Buffering": "no", **(headers or {})})
        self._events = events

    async def stream_response(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        silent_since = clock()

        async def send_and_note(message: Message) -> None:
            nonlocal silent_since
            await send(message)
            silent_since = clock()

        async def keep_alive() -> None:
            while True:
                await asyncio.sleep(silent_since + self._ping_seconds - clock())
                if clock() >= silent_since + self._ping_seconds:
                    await send_and_note({"type": "http.response.body", "body": KEEPALIVE_COMMENT, "more_body": True})

        comments = asyncio.create_task(keep_alive())
        try:
            async with aclosing(self._events):
                await super().stream_response(send_and_note)
        finally:
            await cancel_until_done([comments])


class Closing:
    """Whether the gateway closes, and the time limits that end with it."""

    def __init__(self) -> None:
        self.has_begun = False
        self._limits: dict[asyncio.Timeout, float] = {}
        """The open time limits, each with its grace."""

    def begin(self) -> None:
        """End every wait, now and from now on."""
        self.has_begun = True
        for limit, grace in self._limits.items():
            _shorten(limit, grace)

    def is_time_up(self, until: float) -> bool:
        """Return whether a request that waits until a time on the loop's clock has to answer now."""
        return self.has_begun or asyncio.get_running_loop().time() >= until

    @asynccontextmanager
    async def time_limit(self, until: float | None = None, *, grace: float = 0.0) -> AsyncIterator[None]:
        """Raise `TimeoutError` once the loop's clock reaches `until`, or `grace` seconds after closing has begun."""
        async with asyncio.timeout_at(until) as limit:
            if self.has_begun:
                _shorten(limit, grace)
            self._limits[limit] = grace
            try:
                yield
            finally:
                del self._limits[limit]

    async def wait_for(
        self, counter: VersionCounter, condition: Callable[[], bool], *, until: float | None = None
    ) -> bool:
        """Wait until `condition` holds, as `counter.wait_for` does; `False` also once closing has begun."""
        try:
            async with self.time_limit(until):
                return await counter.wait_for(condition)
        except TimeoutError:
            return False

    async def sleep(self, *, until: float) -> None:
        """Sleep until the loop's clock reaches `until`, or closing begins."""
        with suppress(TimeoutError):
            async with self.time_limit(until):
                await asyncio.Event().wait()


def _shorten(limit: asyncio.Timeout, grace: float) -> None:
    """Shorten `limit` so that it ends in at most `grace` seconds."""
    end, before = asyncio.get_running_loop().time() + grace, limit.when()
    if not limit.expired() and (before is None or end < before):
        limit.reschedule(end)
