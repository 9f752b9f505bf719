"""All tools of a worker behind one door: several named MCP servers, the built-in one first (AGT-6, AGT-7, CTX-14).

    list_tools   what each server offers  ->  unique names, and what a repeated call of each may do
    call         name  ->  server and tool  ->  arguments checked  ->  called  ->  told as an outcome and its content

Every server is spoken to through the SDK's `Client`. One in this process is called directly, without framing (about
0.15 ms); one behind stdio or HTTP is another `target`, and nothing else here would change.

Whatever goes wrong is a result for the model to read. Only a cancellation passes through.
"""

import asyncio
import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, count, islice
from time import perf_counter
from typing import Any, Self, cast

from jsonschema import Draft202012Validator, SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from mcp import Client, MCPError, StdioServerParameters
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp_types import (
    CONNECTION_CLOSED,
    REQUEST_TIMEOUT,
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    RequestParamsMeta,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
    ToolAnnotations,
)
from pydantic import JsonValue
from referencing import Registry

from activities.toolbox.built_in import ROOM_KEY, WORKSPACE_KEY
from models.context.bounds import bound_json, bound_text, encodable, encodable_text
from models.model_call import ToolEffect, ToolInvocation, ToolSpec
from models.trajectory import ToolResult, ToolStatus

IDEMPOTENCY_KEY = "turnkeeper/idempotency-key"
"""Key in a request's `_meta`: the same for every run of one call, different for every other call of any session."""

LISTING_SECONDS = 10.0
"""How long one server may take to say which tools it has; it must not hold up the others'."""

MOST_TOOLS_OF_A_SERVER = 1_000
MOST_NAME_CHARS = 64
"""What every vendor's API accepts as a tool name."""

MOST_COMPLAINTS = 5
OUTCOME_CHARS = 300
DESCRIPTION_CHARS = 4_000

