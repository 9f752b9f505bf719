"""The MCP server of a gateway: lists the tools and calls them (TSK-6)."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

from mcp.server.caching import CacheHint
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
)
from pydantic import ValidationError
from starlette.types import ASGIApp

from turnkeeper.api.problems import ProblemError
from turnkeeper.api.roles import MAX_HISTORY_BYTES, require, require_for_fields
from turnkeeper.api.services import Services
from turnkeeper.features.mcp.results import (
    EXPECTED,
    arguments_error,
    error_result,
    is_temporary,
    rpc_error,
    sentence_of,
    task_result,
    tool_result,
)
from turnkeeper.features.mcp.tasks import (
    Context,
    TasksExtension,
    caller_of_call,
    changes_of_call,
    is_declared,
    read_prompt_task,
)
from turnkeeper.features.mcp.tools import ALIASES, TOOLS, Work
from turnkeeper.models.http_responses import Role
from turnkeeper.stores.database.database import StoreUnavailableError

log = logging.getLogger(__name__)

INSTRUCTIONS = (
    "Durable agents. create_task gives work to an agent and returns at once; get_task with wait_seconds waits for its "
    "result. Tasks go on when this connection ends. Calls of tools that change something may wait for a person."
)

METHODS: dict[str, Role] = {
    "initialize": "reader",
    "notifications/initialized": "reader",
    "notifications/cancelled": "reader",
    "ping": "reader",
    "server/discover": "reader",
    "tools/list": "reader",
    "tools/call": "reader",  # each tool has a role of its own
    "tasks/get": "reader",
    "tasks/update": "approver",
    "tasks/cancel": "writer",
}
"""The role that each method needs; any other method is refused."""

LIST_MILLIS = 3_600_000
"""How long a client may cache the list of tools."""


@asynccontextmanager
async def serving(services: Services) -> AsyncIterator[ASGIApp]:
    """Serve MCP over HTTP while the context is open: stateless, with JSON responses."""
    manager = StreamableHTTPSessionManager(
        _build_server(services), json_response=True, stateless=True, max_request_body_size=MAX_HISTORY_BYTES
    )
    async with manager.run():
        yield manager.handle_request


def _build_server(services: Services) -> Server[Any]:
    extension, listed = TasksExtension(services), {tool.name: tool.listed() for tool in TOOLS.values()}

    async def list_tools(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[*listed.values()])

    def input_schema(name: str) -> dict[str, Any] | None:
        return listed[name].input_schema if name in listed else None

    unchanging = CacheHint(ttl_ms=LIST_MILLIS, scope="public")
    server: Server[Any] = Server(
        "turnkeeper",
        version=version("turnkeeper"),
        title="Turnkeeper",
        instructions=INSTRUCTIONS,
        cache_hints={"tools/list": unchanging, "server/discover": unchanging},
        get_tool_input_schema=input_schema,
        on_list_tools=list_tools,
    )
    server.middleware += [_hide_internals, partial(_check_role, services)]
    calls = ToolCalls(services, extension)
    server.add_request_handler("tools/call", CallToolRequestParams, calls.call)
    extension.install(server)
    return server


async def _hide_internals(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Hide the text of unexpected exceptions, which the SDK would send to older clients."""
    try:
        return await call_next(ctx)
    except (MCPError, ValidationError):
        raise
    except Exception as error:
        log.exception("%s failed", ctx.method)
        raise MCPError(INTERNAL_ERROR, sentence_of(error)) from None


async def _check_role(services: Services, ctx: Context, call_next: CallNext) -> HandlerResult:
    """Reject methods that the caller's role may not use, and those that no role is listed for."""
    role = METHODS.get(ctx.method)
    if role is None and ctx.request_id is None:
        return None  # a notification, which has no answer
    if role is None:
        raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method)
    try:
        with changes_of_call(services, ctx, operation=f"mcp:{ctx.method}").whole(must_change=False) as changes:
            require(changes.caller, role)
    except ProblemError as error:
        raise rpc_error(error) from error
    return await call_next(ctx)


class ToolCalls:
    """Calls tools. Errors that the caller can fix are tool results; an unknown tool is a JSON-RPC error."""

    def __init__(self, services: Services, extension: TasksExtension) -> None:
        self._services = services
        self._extension = extension

    async def call(self, context: Context, params: CallToolRequestParams) -> CallToolResult | dict[str, Any]:
        tool = TOOLS.get(ALIASES.get(params.name, params.name))
        if tool is None:
            raise MCPError(INVALID_PARAMS, f"There is no tool {params.name[:60]!r}.")
        changes = changes_of_call(self._services, context, operation=f"mcp:{tool.name}")
        try:
            with changes.whole(must_change=not tool.hints.read_only_hint):
                try:
                    arguments = tool.arguments.model_validate(params.arguments or {})
                except ValidationError as error:
                    raise arguments_error(error) from error
                require(changes.caller, tool.role)
                require_for_fields(changes.caller, arguments)
                answer = await tool.run(self._services, changes, arguments)
            if not isinstance(answer, Work):
                return tool_result(answer)
            return await self._handle_of(answer, context) or await self._result_of(answer)
        except EXPECTED as error:
            return error_result(sentence_of(error))

    async def _handle_of(self, work: Work, context: Context) -> dict[str, Any] | None:
        """Return a handle of the work; `None` if the client does not support handles, or none can be stored."""
        if not is_declared(context):
            return None
        message = " ".join([f"{work.accepted.task_id} is working: {work.accepted.url}", *work.notes])
        try:
            return await self._extension.create(
                caller_of_call(context), work.workflow_id, work.message_id, status_message=message
            )
        except StoreUnavailableError:
            return None

    async def _result_of(self, work: Work) -> CallToolResult:
        """Return the current task; if no worker answers, the task as it was accepted."""
        try:
            task = await read_prompt_task(self._services, work.workflow_id, work.message_id)
        except EXPECTED as error:
            if not is_temporary(error):
                raise
            task = work.accepted
        return task_result(task, notes=work.notes)
