"""`--json`: what happens, one JSON object a line, in the form of the gateway's event stream.

{"event": "update", "data": {...}}     what is new (a `ConversationUpdate`)
{"event": "queue", "data": {...}}      what waits
{"event": "partial", "data": {...}}    what the model has written since
{"event": "lost", "data": {...}}       the connection is lost, and tried again; the next line says that it is back
{"event": "refused", "data": {...}}    a line of stdin that did not become a prompt, and why
{"event": "final", "data": {...}}      how the question that was asked has ended
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing

from turnkeeper.clients.python.errors import GatewayProblem
from turnkeeper.clients.python.events import Event, PartialEvent, UpdateEvent
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.models.wire import Frozen

CHUNK_BYTES = 65_536


class RejectedLine(Frozen):
    """A line of stdin that the gateway refused. `problem`: the last word of the problem's type, stable.

    `retry_after`: seconds after which sending it again makes sense, if the gateway said so.
    """

    text: str
    problem: str
    reason: str
    retry_after: float | None = None


def write_event(event: Event) -> None:
    """Write an event as its line."""
    match event:
        case UpdateEvent():
            write_line(event.event, event.update)
        case PartialEvent():
            write_line(event.event, event.partial)
        case _:
            write_line(event.event, event)


def write_line(event: str, data: Frozen) -> None:
    """Write what happened as a line; its kind stands before it only."""
    dumped = data.model_dump(mode="json", exclude={"event"})
    sys.stdout.write(json.dumps({"event": event, "data": dumped}, separators=(",", ":")) + "\n")
    sys.stdout.flush()


async def watch(gateway: GatewayClient, session_id: str) -> int:
    """Write what happens in a session until it is over; every line of stdin is a prompt. Raises `GatewayError`.

    At the end of stdin it goes on; who types there leaves by Ctrl-D.
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
    """Return whether a person types what comes from stdin; there may be no stdin at all."""
    return sys.stdin is not None and sys.stdin.isatty()


async def _write_events(gateway: GatewayClient, session_id: str) -> None:
    async with aclosing(gateway.events(session_id)) as events:
        async for event in events:
            write_event(event)


async def _send_lines(gateway: GatewayClient, session_id: str) -> None:
    """Send every line as a prompt until there are no more."""
    async with aclosing(_lines()) as lines:
        async for line in lines:
            if not line.strip():
                continue
            try:
                await gateway.prompt(session_id, line)
            except GatewayProblem as error:
                name, retry_after = error.problem.name, error.retry_after
                rejected = RejectedLine(text=line, problem=name, reason=str(error), retry_after=retry_after)
                write_line("refused", rejected)


async def _lines() -> AsyncGenerator[str, None]:
    rest = b""
    while chunk := await _read_stdin():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    yield rest.decode(errors="replace")


async def _read_stdin() -> bytes:
    """Return what there is next on stdin; empty at its end."""
    if sys.stdin is None:
        return b""
    loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()
    chunk: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        # Here, where it is known that there is something: later, it may be gone, and a terminal holds up who reads it.
        if not chunk.done():
            chunk.set_result(os.read(stdin, CHUNK_BYTES))

    try:
        loop.add_reader(stdin, read)
    except PermissionError:  # a file, or nothing: always ready, so there is no waiting for it
        return os.read(stdin, CHUNK_BYTES)
    try:
        return await chunk
    finally:
        loop.remove_reader(stdin)