_LOST = (CONNECTION_CLOSED, REQUEST_TIMEOUT)
"""Errors after which nobody knows whether the tool ran."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ToolServer:
    """An MCP server and what is known of it.

    `trusted`: its annotations count. `built_in`: it is our own, is told whose workspace a call is about, and begins
    its results with their outcome.
    """

    name: str
    target: MCPServer | Server[Any] | StdioServerParameters | str
    """In this process, a command, or the URL of a streamable HTTP endpoint."""
    trusted: bool = False
    built_in: bool = False


class UnreachableError(Exception):
    """A server could not be connected: nothing was called."""


class Toolbox:
    """The tools of several servers. To be closed after use: `async with Toolbox(servers) as toolbox`."""

    def __init__(self, servers: Sequence[ToolServer], *, reserved: Collection[str] = ()) -> None:
        """Offer the tools of `servers`, in this order, under no name in `reserved`. Nothing is connected yet."""
        self._connections = {server.name: _Connection(server) for server in servers}
        if len(self._connections) < len(servers):
            raise ValueError(f"tool servers need names of their own, not {[server.name for server in servers]!r}")
        self._reserved = frozenset(reserved)
        self._routes: dict[str, _Route] = {}

    async def __aenter__(self) -> Self:
        """Return the toolbox itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections. A later call would open them again."""
        await asyncio.gather(*(connection.aclose() for connection in self._connections.values()))

    async def list_tools(self) -> list[ToolSpec]:
        """Return the tools there are now, in a stable order, under unique names.

        Of a server that can't be asked, what it offered before is returned; the log says why.
        """
        await asyncio.gather(*(connection.refresh() for connection in self._connections.values()))
        self._routes = _routes_over(self._connections.values(), self._reserved)
        return [route.spec for route in self._routes.values()]

    async def call(self, invocation: ToolInvocation) -> ToolResult:
        """Run one call and return what it came to. Raises nothing but a cancellation.

        A second run runs the tool again, with the same idempotency key; whether there may be one, the caller knows
        from the tool's effect.
        """
        started = perf_counter()
        result = await self._result_of(invocation)
        return ToolResult(
            outcome=_one_line(result.outcome),
            content=bound_json(result.content, invocation.max_chars, invocation.max_bytes),
            status=result.status,
            duration_ms=round((perf_counter() - started) * 1_000),
        )

    async def _result_of(self, invocation: ToolInvocation) -> ToolResult:
        route = await self._route_to(invocation.name)
        if route is None:
            return _error(f"There is no tool {invocation.name!r}", f"There are: {', '.join(self._routes)}")
        if complaints := route.complaints(invocation.args):
            return _error(f"{invocation.name} was not called: its arguments don't fit", "\n".join(complaints))
        try:
            return route.told(await route.connection.call(route.tool.name, invocation))
        except Exception as error:  # noqa: BLE001  # whatever a tool or its server does is for the model, not the turn
            return route.failure(error)

    async def _route_to(self, name: str) -> "_Route | None":
        if name not in self._routes:
            # Listed by another worker, perhaps, or new since this one asked.
            await self.list_tools()
        # A session keeps the names it began with: one that needed its server's name then may need it no longer.
        qualified = (route for route in self._routes.values() if route.qualified_name == name)
        return self._routes.get(name) or next(qualified, None)


class _Connection:
    """A client of one server, opened when it is first needed and kept open.

    It lives in a task of its own: the SDK's scopes must be left by the task that entered them, while the task of a
    call ends with its call; and what breaks in a connection must not reach into whoever happened to open it.
    """

    def __init__(self, server: ToolServer) -> None:
        self.server = server
        self.tools: list[Tool] = []
        self._keeper: asyncio.Task[None] | None = None
        self._opening: asyncio.Future[Client] | None = None

    async def refresh(self) -> None:
        """Read which tools there are; if the server can't be asked, keep those it had."""
        try:
            async with asyncio.timeout(LISTING_SECONDS):
                tools = await self._read_tools()
        except Exception:  # noqa: BLE001  # one broken server must not take the others' tools away
            _log.warning("the tools of %r could not be read", self.server.name, exc_info=True)
        else:
            # Foreign servers promise no order; the model's cached context needs one.
            self.tools = tools if self.server.built_in else sorted(tools, key=lambda tool: tool.name)

    async def call(self, tool: str, invocation: ToolInvocation) -> CallToolResult:
        """Call a tool by the server's own name for it."""
        client = await self._client()
        return await client.call_tool(tool, invocation.args, meta=_meta_for(self.server, invocation))

    async def aclose(self) -> None:
        """Close the connection, if it is open."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    async def _read_tools(self) -> list[Tool]:
        client = await self._client()
        page = await client.list_tools()
        tools = page.tools
        while page.next_cursor is not None and len(tools) < MOST_TOOLS_OF_A_SERVER:
            page = await client.list_tools(cursor=page.next_cursor)
            tools = [*tools, *page.tools]
        return tools[:MOST_TOOLS_OF_A_SERVER]

    async def _client(self) -> Client:
        if self._opening is None or self._keeper is None or self._keeper.done():
            self._opening = asyncio.get_running_loop().create_future()
            self._keeper = asyncio.create_task(self._keep_open(self._opening))
        # Shielded: a caller that is cancelled must not cancel what others wait for.
        return await asyncio.shield(self._opening)

    async def _keep_open(self, opening: "asyncio.Future[Client]") -> None:
        try:
            async with Client(self.server.target, cache=None) as client:
                opening.set_result(client)
                await asyncio.Event().wait()  # until cancelled by `aclose`
        except Exception as error:  # noqa: BLE001  # told to whoever waits for the connection
            if opening.done():
                _log.warning("the connection to %r broke", self.server.name, exc_info=True)
            else:
                unreachable = UnreachableError(f"the tool server {self.server.name!r} could not be connected")
                unreachable.__cause__ = error
                opening.set_exception(unreachable)
        finally:
            opening.cancel()  # of no effect once it has a result


@dataclass(frozen=True)
class _Route:
    """The way from a name to a tool of a server, and what is known of the tool."""

    name: str
    connection: _Connection
    tool: Tool

    @property
    def qualified_name(self) -> str:
        """The name with the server's before it, whether or not that is needed."""
        return _usable(f"{self.connection.server.name}__{self.tool.name}")

    @cached_property
    def spec(self) -> ToolSpec:
        """The tool as the session keeps it."""
        server = self.connection.server
        description = bound_text(self.tool.description or "", DESCRIPTION_CHARS, 4 * DESCRIPTION_CHARS)
        return ToolSpec(
            name=self.name,
            description=description,
            input_schema={encodable_text(key): encodable(value) for key, value in self.tool.input_schema.items()},
            effect=effect_of(self.tool.annotations, trusted=server.trusted or server.built_in),
            built_in=server.built_in,
        )

    @cached_property
    def _validator(self) -> Validator | None:
        return _validator_of(json.dumps(self.tool.input_schema))

    def complaints(self, args: Mapping[str, JsonValue]) -> list[str]:
        """Say what is wrong with the arguments: nothing if they fit, or if the schema itself can't be used."""
        if self._validator is None:
            return []
        try:
            return [_complaint(error) for error in islice(self._validator.iter_errors(args), MOST_COMPLAINTS)]
        except Exception:  # noqa: BLE001  # references to nowhere, bad patterns, ...: its server checks once more
            return []

    def told(self, answer: CallToolResult) -> ToolResult:
        """Return what the server answered, as an outcome and its content."""
        texts = [_text_of(block) for block in answer.content]
        if not texts and answer.structured_content is not None:
            texts = [json.dumps(answer.structured_content, ensure_ascii=False)]
        status: ToolStatus = "error" if answer.is_error else "ok"
        if self.connection.server.built_in:
            return ToolResult(outcome="".join(texts[:1]), content="\n".join(texts[1:]), status=status)
        content = "\n".join(texts)
        if content.strip() and "\n" not in content.strip() and len(content) <= OUTCOME_CHARS:
            return ToolResult(outcome=content, status=status)
        outcome = f"{self.name} failed" if answer.is_error else f"Called {self.name}"
        return ToolResult(outcome=outcome, content=content, status=status)

    def failure(self, error: Exception) -> ToolResult:
        """Return what is known after `error`; of a tool that must not be repeated it may be that nothing is known."""
        if isinstance(error, MCPError) and error.code not in _LOST:
            return _error(f"{self.name} failed", error.message)
        # Its text may hold addresses and credentials of the server: for the log, not for the model.
        _log.warning("the call of %r failed", self.name, exc_info=error)
        if isinstance(error, UnreachableError) or self.spec.effect != "at_most_once":
            return _error(f"{self.name} failed", f"{type(error).__name__}; the worker's log says more.")
        return ToolResult(
            outcome=f"{self.name}: outcome unknown",
            content="No answer could be had. It may have had its effect, and is not repeated.",
            status="outcome_unknown",
        )


