"""The connection between a browser and a gateway, controlled by a test: it can go dead, or break within an answer."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

CHUNK = 65_536


@dataclass
class Line:
    """A proxy at `url`. The browser's request decides what happens to its connection."""

    target: str
    url: str = ""
    cuts: list[str] = field(default_factory=list)
    """Patterns of requests: the first of each to come gets half of its answer, then the connection is closed."""
    _dead: asyncio.Event = field(default_factory=asyncio.Event)

    def kill_streams(self) -> None:
        """Nothing passes any more on the connections that carry events, and neither end learns it. New ones work."""
        self._dead.set()
        self._dead = asyncio.Event()

    async def carry(self, browser: asyncio.StreamReader, to_browser: asyncio.StreamWriter) -> None:
        address = urlsplit(self.target)
        gateway, to_gateway = await asyncio.open_connection(address.hostname, address.port)
        fate = _Fate()
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._requests(browser, to_gateway, fate))
                both.create_task(self._answers(gateway, to_browser, fate))
        except* (ConnectionError, _OverError):
            pass
        finally:
            to_browser.close()
            to_gateway.close()

    async def _requests(self, browser: asyncio.StreamReader, to_gateway: asyncio.StreamWriter, fate: "_Fate") -> None:
        while request := await browser.read(CHUNK):
            if b"/events" in request.split(b"\r\n")[0]:
                fate.dead = self._dead
            for pattern in [*self.cuts]:
                if re.match(pattern.encode(), request):
                    self.cuts.remove(pattern)
                    fate.is_cut = True
            if not fate.is_dead:
                to_gateway.write(request)
                await to_gateway.drain()
        raise _OverError

    async def _answers(self, gateway: asyncio.StreamReader, to_browser: asyncio.StreamWriter, fate: "_Fate") -> None:
        while answer := await gateway.read(CHUNK):
            if fate.is_dead:
                continue
            if fate.is_cut:
                head, _, body = answer.partition(b"\r\n\r\n")
                answer = head + b"\r\n\r\n" + (body or await gateway.read(CHUNK))[: len(body) // 2]
            to_browser.write(answer)
            await to_browser.drain()
            if fate.is_cut:
                break
        raise _OverError


@dataclass
class _Fate:
    """Serve one connection."""

    dead: asyncio.Event | None = None
    is_cut: bool = False

    @property
    def is_dead(self) -> bool:
        return self.dead is not None and self.dead.is_set()


class _OverError(Exception):
    """Close the other end when one end has closed."""


@asynccontextmanager
async def line_to(target: str) -> AsyncIterator[Line]:
    line = Line(target)
    server = await asyncio.start_server(line.carry, "127.0.0.1", 0)
    line.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield line
    finally:
        server.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.wait_closed(), 1)
