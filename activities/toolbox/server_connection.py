"""The connection to a tool server, which is re-established whenever it is lost (AGT-6, AGT-7).

    ServerConnection   a server for as long as the worker runs: its tools, and the current link
    Link               one client of the server, from connecting to its end

A foreign server may die, hang, be slow, and come back:

    dies      its link is over, waiting callers get an error, and the next call opens another link
    hangs     a call that is cancelled or times out returns at once. If the server then still answers a request, it
              keeps its link, which may belong to a browser or a login; otherwise the link accepts no further calls and
              ends
    slow      nobody waits for a list of tools longer than `LISTING_SECONDS`; reading continues in the background
    down      it is retried with growing pauses; its last known tools stay listed, and calls try to reach it
    changes   a link lists its tools before its first call, when it says that they have changed, and periodically

A link has a task of its own: the SDK's scopes must be left by the task that entered them, while the task of a call ends
with its call; and an error in a link must not reach the caller that happened to open it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any, ClassVar, cast

from mcp import Client, MCPError
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp_types import (
    CONNECTION_CLOSED,
    METHOD_NOT_FOUND,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    RequestParamsMeta,
    Resource,
    ResourceTemplate,
    TextContent,
    TextResourceContents,
    Tool,
    ToolAnnotations,
    ToolListChangedNotification,
)
from pydantic import JsonValue, ValidationError

from turnkeeper.activities.toolbox.foreign_messages import NOT_SENT, sanitized
from turnkeeper.activities.toolbox.tool_server import Remote, ToolChangedError, ToolServer, UnreachableError
from turnkeeper.activities.toolbox.transports import StdioServer
from turnkeeper.activities.tools import ProgressListener
from turnkeeper.models.texts import encodable_text

LISTING_SECONDS = 10.0
"""How long callers wait for one server's list of tools, which must not delay the lists of others."""

CONNECT_SECONDS = 60.0
"""How long a server may take to start: npx and uvx may have to download it first."""

READING_SECONDS = 90.0
"""How long connecting and reading the tools may take together."""

LIST_COUNTS_SECONDS = 60.0
"""How long a list of tools is current when a tool is called: few servers announce changes, and an approval may have
taken a day."""

FIRST_PAUSE_SECONDS = 5.0
"""Pause after a server's tools could not be read; doubled after each further failure."""

MAX_PAUSE_SECONDS = 300.0
"""The longest such pause. A retry with a hanging server makes a caller wait for `LISTING_SECONDS`."""

PROBE_SECONDS = 3.0
"""How soon a server must answer a request after one of its calls was given up."""

DRAIN_SECONDS = 30.0
"""How long a server that seems to hang may still answer other calls: it may just run one call at a time."""

PREDECESSOR_SECONDS = 6.0
"""How long a new link waits for the end of the old one: two processes of one server may conflict."""

CLOSE_SECONDS = 10.0
"""How long the end of a link may take: more than that of a server's process."""

MAX_LAST_CHARS = 300
"""How much of a program's last output a problem quotes."""

MAX_TOOLS = 1_000
MAX_PAGES = 100

MAX_RESOURCE_PAGES = 20
MAX_LISTED = 500

RESOURCES_SECONDS = 5.0
"""How long the list of tools waits for that of the resources."""

MAX_DESCRIPTION_CHARS = 200

_log = logging.getLogger(__name__)


