"""All tools of a worker: several named MCP servers, the built-in one first (AGT-6, AGT-7, CTX-14).

    list_tools   tools of each server  ->  unique names, and the effect of each tool
    call         name  ->  server and tool  ->  validate arguments  ->  call  ->  outcome and content

`tool_names.py` finds the tool of a name; `server_connection.py` handles foreign servers, which may die, hang or be
slow, through the SDK's `Client`. The built-in tools are called directly.

Every failure is a result for the model to read, except for a cancellation, and for a server that was lost during a call
that may be repeated.
"""

import asyncio
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Self, cast

from turnkeeper.activities.toolbox.built_in import BuiltInConnection, built_in_tools
from turnkeeper.activities.toolbox.call_context import CONTEXT
from turnkeeper.activities.toolbox.tool_names import NamedTool, ToolNames, error_result, one_line
from turnkeeper.activities.toolbox.tool_server import Remote, ToolChangedError, ToolServer
from turnkeeper.activities.tools import ProgressListener, ServerLostError
from turnkeeper.models.session.approvals import NO_DIFFERENCE
from turnkeeper.models.settings.mcp_config import (
    OUR_OWN,
    ForeignServer,
    McpConfig,
    configuration,
    load_foreign_servers,
)
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.texts import bound_json
from turnkeeper.models.transcript.conversation import FileChange, ToolResult
from turnkeeper.models.transcript.model_call import ServerText, ToolInvocation, ToolList, ToolSpec

if TYPE_CHECKING:
    from mcp_types import RequestParamsMeta, Tool

    from turnkeeper.activities.toolbox.server_connection import ServerConnection

IDEMPOTENCY_KEY = "turnkeeper/idempotency-key"
"""Key in a request's `_meta`. Its value is the same for every run of a call, and unique over all sessions."""

NOT_CONFIGURED = "it is not configured correctly"
"""The text that sessions show for a problem in the operator's file."""

_log = logging.getLogger(__name__)


