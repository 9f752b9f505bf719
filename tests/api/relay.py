"""A wire that a test can cut or freeze: between a gateway and Temporal."""

import asyncio
import contextlib
from typing import Self


class Relay:
    """Forwards bytes to `target`, unless it is cut or frozen."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._host, self._target_port = host, int(port)
        self._port = 0
        self._server: asyncio.Server | None = None
        self._wires: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def heal(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Refuse connections, and reset those there are."""
        self._server.close()
        for wire in self._wires:
            wire.cancel()
        await asyncio.gather(*self._wires, return_exceptions=True)

    def freeze(self) -> None:
        """Forward nothing, with all connections open, as if every packet were lost."""
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    async def __aenter__(self) -> Self:
        await self.heal()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = asyncio.create_task(self._carry(reader, writer))
        self._wires.add(wire)
        wire.add_done_callback(self._wires.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._host, self._target_port)
        try:
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        except ConnectionError:
            pass  # one side has disconnected
        finally:
            for end in (writer, back):
                with contextlib.suppress(ConnectionError):
                    end.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while some := await source.read(65_536):
            await self._flows.wait()
            sink.write(some)
            await sink.drain()
        raise ConnectionError("the other side has left")
