"""`turnkeeper tools FILE`: an MCP server over stdio with the tools of a file (AGN-3).

Each call runs in this process, those that are not `async` in threads. The worker starts the process, ends it, and
starts it again when it has died; any other MCP client can use it too. What a tool prints goes to the log, never between
the messages.
"""

import asyncio
import json
import os
import resource
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    ImageContent,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as ListedTool
from pydantic import ValidationError

from turnkeeper.activities.toolbox.call_context import CONTEXT, KEY_VARIABLE, CallSigner, verified
from turnkeeper.activities.toolbox.tool_server import ToolServer
from turnkeeper.features.agents.agent import Agent
from turnkeeper.features.agents.agent_file import load_agents, tools_of
from turnkeeper.features.agents.tool import Image, Report, Tool, ToolContext, ToolError, json_result

MAX_COMPLAINTS = 3

Context = ServerRequestContext[Any]


def server_of(tools: Sequence[Tool], *, key: str | None) -> Server[Any]:
    """Return the MCP server of tools; `key` is the one that the worker signs a call's context with."""
    by_name = {one.name: one for one in tools}

    async def list_tools(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[_listed(one) for one in tools])

    async def call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult:
        one = by_name.get(params.name)
        if one is None:
            return _failed(f"There is no tool {params.name!r}; there are {', '.join(by_name)}.")
        limit = asyncio.timeout(one.timeout)
        reports = _Reports(context, on_report=lambda: _begin_anew(limit, one.timeout))
        try:
            async with limit:
                result = await one.run(params.arguments or {}, _context_of(context.meta or {}, key, reports.report))
            await reports.flush()
            return _answer(result)
        except ToolError as error:
            return _failed(str(error))
        except ValidationError as error:
            return _failed(f"The arguments don't fit: {_complaint(error)}")
        except MemoryError:
            return _failed(f"{one.name} needed more memory than a tool may use.")
        except Exception as error:  # noqa: BLE001  # whatever a tool raises, the model reads a result
            if limit.expired():
                return _failed(f"{one.name} took too long. It may have done something, and may still do it.")
            return _failed(f"{one.name} raised {type(error).__name__}: {error}")

    return Server("tools", version=version("turnkeeper"), on_list_tools=list_tools, on_call_tool=call_tool)


def _listed(one: Tool) -> ListedTool:
    return ListedTool(
        name=one.name,
        description=one.description,
        input_schema=one.input_schema,
        annotations=ToolAnnotations(
            read_only_hint=one.effect == "read", idempotent_hint=one.effect == "idempotent", open_world_hint=False
        ),
    )


def _context_of(meta: Mapping[str, Any], key: str | None, report: Report) -> ToolContext:
    """Return for whom a call runs: as the worker says it, or nobody in particular."""
    signed = meta.get(CONTEXT)
    fields = verified(signed, key) if key and isinstance(signed, str) else None
    if fields is None:
        return ToolContext(report=report)
    return ToolContext(**{**fields, "workspace": Path(fields["workspace"])}, report=report)


def _begin_anew(limit: asyncio.Timeout, seconds: float | None) -> None:
    if seconds is not None and not limit.expired():
        with suppress(RuntimeError):  # the call has just ended
            limit.reschedule(asyncio.get_running_loop().time() + seconds)


class _Reports:
    """Sends a call's progress, from any thread and in order. Nobody waits for it but the call's answer."""

    def __init__(self, context: Context, *, on_report: Callable[[], None]) -> None:
        self._context = context
        self._on_report = on_report
        self._loop = asyncio.get_running_loop()
        self._percent = 0.0
        self._last: asyncio.Task[None] | None = None

    def report(self, percent: float | None, text: str) -> None:
        self._loop.call_soon_threadsafe(self._begin, percent, text)

    async def flush(self) -> None:
        """Wait until everything is sent that was reported so far."""
        await asyncio.sleep(0)  # what a thread has reported begins first
        if self._last:
            await self._last

    def _begin(self, percent: float | None, text: str) -> None:
        self._on_report()
        self._percent = self._percent if percent is None else percent
        self._last = self._loop.create_task(self._send(self._percent, text, after=self._last))

    async def _send(self, percent: float, text: str, *, after: "asyncio.Task[None] | None") -> None:
        if after:
            await after
        with suppress(Exception):  # nobody listens any more; the call goes on
            await self._context.session.report_progress(percent, 100, text)


def _answer(result: Any) -> CallToolResult:
    if isinstance(result, Image):
        return CallToolResult(content=[ImageContent(type="image", data=result.base64, mime_type=result.media_type)])
    if isinstance(result, str):
        return CallToolResult(content=[_text(result)])
    if result is None:
        return CallToolResult(content=[_text("Done; the tool returned nothing.")])
    return CallToolResult(content=[_text(json.dumps(json_result(result), ensure_ascii=False, allow_nan=False))])


def _failed(text: str) -> CallToolResult:
    return CallToolResult(content=[_text(text)], is_error=True)


def _text(text: str) -> ContentBlock:
    return TextContent(type="text", text=text)


def _complaint(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:MAX_COMPLAINTS])


def in_process_server(name: str, agents: Sequence[Agent], workspace_root: Path) -> ToolServer:
    """Return the server of the own tools of these agents, which run in this process. Raises `AgentFileError`."""
    key = secrets.token_urlsafe()
    target = server_of(tools_of(agents, name), key=key)
    return ToolServer(name, target, trusted=True, signer=CallSigner(key, workspace_root))


async def serve(tools: Sequence[Tool]) -> None:
    """Serve tools on stdin and stdout until stdin ends."""
    # What a tool prints, in Python, in C or in a program that it starts, must not get between the messages.
    messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    server = server_of(tools, key=os.environ.pop(KEY_VARIABLE, None))
    async with stdio_server(stdout=anyio.wrap_file(messages)) as (received, to_send):
        await server.run(received, to_send, server.create_initialization_options())


def limit_memory(max_bytes: int) -> None:
    """Make allocations beyond `max_bytes` fail in this process: a tool that needs more gets a `MemoryError`."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (max_bytes, hard))


def main(file: Path, *, max_bytes: int) -> None:
    """Serve the tools of a file. Raises `AgentFileError`."""
    tools = tools_of(load_agents(file), file)
    limit_memory(max_bytes)
    asyncio.run(serve(tools))