class ServerConnection:
    """The connection to one server. It is opened on first use."""

    def __init__(self, server: ToolServer) -> None:
        self.server = server
        self.tools: list[Tool] = []
        """Its tools when they were last read."""
        self.is_known = False
        """Whether the last attempt to read its tools succeeded."""
        self.instructions = ""
        """The server's instructions for models; empty if there are none."""
        self.reason = "it has not answered yet"
        """Why the tools could not be read; empty if they could."""
        self.problem = ""
        """The same for the operator, with the last words of a program that did not start."""
        self._link: Link | None = None
        self._ending: set[Link] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._patience_ends = 0.0
        self._pause_seconds = 0.0
        self._paused_until = 0.0

    def start_listing(self, *, seconds: float | None = None) -> None:
        """Read the tools in the background, unless that is in progress or has just failed."""
        now = asyncio.get_running_loop().time()
        if now >= self._paused_until and (self._reading is None or self._reading.done()):
            self._patience_ends = now + (seconds or LISTING_SECONDS)
            self._reading = self._start_task(self._read())

    async def refresh(self, *, seconds: float | None = None) -> None:
        """Update `tools`, unless the server is unreachable or too slow; `None`: `LISTING_SECONDS`."""
        self.start_listing(seconds=seconds)
        if self._reading is not None:
            patience = self._patience_ends - asyncio.get_running_loop().time()
            await asyncio.wait([self._reading], timeout=max(0.0, patience))

    async def _listed_over(self, link: "Link") -> list[Tool]:
        client = await link.client()
        self.instructions = encodable_text(client.instructions or "").strip()
        page = await client.list_tools()
        tools, cursors = page.tools, set[str]()
        while page.next_cursor is not None and page.next_cursor not in cursors:
            if len(cursors) >= MAX_PAGES or len(tools) >= MAX_TOOLS:
                break
            cursors.add(page.next_cursor)
            page = await client.list_tools(cursor=page.next_cursor)
            tools = [*tools, *page.tools]
        if page.next_cursor is not None:
            _log.warning("more than %d tools of %r are left out: its list has no end", len(tools), self.server.name)
        return self._normalised(tools, has_reader=await has_resources(client))

    async def call(
        self,
        tool: Tool,
        args: dict[str, JsonValue],
        meta: RequestParamsMeta,
        *,
        patience: float | None = None,
        on_progress: ProgressListener | None = None,
    ) -> CallToolResult:
        """Call a tool, if the server still offers it unchanged. Reports of progress go to `on_progress` too.

        `patience`: seconds to wait for an answer, counted again from every report of progress; `None`: no limit but
        the server's own `timeout`, which counts in the same way.

        Raises:
            ToolChangedError: The tool has changed, and was not called; `tools` is up to date.
            UnreachableError: The tool was not called.
            TimeoutError: There was no answer and no progress for so long; the message says how long.
            MCPError: The server returned an error, or the outcome is unknown, depending on the code.
        """
        for _ in range(2):
            link = self._usable_link()
            client = await link.client()
            await self._check_still_offered(tool, link)
            try:
                if link.is_usable:
                    waiting = _Patience(min(filter(None, (patience, self.server.timeout)), default=None), on_progress)
                    call = (
                        tool.run(client, args)
                        if isinstance(tool, ResourceReader)
                        else client.call_tool(tool.name, args, meta=meta, progress_callback=waiting.note_progress)
                    )
                    return await self._answer(link, call, waiting)
            except MCPError as error:
                if error.code != NOT_SENT:
                    raise
            # It was not delivered, so it may be sent again, for example to a restarted server.
        raise UnreachableError("it accepts no calls")

    def restart(self) -> None:
        """Connect anew for all later calls; the calls that run finish over the old link."""
        if self._link is not None:
            self._link.stopping.set()
        self._pause_seconds = self._paused_until = 0.0
        self.start_listing()

    async def aclose(self) -> None:
        """End all links and background tasks. A later call would connect again."""
        for task in self._background:
            task.cancel()
        links = self._ending | ({self._link} if self._link else set())
        await asyncio.gather(*(link.aclose() for link in links))

    async def _check_still_offered(self, tool: Tool, link: "Link") -> None:
        """Check that this very link has recently listed the tool unchanged, since a server may have been updated.

        Raises `ToolChangedError` or `UnreachableError` otherwise. If the link has ended meanwhile, since its server was
        restarted, the call may go over the next one.
        """
        if not link.list_counts and not await self._is_listed_anew(link) and link.is_usable:
            raise UnreachableError("it does not list its tools")
        if tool not in self.tools:
            raise ToolChangedError

    async def _is_listed_anew(self, link: "Link") -> bool:
        for _ in range(2):  # the reading in progress may be another link's
            if self._reading is None or self._reading.done():
                self._reading = self._start_task(self._read())
            await asyncio.wait([self._reading])
            if link.is_listed:
                return True
        return False

    async def _read(self) -> None:
        link = self._usable_link()
        link.begin_list()
        try:
            async with asyncio.timeout(READING_SECONDS):
                tools = await self._listed_over(link)
        except Exception as error:  # noqa: BLE001  # one broken server must not take the others' tools away
            if isinstance(error, TimeoutError):
                link.drain_and_end()
            self.is_known = False
            self.reason = _reason_of_reading(error).removesuffix(".")
            self.problem = self._problem(has_connected=link.has_connected)
            link.forget_list()
            self._pause_seconds = min(MAX_PAUSE_SECONDS, 2 * self._pause_seconds or FIRST_PAUSE_SECONDS)
            self._paused_until = asyncio.get_running_loop().time() + self._pause_seconds
            _log.warning("the tools of %r could not be read: %s", self.server.name, self.reason, exc_info=error)
        else:
            self.tools, self.is_known = tools, True
            self.reason = self.problem = ""
            link.end_list()
            self._pause_seconds = 0.0

    def _problem(self, *, has_connected: bool) -> str:
        """Return why the tools could not be read; of a program that did not start, with its last words."""
        if has_connected:
            return f"its tools could not be read: {self.reason}"
        if not isinstance(self.server.target, StdioServer):
            return f"is not available: {self.reason}"
        words = " / ".join(self.server.target.last_words)[-MAX_LAST_CHARS:]
        return f"did not start: {self.reason}{f'. It wrote: {words}' if words else ''}"

    def _normalised(self, tools: list[Tool], *, has_reader: bool) -> list[Tool]:
        """Return the tools to offer in a stable order, each name once, and at most `MAX_TOOLS`."""
        # The first of each name: a call could reach no other.
        unique_tools = list({tool.name: tool for tool in reversed(tools)}.values())[::-1]
        tools_within_limit = unique_tools[:MAX_TOOLS]
        if len(tools_within_limit) < len(tools):
            _log.warning(
                "of %d tools of %r %d are left out: too many, or of the same name",
                *(len(tools), self.server.name, len(tools) - len(tools_within_limit)),
            )
        if has_reader:
            tools_within_limit.append(ResourceReader.of(self.server.name, {tool.name for tool in unique_tools}))
        # Foreign servers guarantee no order, but the model's cached context needs one.
        return sorted(
            filter(lambda tool: self.server.offers(tool.name), tools_within_limit), key=lambda tool: tool.name
        )

    async def _answer(
        self, link: "Link", call: Coroutine[Any, Any, CallToolResult], waiting: "_Patience"
    ) -> CallToolResult:
        call_task = link.track(call)
        try:
            async with waiting.timeout:
                # Shielded: notifying the server of a cancellation may take a while, and we don't wait for it.
                return await asyncio.shield(call_task)
        except TimeoutError:
            raise TimeoutError(f"No answer came within {waiting.seconds:g} s.") from None
        finally:
            if not call_task.done():
                call_task.cancel()
                self._start_task(self._give_up_if_it_hangs(link))

    async def _give_up_if_it_hangs(self, link: "Link") -> None:
        if isinstance(self.server.target, MCPServer | Server):
            return  # in this process, a cancelled call has ended
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await (await link.client()).list_tools()
        except Exception as error:  # noqa: BLE001  # however it fails to answer
            _log.warning("the tool server %r hangs: it gets a new connection", self.server.name, exc_info=error)
            link.drain_and_end()

    def _usable_link(self) -> "Link":
        if self._link is None or not self._link.is_usable:
            before, self._link = self._link, Link(self.server, after=self._link)
            if before is not None:
                self._ending.add(before)
                before.keeper.add_done_callback(lambda _: self._ending.discard(before))
        return self._link

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


