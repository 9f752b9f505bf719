"""Sanitising foreign servers' lists and results, which the SDK would reject as a whole (AGT-6, AGT-7).

Invalid tools in a list are omitted and logged. Invalid content in a result is replaced with a placeholder, since the
tool has run and the rest of its result counts.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Self

from mcp_types import JSONRPCResponse
from mcp_types.methods import parse_server_result
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from pydantic import ValidationError

MAX_SANITIZED = 10_000
"""The rest of a longer list is omitted unchecked: each item blocks the event loop for some microseconds."""

_log = logging.getLogger(__name__)


@asynccontextmanager
async def sanitized(streams: AbstractAsyncContextManager[Any], *, server: str) -> AsyncIterator[Any]:
    """Yield the SDK's two streams, with messages from `server` sanitised."""
    async with streams as (received, to_send):
        yield _SanitizedStream(received, server), to_send


class _SanitizedStream:
    """A stream of messages as the SDK reads it."""

    def __init__(self, stream: Any, server: str) -> None:
        self._stream = stream
        self._server = server

    @property
    def last_context(self) -> Any:
        """The SDK's context of the last message."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        return self._sanitize(await self._stream.receive())

    async def __anext__(self) -> Any:
        return self._sanitize(await self._stream.__anext__())

    def __aiter__(self) -> Self:
        return self

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        is_suppressed: bool | None = await self._stream.__aexit__(kind, error, trace)
        return is_suppressed

    def _sanitize(self, item: Any) -> Any:
        message = getattr(item, "message", None)
        if isinstance(message, JSONRPCResponse):
            if isinstance(tools := message.result.get("tools"), list):
                message.result["tools"] = self._tools_of(tools)
            if isinstance(blocks := message.result.get("content"), list):
                message.result["content"] = _blocks_of(blocks)
        return item

    def _tools_of(self, tools: list[Any]) -> list[Any]:
        sanitized = [tool for tool in tools[:MAX_SANITIZED] if is_list_of_tools([tool])]
        if omitted := len(tools) - len(sanitized):
            _log.warning(
                "of %d tools of %r %d are invalid or too many, and left out", len(tools), self._server, omitted
            )
        return sanitized


def is_list_of_tools(tools: list[Any]) -> bool:
    """Return whether the SDK accepts a list of tools.

    >>> is_list_of_tools([{"name": "now", "inputSchema": {"type": "object"}}]), is_list_of_tools([{"name": "now"}])
    (True, False)
    """
    return _is_taken("tools/list", {"tools": tools})


def is_content(blocks: list[Any]) -> bool:
    """Return whether the SDK accepts blocks of content.

    >>> is_content([{"type": "text", "text": "a"}]), is_content([{"type": "hologram"}])
    (True, False)
    """
    return _is_taken("tools/call", {"content": blocks})


def _is_taken(method: str, result: dict[str, Any]) -> bool:
    try:
        parse_server_result(method, LATEST_HANDSHAKE_VERSION, result)
    except ValidationError:
        return False
    return True


def _blocks_of(blocks: list[Any]) -> list[Any]:
    sanitized = [block if is_content([block]) else _placeholder(block) for block in blocks[:MAX_SANITIZED]]
    if omitted := len(blocks) - len(sanitized):
        sanitized.append({"type": "text", "text": f"[{omitted:,} more, left out]"})
    return sanitized


def _placeholder(block: Any) -> dict[str, str]:
    """Return a text block in place of an invalid one."""
    kind = block.get("type") if isinstance(block, dict) else None
    return {"type": "text", "text": f"[{kind:.40}, left out]" if isinstance(kind, str) else "[of no type, left out]"}