def effect_of(annotations: ToolAnnotations | None, *, trusted: bool) -> ToolEffect:
    """Return what a repeated call may do; where the server is not trusted, its word does not count (AGT-7).

    >>> effect_of(ToolAnnotations(read_only_hint=True), trusted=True)
    'read'
    >>> effect_of(ToolAnnotations(read_only_hint=True), trusted=False)
    'at_most_once'
    """
    if annotations is None or not trusted:
        return "at_most_once"
    if annotations.read_only_hint:
        return "read"
    return "idempotent" if annotations.idempotent_hint else "at_most_once"


def _routes_over(connections: Iterable[_Connection], reserved: Collection[str]) -> "dict[str, _Route]":
    """Return all tools by their names: with the server's before it where several servers offer the same (AGT-6).

    Our own keep their names in any case: prompts and policies speak of them.
    """
    offers = [(connection, tool) for connection in connections for tool in connection.tools]
    offered = Counter(_usable(tool.name) for _, tool in offers)
    routes: dict[str, _Route] = {}
    for connection, tool in offers:
        plain, qualified = _usable(tool.name), _usable(f"{connection.server.name}__{tool.name}")
        is_free = connection.server.built_in or offered[plain] == 1
        numbered = (_usable(f"{qualified}_{number}") for number in count(2))
        candidates = chain([plain] if is_free else [], [qualified], numbered)
        name = next(name for name in candidates if name not in routes and name not in reserved)
        routes[name] = _Route(name, connection, tool)
    return routes


def _usable(name: str) -> str:
    """Return a name that every vendor accepts; what is too long keeps apart by a digest.

    >>> _usable("search.web"), len(_usable("x" * 100)), _usable("x" * 100) == _usable("x" * 101)
    ('search_web', 64, False)
    """
    usable = re.sub(r"[^A-Za-z0-9_-]", "_", name) or "_"
    if len(usable) <= MOST_NAME_CHARS:
        return usable
    digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:8]
    return f"{usable[: MOST_NAME_CHARS - 9]}_{digest}"


def _meta_for(server: ToolServer, invocation: ToolInvocation) -> RequestParamsMeta:
    # A call id is unique in its session only, while a server may serve them all.
    meta: dict[str, JsonValue] = {IDEMPOTENCY_KEY: f"{invocation.session_id}/{invocation.call_id}"}
    if server.built_in:
        meta[WORKSPACE_KEY] = invocation.workspace
        # In bytes both bounds are kept: no character has less than one.
        meta[ROOM_KEY] = min(invocation.max_chars, invocation.max_bytes)
    return cast(RequestParamsMeta, meta)


@lru_cache(maxsize=1_024)
def _validator_of(schema_json: str) -> Validator | None:
    """Return what checks arguments against a schema; `None` if it is no valid one."""
    schema = json.loads(schema_json)
    validator = validator_for(schema, default=Draft202012Validator)
    try:
        validator.check_schema(schema)
    except SchemaError:
        return None
    # With a registry of its own it does not fetch what a foreign schema refers to.
    return validator(schema, registry=Registry())


def _complaint(error: ValidationError) -> str:
    """Say which argument does not fit, and what would."""
    field = error.json_path.removeprefix("$").lstrip(".") or "arguments"
    rule = f"{error.validator}: {json.dumps(error.validator_value, ensure_ascii=False)}"
    if error.validator == "additionalProperties" and isinstance(error.schema, Mapping):
        rule = f"allowed: {', '.join(error.schema.get('properties', {}))}"
    return _one_line(f"{field}: {error.message} ({rule})")


def _text_of(block: ContentBlock) -> str:
    """Return a text, or name what is none."""
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.type}, {block.mime_type}, {len(block.data) * 3 // 4:,} bytes: not shown]"
        case ResourceLink():
            return f"[link to {block.name}: {block.uri}]"
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return f"[{resource.uri}]\n{resource.text}"
        case EmbeddedResource():
            return f"[{block.resource.uri}, {block.resource.mime_type or 'of unknown type'}: not shown]"


def _error(outcome: str, content: str) -> ToolResult:
    return ToolResult(outcome=outcome, content=content, status="error")


def _one_line(text: str) -> str:
    """Return `text` on one line of at most about `OUTCOME_CHARS` characters, its middle cut."""
    line = " ".join(encodable_text(text).splitlines()).strip()
    if len(line) <= OUTCOME_CHARS:
        return line
    return f"{line[: OUTCOME_CHARS // 2]} ... {line[-OUTCOME_CHARS // 2 :]}"