class _Patience:
    """How long a call may wait for its answer, counted from its last report of progress."""

    def __init__(self, seconds: float | None, on_progress: ProgressListener | None) -> None:
        """`None`: forever."""
        self.seconds = seconds
        self.timeout = asyncio.timeout(seconds)
        self._on_progress = on_progress

    async def note_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Count from now on: the server reports progress."""
        if self._on_progress:
            self._on_progress(progress, total, message)
        if self.seconds is not None:
            with contextlib.suppress(RuntimeError):  # the call has just ended
                self.timeout.reschedule(asyncio.get_running_loop().time() + self.seconds)


class Link:
    """One client of a server, from connecting to its end."""

    def __init__(self, server: ToolServer, *, after: "Link | None" = None) -> None:
        """Begin to connect, once the link `after` has had time to end."""
        self.stopping = asyncio.Event()
        """Set once the link accepts no further calls. It ends with its last call."""
        self._listed_at: float | None = None
        self._list_is_old = False
        self._server = server
        self._drain_seconds: float | None = None
        self.has_connected = False
        """Whether the server has answered at all."""
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._calls: set[asyncio.Task[CallToolResult]] = set()
        self.keeper = asyncio.create_task(self._keep_open(after))

    @property
    def is_usable(self) -> bool:
        """Whether the link is open, or being opened."""
        return not (self.stopping.is_set() or self.keeper.done())

    @property
    def is_listed(self) -> bool:
        """Whether the tools were listed, and no change was announced since."""
        return self._listed_at is not None

    @property
    def list_counts(self) -> bool:
        """Whether the tools were listed recently."""
        now = asyncio.get_running_loop().time()
        return self._listed_at is not None and now < self._listed_at + LIST_COUNTS_SECONDS

    def begin_list(self) -> None:
        """Note that the tools are being listed."""
        self._list_is_old = False

    def end_list(self) -> None:
        """Note that the tools were listed, unless the server has announced a change meanwhile."""
        if not self._list_is_old:
            self._listed_at = asyncio.get_running_loop().time()

    def forget_list(self) -> None:
        """Note that the list is outdated."""
        self._list_is_old, self._listed_at = True, None

    async def client(self) -> Client:
        """Return the client once it is connected. Raises `UnreachableError` if it can't be."""
        # Shielded: a cancelled caller must not cancel what others wait for.
        return await asyncio.shield(self._client)

    def track(self, call: Coroutine[Any, Any, CallToolResult]) -> asyncio.Task[CallToolResult]:
        """Return a call as a task, whose end the link waits for before it ends."""
        task = asyncio.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._forget)
        return task

    def drain_and_end(self) -> None:
        """Accept no further calls, and end soon, even if running calls are not answered."""
        self._drain_seconds = DRAIN_SECONDS
        self.stopping.set()

    async def aclose(self) -> None:
        """End the link and cancel its calls."""
        self.stopping.set()
        for call in self._calls:
            call.cancel()
        if not self._client.done():
            self.keeper.cancel()
        _, late = await asyncio.wait([self.keeper], timeout=CLOSE_SECONDS)
        if late:
            _log.warning("the connection to %r did not end in time", self._server.name)
            self.keeper.cancel()

    def _forget(self, call: asyncio.Task[CallToolResult]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # otherwise asyncio logs it as never retrieved

    async def _keep_open(self, after: "Link | None") -> None:
        try:
            if after is not None:
                await asyncio.wait([after.keeper], timeout=PREDECESSOR_SECONDS)
            async with AsyncExitStack() as opened:
                async with asyncio.timeout(CONNECT_SECONDS):
                    client = await opened.enter_async_context(
                        Client(self._target(), cache=None, message_handler=self._on_message)
                    )
                self.has_connected = True
                self._client.set_result(client)
                await self.stopping.wait()
                if self._calls:
                    await asyncio.wait(self._calls, timeout=self._drain_seconds)
        except Exception as error:  # noqa: BLE001  # raised to the waiting callers
            self._fail(error)
        finally:
            self.stopping.set()
            self._client.cancel()  # of no effect once it has a result

    async def _on_message(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.forget_list()

    def _target(self) -> Any:
        target = self._server.target
        if isinstance(target, MCPServer | Server):
            return target
        streams = cast(Remote, target).connected(self.stopping)
        return sanitized(streams, server=self._server.name, stopping=self.stopping)

    def _fail(self, error: Exception) -> None:
        if self._client.done():
            _log.warning("the connection to %r broke", self._server.name, exc_info=error)
            return
        unreachable = UnreachableError(_reason(error))
        unreachable.__cause__ = error
        self._client.set_exception(unreachable)
        self._client.exception()  # otherwise asyncio logs it as never retrieved


def _reason_of_reading(error: Exception) -> str:
    """Return why a list of tools could not be read, without secrets."""
    if isinstance(error, TimeoutError):
        return f"no answer within {READING_SECONDS:.0f} s"
    if isinstance(error, UnreachableError):
        return str(error)
    return (
        error.message if isinstance(error, MCPError) else f"its answer is not a list of tools ({type(error).__name__})"
    )


def _reason(error: BaseException) -> str:
    """Return why a server could not be reached, without secrets of its configuration.

    >>> _reason(FileNotFoundError(2, "No such file or directory", "/secret")), _reason(RuntimeError("secret"))
    ('No such file or directory', 'RuntimeError')
    """
    if isinstance(error, BaseExceptionGroup):
        return _reason(error.exceptions[0])
    if isinstance(error, TimeoutError):
        return f"it did not answer within {CONNECT_SECONDS:.0f} s"
    if isinstance(error, MCPError):
        return "it ended before it answered" if error.code == CONNECTION_CLOSED else error.message
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


# Resources, as a tool of their server

_SCHEMA = {
    "type": "object",
    "properties": {"uri": {"type": "string", "description": "Omit it to list the resources and templates of uris"}},
    "additionalProperties": False,
}


class ResourceReader(Tool):
    """A tool that reads a resource, or lists them. Its description is the same whatever they are: requests are cached.

    Several servers have one, so its name always has the server's.
    """

    always_qualified: ClassVar[bool] = True

    @classmethod
    def of(cls, server: str, others: set[str]) -> "ResourceReader":
        """Return the tool for `server`, whose own tools are called `others`."""
        return cls(
            name=next(name for name in ("read_resource", "read_mcp_resource", "") if name not in others),
            description=f"Read a resource of the tool server {server}; without uri, list what it has.",
            input_schema=_SCHEMA,
            annotations=ToolAnnotations(read_only_hint=True),
        )

    async def run(self, client: Client, args: Mapping[str, Any]) -> CallToolResult:
        """Return the contents of the resource, or the list. Raises `MCPError`."""
        uri = args.get("uri")
        if not uri:
            return CallToolResult(content=[TextContent(text="\n".join(await _listed(client)) or "There is none.")])
        return CallToolResult(content=[_block(one) for one in (await client.read_resource(str(uri))).contents])


async def has_resources(client: Client) -> bool:
    """Return whether the server has a resource or a template now. Many announce resources and have none."""
    if client.server_capabilities.resources is None:
        return False
    try:
        async with asyncio.timeout(RESOURCES_SECONDS):
            return bool((await client.list_resources()).resources or await _templates(client))
    except (MCPError, TimeoutError, ValidationError):
        return False


def _block(contents: TextResourceContents | BlobResourceContents) -> ContentBlock:
    if isinstance(contents, TextResourceContents):
        return TextContent(text=contents.text)
    return EmbeddedResource(resource=contents)


async def _listed(client: Client) -> list[str]:
    """Return a line for each resource and template."""
    lines: list[str] = []
    cursor = None
    for _ in range(MAX_RESOURCE_PAGES):
        page = await client.list_resources(cursor=cursor)
        lines += [_line(resource.uri, resource) for resource in page.resources]
        cursor = page.next_cursor
        if cursor is None or len(lines) >= MAX_LISTED:
            break
    left_out = [f"[more than {MAX_LISTED:,} resources, the rest is left out]"] if cursor is not None else []
    return [*lines[:MAX_LISTED], *left_out, *await _templates(client)]


async def _templates(client: Client) -> list[str]:
    """Return a line for each template on the first page; few servers have any."""
    try:
        page = await client.list_resource_templates()
    except MCPError as error:
        if error.code == METHOD_NOT_FOUND:
            return []
        raise
    return [_line(f"template {one.uri_template}", one) for one in page.resource_templates[:MAX_LISTED]]


def _line(address: str, one: Resource | ResourceTemplate) -> str:
    r"""Return the line of a resource: address, name, kind and description.

    >>> _line("x://y", Resource(uri="x://y", name="Y", mime_type="text/csv", description="Two\nlines"))
    'x://y - Y (text/csv): Two lines'
    """
    kind = f" ({one.mime_type})" if one.mime_type else ""
    description = " ".join((one.description or "").split())[:MAX_DESCRIPTION_CHARS]
    return f"{address} - {one.title or one.name}{kind}{f': {description}' if description else ''}"
