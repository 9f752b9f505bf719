"""`--json`: prints events as lines of JSON, in the format of the gateway's event stream.

{"event": "update", "data": {...}}     new and changed turns (a `ConversationUpdate`)
{"event": "queue", "data": {...}}      the queue
{"event": "partial", "data": {...}}    new partial output
{"event": "progress", "data": {...}}   how far a running tool call is
{"event": "lost", "data": {...}}       the connection is lost and retried; the next line means that it is back
{"event": "refused", "data": {...}}    a line of stdin that the gateway rejected, and why
{"event": "final", "data": {...}}      the result of the command's prompt
"""

import asyncio
import json
import sys
from contextlib import aclosing

from anyio import to_thread

from turnkeeper.clients.python.errors import GatewayProblemError
from turnkeeper.clients.python.events import Event, PartialEvent, ProgressEvent, UpdateEvent
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.models.wire import Frozen


class RejectedLine(Frozen):
    """A line of stdin that the gateway rejected. `problem`: the last word of the problem's type.

    `retry_after`: the gateway's header in seconds, if there is one.
    """

    text: str
    problem: str
    reason: str
    retry_after: float | None = None


def write_event(event: Event) -> None:
    match event:
        case UpdateEvent():
            write_line(event.event, event.update)
        case PartialEvent():
            write_line(event.event, event.partial)
        case ProgressEvent():
            write_line(event.event, event.progress)
        case _:
            write_line(event.event, event)


def write_line(event: str, data: Frozen) -> None:
    """Write a line; `data`'s own `event` is omitted, since the line has it."""
    fields = data.model_dump(mode="json", exclude={"event"})
    sys.stdout.write(json.dumps({"event": event, "data": fields}, separators=(",", ":")) + "\n")
    sys.stdout.flush()


async def watch(gateway: GatewayClient, session_id: str) -> int:
    """Write a session's events until it is over, and send every line of stdin as a prompt. Raises `GatewayError`.

    The end of stdin ends it only at a terminal, by Ctrl-D.
    """
    following = asyncio.create_task(_write_events(gateway, session_id))
    sending = asyncio.create_task(_send_lines(gateway, session_id))
    try:
        done, _ = await asyncio.wait([following, sending], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if following not in done and not is_typed():
            await following
    finally:
        following.cancel()
        sending.cancel()
        await asyncio.gather(following, sending, return_exceptions=True)
    return 0


def is_typed() -> bool:
    """Return whether stdin is a terminal; there may be no stdin at all."""
    return sys.stdin is not None and sys.stdin.isatty()


async def _write_events(gateway: GatewayClient, session_id: str) -> None:
    async with aclosing(gateway.events(session_id)) as events:
        async for event in events:
            write_event(event)


async def _send_lines(gateway: GatewayClient, session_id: str) -> None:
    if sys.stdin is None:
        return
    # Nothing can end a read of a terminal: its thread is abandoned, and ends with the process.
    while line := await to_thread.run_sync(sys.stdin.buffer.readline, abandon_on_cancel=True):
        text = line.decode(errors="replace").removesuffix("\n")
        try:
            if text.strip():
                accepted = await gateway.prompt(session_id, text)
                await gateway.raise_if_refused(session_id, accepted.message_id)
        except GatewayProblemError as error:
            name, retry_after = error.problem.name, error.retry_after
            write_line("refused", RejectedLine(text=text, problem=name, reason=str(error), retry_after=retry_after))
