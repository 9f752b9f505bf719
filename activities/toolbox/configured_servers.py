"""The tool servers of a worker: the built-in one, and those of `mcp.json` (AGT-6)."""

import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from turnkeeper.activities.toolbox.built_in import built_in_tools
from turnkeeper.activities.toolbox.tool_server import Remote, ToolServer
from turnkeeper.activities.toolbox.toolbox import Toolbox
from turnkeeper.models.settings.mcp_config import (
    OUR_OWN,
    ForeignServer,
    McpConfig,
    configuration,
    load_foreign_servers,
)
from turnkeeper.models.settings.settings import Settings

_log = logging.getLogger(__name__)


def build_toolbox(settings: Settings) -> Toolbox:
    """Return the tools of all servers, the built-in ones first. What is wrong in `mcp.json` is logged.

    Raises:
        SettingsError: The setting `mcp_config` names no file.
    """
    config = load_foreign_servers(settings)
    for name, problem in config.problems.items():
        _log.error("the tool server %r is left out: %s", name, problem)
    for name, notes in config.notes.items():
        _log.warning("of the tool server %r: %s", name, "; ".join(notes))
    servers = [own_tool_server(settings), *foreign_tool_servers(config, settings)]
    return Toolbox(servers, problems=config.problems)


def own_tool_server(settings: Settings) -> ToolServer:
    """Return the server of the built-in tools in `workspace_root`, without access to the worker's configuration."""
    off_limits = configuration(settings)
    tools = built_in_tools(settings.workspace_root, now=lambda: datetime.now(UTC), off_limits=off_limits)
    return ToolServer(OUR_OWN, tools, trusted=True)


def foreign_tool_servers(config: McpConfig, settings: Settings) -> Iterator[ToolServer]:
    """Yield the servers of `mcp.json`, in its order."""
    for number, (name, server) in enumerate(config.servers.items()):
        # Names may have any characters; those of files may not, and are unique by their number.
        file_name = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f"{re.sub('[^A-Za-z0-9_-]', '_', name)}-{number}"
        target = _target(server, settings.state_dir / "logs" / f"mcp-{file_name}.log")
        yield ToolServer(
            name,
            target,
            trusted=server.trusted,
            timeout=server.timeout,
            included=None if server.includeTools is None else tuple(server.includeTools),
            excluded=tuple(server.excludeTools),
        )


def _target(server: ForeignServer, log: Path) -> Remote:
    # Imported here, since they load the MCP SDK: most workers have only the built-in tools.
    from turnkeeper.activities.toolbox.http_server import HttpServer, SseServer
    from turnkeeper.activities.toolbox.stdio_server import StdioServer

    if server.url is not None:
        return (SseServer if server.is_sse else HttpServer)(server.url, server.headers)
    return StdioServer(server.command or "", tuple(server.args), env=server.env, cwd=server.cwd, log=log)
