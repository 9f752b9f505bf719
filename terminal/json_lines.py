"""`--json`: what happens, one JSON object a line, in the form of the gateway's event stream.

{"event": "update", "data": {...}}     what is new (a `ConversationUpdate`)
{"event": "queue", "data": {...}}      what waits
{"event": "partial", "data": {...}}    what the model has written since
{"event": "lost", "data": {...}}       the connection is lost, and tried again; the next line says that it is back
{"event": "final", "data": {...}}      how the question that was asked has ended
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing

from client.events import ConnectionLost, Event, PartialEvent, QueueEvent, UpdateEvent
from client.gateway import GatewayClient
from models.wire import Frozen
from terminal.asking import Final
from terminal.opening import Opened

CHUNK_BYTES = 65_536


def write_event(event: Event) -> None:
    """Write an event as its line."""
    match event:
        case UpdateEvent():
            _write("update", event.update)
        case QueueEvent():
            _write("queue", event, without="event")
        case PartialEvent():
            _write("partial", event.partial)
        case ConnectionLost():
            _write("lost", event, without="event")


def write_final(final: Final) -> None:
    """Write how a question has ended as its line."""
    _write("final", final, without="event")


def _write(name: str, body: Frozen, *, without: str | None = None) -> None:
    dumped = body.model_dump(mode="json", exclude={without} if without else None)
    sys.stdout.write(json.dumps({"event": name, "data": dumped}, separators=(",", ":")) + "\n")
    sys.stdout.flush()


async def watch(gateway: GatewayClient, opened: Opened) -> int:
    """Write what happens in a session until it is over; every line that is typed is a prompt. Raises `GatewayError`."""
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(_ask_lines(gateway, opened.session_id))
        following = group.create_task(_write_events(gateway, opened.session_id))
        await asyncio.wait([asking, following], return_when=asyncio.FIRST_COMPLETED)
        asking.cancel()
        following.cancel()
    return 0


async def _write_events(gateway: GatewayClient, session_id: str) -> None:
    async with aclosing(gateway.events(session_id)) as events:
        async for event in events:
            write_event(event)


async def _ask_lines(gateway: GatewayClient, session_id: str) -> None:
    """Send every line as a prompt until there are no more: Ctrl-D."""
    async with aclosing(_lines()) as lines:
        async for line in lines:
            if line.strip():
                await gateway.prompt(session_id, line)


async def _lines() -> AsyncGenerator[str, None]:
    loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    # Read where it is known that there is something: later, it may be gone, and a terminal holds up who reads it.
    loop.add_reader(stdin, lambda: chunks.put_nowait(os.read(stdin, CHUNK_BYTES)))
    rest = b""
    try:
        while chunk := await chunks.get():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace")
    finally:
        loop.remove_reader(stdin)
