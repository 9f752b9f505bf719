"""The tool servers of a worker: the built-in one, and those of `mcp.json` (AGT-6)."""

from collections.abc import Iterator
from datetime import UTC, datetime

from turnkeeper.activities.toolbox.built_in import built_in_tools
from turnkeeper.activities.toolbox.tool_server import Remote, ToolServer
from turnkeeper.models.settings.mcp_config import OUR_OWN, ForeignServer, configuration, load_foreign_servers
from turnkeeper.models.settings.settings import Settings


def configured_servers(settings: Settings) -> list[ToolServer]:
    """Return all servers, the built-in one first.

    Raises:
        SettingsError: `mcp.json` is invalid.
    """
    return [own_tool_server(settings), *foreign_tool_servers(settings)]


def own_tool_server(settings: Settings) -> ToolServer:
    """Return the server of the built-in tools in `workspace_root`, without access to the worker's configuration."""
    off_limits = configuration(settings)
    tools = built_in_tools(settings.workspace_root, now=lambda: datetime.now(UTC), off_limits=off_limits)
    return ToolServer(OUR_OWN, tools, trusted=True)


def foreign_tool_servers(settings: Settings) -> Iterator[ToolServer]:
    """Yield the servers of `mcp.json`, in its order.

    Raises:
        SettingsError: The file is invalid.
    """
    for name, server in load_foreign_servers(settings).items():
        target = _target(name, server, settings)
        yield ToolServer(name, target, trusted=server.trusted, timeout=server.timeout)


def _target(name: str, server: ForeignServer, settings: Settings) -> Remote:
    # Imported here, since they load the MCP SDK: most workers have only the built-in tools.
    from turnkeeper.activities.toolbox.http_server import HttpServer
    from turnkeeper.activities.toolbox.stdio_server import StdioServer

    if server.command is None:
        return HttpServer(server.url or "", server.headers)
    log = settings.state_dir / "logs" / f"mcp-{name}.log"
    return StdioServer(server.command, tuple(server.args), env=server.env, cwd=server.cwd, log=log)