class Toolbox:
    """The tools of several servers. Use it as a context manager: `async with Toolbox(servers) as toolbox`."""

    def __init__(
        self,
        servers: Sequence[ToolServer],
        *,
        reserved: Collection[str] = (),
        problems: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Offer the tools of `servers`, in this order, without names in `reserved`. Connects to nothing yet.

        `problems`: why further servers, by name, can't be among them.
        """
        self._lasting_problems = dict(problems)
        self._noted_problems: dict[str, str] = {}
        self._connections = {server.name: _connection_to(server) for server in servers}
        if len(self._connections) < len(servers):
            raise ValueError(f"tool servers need names of their own, not {[server.name for server in servers]!r}")
        self._names = ToolNames(reserved)
        self._tools: dict[str, NamedTool] = {}

    async def __aenter__(self) -> Self:
        """Start to list the servers' tools, so that slow servers are ready for the first turn."""
        for connection in self._connections.values():
            connection.start_listing()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections and end the servers' processes. A later call would connect again."""
        await asyncio.gather(*(connection.aclose() for connection in self._connections.values()))

    @property
    def problems(self) -> dict[str, str]:
        """Why servers have no tools now, by name, for the operator: a server's last words are part of it."""
        failing = {name: one.problem for name, one in self._connections.items() if one.problem}
        return {**self._lasting_problems, **self._noted_problems, **failing}

    def note_problem(self, server: str, problem: str) -> None:
        """Note what is wrong with a server that has tools; empty: nothing any more."""
        self._noted_problems.pop(server, None)
        if problem:
            self._noted_problems[server] = problem

    def restart(self, server: str) -> None:
        """Run calls from now on in a new process of a server; those that run finish in the old one."""
        connection = self._connections[server]
        if not isinstance(connection, BuiltInConnection):
            connection.restart()

    async def list_tools(self) -> ToolList:
        """Return the current tools, in a stable order, with unique names.

        If a server is unreachable or too slow, its last known tools are returned, and the log says why.
        """
        await self._refresh(*self._connections.values())
        unreachable = [name for name, connection in self._connections.items() if not connection.is_known]
        # In a thread: checking a thousand foreign schemas takes a while.
        tools = await asyncio.to_thread(lambda: list(self._specs()))
        absent = dict.fromkeys(self._lasting_problems, NOT_CONFIGURED)
        absent |= {name: self._connections[name].reason for name in unreachable}
        instructions = {name: one.instructions for name, one in self._connections.items() if one.instructions}
        return ToolList(
            tools=tools, unread=unreachable, instructions=_server_texts(instructions), absent=_server_texts(absent)
        )

    async def call(self, invocation: ToolInvocation, *, on_progress: ProgressListener | None = None) -> ToolResult:
        """Run one call and return its result. A foreign server's reports of progress go to `on_progress`.

        A second attempt runs the tool again, with the same idempotency key.

        Raises:
            ServerLostError: The server was lost, and the call can safely be repeated.
        """
        started_at = perf_counter()
        try:
            result = await self._result_of(invocation, on_progress)
        except ServerLostError as error:
            raise ServerLostError(self._bounded(error.result, invocation, started_at)) from error
        return self._bounded(result, invocation, started_at)

    async def preview(self, invocation: ToolInvocation, *, max_bytes: int) -> FileChange:
        """Return what a call of a built-in tool would change in a file; a note where nobody can know."""
        built_in = (one for one in self._connections.values() if isinstance(one, BuiltInConnection))
        connection = next(built_in, None)
        if connection is None:
            return FileChange(note=NO_DIFFERENCE)
        return await connection.preview(invocation, max_bytes=max_bytes)

    def _bounded(self, result: ToolResult, invocation: ToolInvocation, started_at: float) -> ToolResult:
        return result.model_copy(
            update={
                "outcome": one_line(result.outcome),
                "content": bound_json(result.content, invocation.max_chars, invocation.max_bytes),
                "duration_ms": round((perf_counter() - started_at) * 1_000),
            }
        )

    async def _result_of(self, invocation: ToolInvocation, on_progress: ProgressListener | None) -> ToolResult:
        for _ in range(2):
            named_tool, argument_errors = await self._find_current(invocation)
            if named_tool is None:
                return self._unknown(invocation)
            if not named_tool.is_unchanged(invocation):
                break
            if argument_errors:
                return error_result(
                    f"{invocation.name} was not called: its arguments don't fit", "\n".join(argument_errors)
                )
            try:
                return await _call(named_tool, invocation, on_progress)
            except ToolChangedError:
                self._update_tools()
            except Exception as error:  # noqa: BLE001  # a tool's failure is a result and must not fail the turn
                return named_tool.failure_result(error)
        explanation = (
            "Its definition changed since this session read it. The tools are reloaded now; then it may be called."
        )
        return ToolResult(
            outcome=f"{invocation.name} has changed, and was not called",
            content=explanation,
            status="error",
            tool_changed=True,
        )

    async def _find_current(self, invocation: ToolInvocation) -> tuple[NamedTool | None, list[str]]:
        """Return the tool of a call, and what is wrong with the call's arguments."""
        named_tool = self._find(invocation)
        if named_tool is None:
            # Another worker may have listed it, or it may be new.
            await self._refresh(*self._connections.values())
        elif not named_tool.is_unchanged(invocation) or named_tool.argument_errors(invocation.args):
            # The server may have changed the tool since it was listed.
            await self._refresh(named_tool.connection)
        else:
            return named_tool, []
        named_tool = self._find(invocation)
        return named_tool, named_tool.argument_errors(invocation.args) if named_tool else []

    def _find(self, invocation: ToolInvocation) -> NamedTool | None:
        tool = self._tools.get(invocation.name)
        if tool and tool.matches(invocation):
            return tool
        return next((named_tool for named_tool in self._tools.values() if named_tool.matches(invocation)), None)

    async def _refresh(self, *connections: "BuiltInConnection | ServerConnection") -> None:
        await asyncio.gather(*(connection.refresh() for connection in connections))
        self._update_tools()

    def _update_tools(self) -> None:
        self._tools = self._names.assign(self._connections.values())

    def _specs(self) -> Iterator[ToolSpec]:
        for named_tool in list(self._tools.values()):
            if named_tool.schema_problem:
                _log.warning(
                    "vendors would reject the schema of %r: %s; the model gets an open schema",
                    named_tool.name,
                    named_tool.schema_problem,
                )
            try:
                yield named_tool.spec
            except (ValueError, RecursionError) as error:
                _log.warning(
                    "the tool %r is left out: its definition can't be sent to a model", named_tool.name, exc_info=error
                )

    def _unknown(self, invocation: ToolInvocation) -> ToolResult:
        lines = [f"There are: {', '.join(self._tools)}"]
        unknown = [server for server, connection in self._connections.items() if not connection.is_known]
        if unknown:
            lines.append(f"Unknown, because unreachable: the tools of {', '.join(unknown)}")
        whose = f" of {invocation.server}" if invocation.server else ""
        nothing = error_result(f"There is no tool {invocation.name!r}{whose}", "\n".join(lines))
        owner = self._connections.get(invocation.server)
        is_gone = invocation.built_in or (bool(invocation.tool_digest) and owner is not None and owner.is_known)
        return nothing.model_copy(update={"tool_changed": is_gone})


def _server_texts(texts: dict[str, str]) -> list[ServerText]:
    return [ServerText(server=server, text=text) for server, text in sorted(texts.items())]


def _connection_to(server: ToolServer) -> "BuiltInConnection | ServerConnection":
    if isinstance(server.target, list):
        return BuiltInConnection(server, server.target)
    # Imported here, since it loads the MCP SDK: most workers have only the built-in tools.
    from turnkeeper.activities.toolbox.server_connection import ServerConnection

    return ServerConnection(server)


async def _call(named_tool: NamedTool, invocation: ToolInvocation, on_progress: ProgressListener | None) -> ToolResult:
    connection = named_tool.connection
    if isinstance(connection, BuiltInConnection):
        return await connection.call(named_tool.tool.name, invocation)
    # A call id is unique only in its session, but a server may serve all sessions.
    key = f"{invocation.session_id}/{invocation.call_id}"
    signer = connection.server.signer
    context = {CONTEXT: signer.signed_context(invocation, key)} if signer else {}
    meta = cast("RequestParamsMeta", {IDEMPOTENCY_KEY: key, **context})
    tool = cast("Tool", named_tool.tool)
    result = await connection.call(tool, invocation.args, meta, patience=invocation.patience, on_progress=on_progress)
    return named_tool.result_of(result)


# ---- the servers of `mcp.json`


def build_toolbox(settings: Settings, *others: ToolServer) -> Toolbox:
    """Return the tools of all servers, the built-in ones first. What is wrong in `mcp.json` is logged.

    `others` are servers that are not in the file: those of features.

    Raises:
        SettingsError: The setting `mcp_config` names no file.
    """
    config = load_foreign_servers(settings)
    for name, problem in config.problems.items():
        _log.error("the tool server %r is left out: %s", name, problem)
    for name, notes in config.notes.items():
        _log.warning("of the tool server %r: %s", name, "; ".join(notes))
    servers = [own_tool_server(settings), *others, *foreign_tool_servers(config, settings)]
    return Toolbox(servers, problems=config.problems)


def own_tool_server(settings: Settings) -> ToolServer:
    """Return the server of the built-in tools in `workspace_root`, without access to the worker's configuration."""
    off_limits = configuration(settings)
    tools = built_in_tools(settings.workspace_root, now=lambda: datetime.now(UTC), off_limits=off_limits)
    return ToolServer(OUR_OWN, tools, trusted=True)


def foreign_tool_servers(config: McpConfig, settings: Settings) -> Iterator[ToolServer]:
    """Yield the servers of `mcp.json`, in its order."""
    for number, (name, server) in enumerate(config.servers.items()):
        # Server names may have any characters, but file names may not; these are unique by their number.
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
    from turnkeeper.activities.toolbox.transports import HttpServer, SseServer, StdioServer

    if server.url is not None:
        return (SseServer if server.is_sse else HttpServer)(server.url, server.headers)
    return StdioServer(server.command or "", tuple(server.args), env=server.env, cwd=server.cwd, log=log)
