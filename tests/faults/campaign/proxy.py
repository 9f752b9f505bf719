"""A TCP connection that can be cut and stalled: between a process and Temporal."""

import asyncio
import contextlib
import socket
import struct
from typing import Self

CHUNK_BYTES = 65_536
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""Value for SO_LINGER: a close sends RST, not FIN."""


class Proxy:
    """Passes bytes on between its own port and `target`, both ways."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._host, self._target_port = host, int(port)
        self._port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def __aenter__(self) -> Self:
        await self.restore()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.resume()
        await self.cut()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def cut(self) -> None:
        """Reset every connection and refuse new ones, until `restore`."""
        if self._server:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def restore(self) -> None:
        """Accept connections, always at the same port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    def stall(self) -> None:
        """Pass nothing on, and keep every connection open, until `resume`."""
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._connect(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            there, back = await asyncio.open_connection(self._host, self._target_port)
            ends.append(back)
            await asyncio.gather(self._pass_on(reader, back), self._pass_on(there, writer))
        except OSError:
            pass  # one side is gone, or Temporal is away
        finally:
            for end in ends:
                _reset(end)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while chunk := await source.read(CHUNK_BYTES):
            await self._flowing.wait()
            sink.write(chunk)
            await sink.drain()
        raise ConnectionError("one side has closed the connection")


def _reset(end: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    end.transport.abort()
