"""A tool server and what it says of its tools, without the MCP SDK (AGT-6).

The SDK takes 25 MB and a third of a worker's start, so only modules that speak to foreign servers load it.
"""

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Protocol

from turnkeeper.activities.toolbox.call_context import CallSigner
from turnkeeper.models.errors import TurnkeeperError

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp.server.mcpserver import MCPServer

    from turnkeeper.activities.toolbox.built_in import BuiltInTool


class Remote(Protocol):
    """How a server outside this process is reached: `StdioServer` or `HttpServer`."""

    def connected(self, stopping: asyncio.Event) -> AbstractAsyncContextManager[Any]:
        """Yield the SDK's two streams; `stopping` is set once they are closed."""
        ...


@dataclass(frozen=True)
class ToolServer:
    """A server of tools and its configuration.

    `trusted`: its annotations are used. `timeout` limits one call, in seconds; `None`: only the caller does. The
    built-in tools are a server that is their list.
    """

    name: str
    target: "list[BuiltInTool] | MCPServer | Server[Any] | Remote"
    trusted: bool = False
    timeout: float | None = None
    included: tuple[str, ...] | None = None
    """Patterns of the only tools to offer; `None`: all."""
    signer: CallSigner | None = None
    """Tells the server for whom each call runs; `None`: it is not told."""
    excluded: tuple[str, ...] = ()
    """Patterns of tools that are not offered."""

    @property
    def built_in(self) -> bool:
        """Whether it is our own. Its tools are called directly, with the session's workspace."""
        return isinstance(self.target, list)

    def offers(self, tool: str) -> bool:
        """Return whether the operator wants the tool to be offered.

        >>> server = ToolServer("a", [], included=("get_*",), excluded=("get_all",))
        >>> server.offers("get_one"), server.offers("get_all"), server.offers("put")
        (True, False, False)
        """
        is_included = self.included is None or any(fnmatchcase(tool, pattern) for pattern in self.included)
        return is_included and not any(fnmatchcase(tool, pattern) for pattern in self.excluded)


@dataclass(frozen=True)
class ToolHints:
    """The effects of a built-in tool, in the terms of MCP's `ToolAnnotations`."""

    read_only_hint: bool
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class UnreachableError(TurnkeeperError):
    """A server could not be reached, so nothing was called. The message is for the operator."""


class ToolChangedError(TurnkeeperError):
    """A server no longer offers the tool as it was listed, so nothing was called."""
