"""Lists of tools from a foreign server, without what is no tool: the SDK would refuse the whole list for it (AGT-6)."""

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Self

from mcp_types import JSONRPCResponse
from mcp_types.methods import parse_server_result
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from pydantic import ValidationError

_log = logging.getLogger(__name__)


@asynccontextmanager
async def screened(streams: AbstractAsyncContextManager[Any], *, server: str) -> AsyncIterator[Any]:
    """Have the SDK's two streams inside the block, what comes from the `server` screened."""
    async with streams as (received, sent):
        yield _Screen(received, server), sent


class _Screen:
    """A stream of messages as the SDK reads it."""

    def __init__(self, stream: Any, server: str) -> None:
        self._stream = stream
        self._server = server

    @property
    def last_context(self) -> Any:
        """What the SDK keeps beside a message."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        """Return the next message."""
        return self._screened(await self._stream.receive())

    async def __anext__(self) -> Any:
        return self._screened(await self._stream.__anext__())

    def __aiter__(self) -> Self:
        return self

    async def aclose(self) -> None:
        """Take no more."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        ended: bool | None = await self._stream.__aexit__(kind, error, trace)
        return ended

    def _screened(self, item: Any) -> Any:
        message = getattr(item, "message", None)
        if isinstance(message, JSONRPCResponse) and isinstance(listed := message.result.get("tools"), list):
            kept = listed if is_list_of_tools(listed) else [tool for tool in listed if is_list_of_tools([tool])]
            if len(kept) < len(listed):
                _log.warning("of %d tools of %r %d are none", len(listed), self._server, len(listed) - len(kept))
                message.result["tools"] = kept
        return item


def is_list_of_tools(tools: list[Any]) -> bool:
    """Tell whether the SDK takes a list of tools.

    >>> is_list_of_tools([{"name": "now", "inputSchema": {"type": "object"}}]), is_list_of_tools([{"name": "now"}])
    (True, False)
    """
    try:
        parse_server_result("tools/list", LATEST_HANDSHAKE_VERSION, {"tools": tools})
    except ValidationError:
        return False
    return True
