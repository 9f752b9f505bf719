"""Server-sent events.

FastAPI sends the events of a generator through two tasks and two queues, a third of what an event costs the gateway
while 200 clients watch a session. Here the task that has an event writes it to the client.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from fastapi.sse import KEEPALIVE_COMMENT
from starlette.responses import StreamingResponse
from starlette.types import Message, Send

from turnkeeper.api.timeouts import Timeouts
from turnkeeper.stores.cancellation import cancel_until_done

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
