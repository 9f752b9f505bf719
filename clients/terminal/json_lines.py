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
from typing import Literal

from turnkeeper.clients.python.errors import GatewayProblem
from turnkeeper.clients.python.events import ConnectionLost, Event, PartialEvent, QueueEvent, UpdateEvent
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.terminal.asking import Final
from turnkeeper.clients.terminal.opening import Opened
from turnkeeper.models.wire import Frozen

CHUNK_BYTES = 65_536


class RefusedLine(Frozen):
    """A line of stdin that the gateway refused. `problem`: the last word of the problem's type, stable.

    `retry_after`: seconds after which sending it again makes sense, if the gateway said so.
    """

    event: Literal["refused"] = "refused"
    text: str
    problem: str
    reason: str
    retry_after: float | None = None


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
    """Write what happens in a session until it is over; every line of stdin is a prompt. Raises `GatewayError`.

    At the end of stdin it goes on; who types there leaves by Ctrl-D.
    """
    following = asyncio.create_task(_write_events(gateway, opened.session_id))
    asking = asyncio.create_task(_ask_lines(gateway, opened.session_id))
    try:
        done, _ = await asyncio.wait([following, asking], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if following not in done and not is_typed():
            await following
    finally:
        following.cancel()
        asking.cancel()
        await asyncio.gather(following, asking, return_exceptions=True)
    return 0


def is_typed() -> bool:
    """Tell whether a person types what comes from stdin; there may be no stdin at all."""
    return sys.stdin is not None and sys.stdin.isatty()


async def _write_events(gateway: GatewayClient, session_id: str) -> None:
    async with aclosing(gateway.events(session_id)) as events:
        async for event in events:
            write_event(event)


async def _ask_lines(gateway: GatewayClient, session_id: str) -> None:
    """Send every line as a prompt until there are no more."""
    async with aclosing(_lines()) as lines:
        async for line in lines:
            if line.strip():
                await _ask(gateway, session_id, line)


async def _ask(gateway: GatewayClient, session_id: str, line: str) -> None:
    try:
        await gateway.prompt(session_id, line)
    except GatewayProblem as problem:
        refused = RefusedLine(
            text=line, problem=problem.problem.name, reason=str(problem), retry_after=problem.retry_after
        )
        _write("refused", refused, without="event")


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
    there_is: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        # Here, where it is known that there is something: later, it may be gone, and a terminal holds up who reads it.
        if not there_is.done():
            there_is.set_result(os.read(stdin, CHUNK_BYTES))

    try:
        loop.add_reader(stdin, read)
    except PermissionError:  # a file, or nothing: always ready, so there is no waiting for it
        return os.read(stdin, CHUNK_BYTES)
    try:
        return await there_is
    finally:
        loop.remove_reader(stdin)
