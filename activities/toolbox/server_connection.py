"""The way to one tool server, found again whenever it is lost (AGT-6, AGT-7).

    Connection   a server for as long as the worker runs: what it offers, and the link that leads to it now
    Link         one client of it, from its opening to its end

A foreign server dies, hangs, is slow, and comes back. What is done about it:

    dies    its link is over, whoever waits for an answer is told, and the next call opens another link
    hangs   a call that is cancelled or out of time leaves at once. A server that then still answers a question keeps
            its link, for a browser or a login may hang on it; any other link takes no further calls and is ended
    slow    nobody waits for a list of tools longer than `LISTING_SECONDS`; it is read on beside everything else
    down    it is left alone, for longer each time; what it offered before stays listed, calls try to reach it
    other   a link is asked for its tools before its first call, when it says that they have changed, and now and then

A link lives in a task of its own: the SDK's scopes must be left by the task that entered them, while the task of a
call ends with its call; and what breaks in a link must not reach into whoever happened to open it.
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from mcp import Client, MCPError
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, RequestParamsMeta, Tool, ToolListChangedNotification
from pydantic import JsonValue

from turnkeeper.activities.toolbox.lenient_parser import NOT_SENT
from turnkeeper.activities.toolbox.sanitize import sanitized

LISTING_SECONDS = 10.0
"""How long anybody waits for one server's list of tools; it must not hold up the others'."""

CONNECT_SECONDS = 60.0
"""How long a server may take to start: npx and uvx may have to fetch it first."""

READING_SECONDS = 90.0
"""How long connecting and reading the tools may take together."""

LIST_COUNTS_SECONDS = 60.0
"""How long its list of tools counts before a call of one: few servers say that it has changed, and a person may have
taken a day to approve of the call."""

FIRST_PAUSE_SECONDS = 5.0
"""How long a server that could not be asked for its tools is not asked again; twice as long after each further time."""

MAX_PAUSE_SECONDS = 300.0
"""After how long it is asked again in any case: to ask one that hangs costs somebody `LISTING_SECONDS`."""

PROBE_SECONDS = 3.0
"""How soon a server must answer a question after a call of it was given up."""

DRAIN_SECONDS = 30.0
"""How long a server that hangs may yet answer its other calls: one that does one thing at a time looks the same."""

PREDECESSOR_SECONDS = 6.0
"""How long a new link waits for the old one's end: two processes of one server may not get along."""

CLOSE_SECONDS = 10.0
"""How long the end of a link may take; more than a server's process is given."""

MAX_TOOLS = 1_000
MAX_PAGES = 100

_log = logging.getLogger(__name__)


class Remote(Protocol):
    """How a server outside this process is reached: `StdioServer` or `HttpServer`."""

    def connected(self, stopping: asyncio.Event) -> AbstractAsyncContextManager[Any]:
        """Have the SDK's two streams inside the block; `stopping` is set once they lead nowhere."""
        ...


@dataclass(frozen=True)
class ToolServer:
    """An MCP server and what is known of it.

    `trusted`: its annotations count. `built_in`: it is our own, is told whose workspace a call is about, and begins
    its results with their outcome. `timeout` bounds one call, in seconds; `None`: the caller does.
    """

    name: str
    target: MCPServer | Server[Any] | Remote
    trusted: bool = False
    built_in: bool = False
    timeout: float | None = None


class UnreachableError(Exception):
    """A server could not be reached: nothing was called. The message says why, to the operator."""


class ToolChangedError(Exception):
    """A server no longer offers the tool as it was known: nothing was called."""


class ServerConnection:
    """A server, reached when it is first needed."""

    def __init__(self, server: ToolServer) -> None:
        self.server = server
        self.tools: list[Tool] = []
        """What it offered when it was last asked."""
        self.is_known = False
        """Whether it has been asked, and has answered, the last time it was tried."""
        self._link: Link | None = None
        self._ending: set[Link] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._patience_ends = 0.0
        self._pause_seconds = 0.0
        self._paused_until = 0.0

    def begin_to_read(self) -> None:
        """Read its tools in the background, unless that is under way, or it has just failed."""
        now = asyncio.get_running_loop().time()
        if now >= self._paused_until and (self._reading is None or self._reading.done()):
            self._patience_ends = now + LISTING_SECONDS
            self._reading = self._start_task(self._read())

    async def refresh(self) -> None:
        """Have `tools` as they are now; as they were, if the server can't be asked or takes too long."""
        self.begin_to_read()
        if self._reading is not None:
            patience = self._patience_ends - asyncio.get_running_loop().time()
            await asyncio.wait([self._reading], timeout=max(0.0, patience))

    async def read_tools(self) -> list[Tool]:
        """Return the tools it offers now.

        Raises:
            UnreachableError: It can't be connected.
            MCPError: It refuses to say, or the connection broke.
        """
        return await self._listed_over(self._usable_link())

    async def _listed_over(self, link: "Link") -> list[Tool]:
        client = await link.client()
        page = await client.list_tools()
        tools, cursors = page.tools, set[str]()
        while page.next_cursor is not None and page.next_cursor not in cursors:
            if len(cursors) >= MAX_PAGES or len(tools) >= MAX_TOOLS:
                break
            cursors.add(page.next_cursor)
            page = await client.list_tools(cursor=page.next_cursor)
            tools = [*tools, *page.tools]
        if page.next_cursor is not None:
            _log.warning("what comes after %d tools of %r is left out: it has no end", len(tools), self.server.name)
        return self._normalised(tools)

    async def call(self, tool: Tool, args: dict[str, JsonValue], meta: RequestParamsMeta) -> CallToolResult:
        """Call a tool, if the server still offers it just so.

        Raises:
            OtherToolsError: It does not, and was not called; `tools` says what it offers.
            UnreachableError: It was not called.
            TimeoutError: The server's own `timeout` is over.
            MCPError: The server refused, or nobody knows; then its code tells.
        """
        for _ in range(2):
            link = self._usable_link()
            client = await link.client()
            await self._check_still_offered(tool, link)
            try:
                if link.is_usable:
                    return await self._answer(link, client.call_tool(tool.name, args, meta=meta))
            except MCPError as error:
                if error.code != NOT_SENT:
                    raise
            # It did not arrive, so it may be sent once more: to a server that was started anew, say.
        raise UnreachableError("it takes no calls")

    async def aclose(self) -> None:
        """End all that goes on. A later call would connect again."""
        for task in self._background:
            task.cancel()
        links = self._ending | ({self._link} if self._link else set())
        await asyncio.gather(*(link.aclose() for link in links))

    async def _check_still_offered(self, tool: Tool, link: "Link") -> None:
        """Have the tools read over this very link, and not long ago: a server can become another version of itself.

        Raises `ToolChangedError` or `UnreachableError` where the tool is not among them just so.
        """
        if not link.list_counts and not await self._is_listed_anew(link):
            raise UnreachableError("it does not say which tools it has")
        if tool not in self.tools:
            raise ToolChangedError

    async def _is_listed_anew(self, link: "Link") -> bool:
        for _ in range(2):  # one that is under way may be another link's
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
            link.forget_list()
            self._pause_seconds = min(MAX_PAUSE_SECONDS, 2 * self._pause_seconds or FIRST_PAUSE_SECONDS)
            self._paused_until = asyncio.get_running_loop().time() + self._pause_seconds
            _log.warning("the tools of %r could not be read", self.server.name, exc_info=error)
        else:
            self.tools, self.is_known = tools, True
            link.end_list()
            self._pause_seconds = 0.0

    def _normalised(self, tools: list[Tool]) -> list[Tool]:
        """Return the tools in a stable order, each name once, and no more than anybody could use."""
        # Of the same name the first is meant: a call could reach no other.
        found = list({tool.name: tool for tool in reversed(tools)}.values())[::-1]
        tools_within_limit = found[:MAX_TOOLS]
        if len(tools_within_limit) < len(tools):
            _log.warning(
                "of %d tools of %r %d are left out: too many, or of the same name",
                *(len(tools), self.server.name, len(tools) - len(tools_within_limit)),
            )
        # Foreign servers promise no order; the model's cached context needs one.
        return tools_within_limit if self.server.built_in else sorted(tools_within_limit, key=lambda tool: tool.name)

    async def _answer(self, link: "Link", call: Coroutine[Any, Any, CallToolResult]) -> CallToolResult:
        call_task = link.track(call)
        try:
            async with asyncio.timeout(self.server.timeout):
                # Shielded: to tell the server of a cancellation may take a while, and we don't wait for it.
                return await asyncio.shield(call_task)
        finally:
            if not call_task.done():
                call_task.cancel()
                self._start_task(self._give_up_if_it_hangs(link))

    async def _give_up_if_it_hangs(self, link: "Link") -> None:
        if isinstance(self.server.target, MCPServer | Server):
            return  # in this process, a call that is cancelled has ended
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


class Link:
    """One client of a server, from its opening to its end."""

    def __init__(self, server: ToolServer, *, after: "Link | None" = None) -> None:
        """Begin to open it, once the link `after` which it comes has had its time to end."""
        self.stopping = asyncio.Event()
        """Set once it is to take no further calls; it ends with the last of those it has."""
        self._listed_at: float | None = None
        self._list_is_old = False
        self._server = server
        self._drain_seconds: float | None = None
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._calls: set[asyncio.Task[CallToolResult]] = set()
        self.keeper = asyncio.create_task(self._keep_open(after))

    @property
    def is_usable(self) -> bool:
        """Whether it is open, or being opened."""
        return not (self.stopping.is_set() or self.keeper.done())

    @property
    def is_listed(self) -> bool:
        """Whether its tools have been asked for, and it has not said since that they have changed."""
        return self._listed_at is not None

    @property
    def list_counts(self) -> bool:
        """Whether it is listed, and not long ago."""
        now = asyncio.get_running_loop().time()
        return self._listed_at is not None and now < self._listed_at + LIST_COUNTS_SECONDS

    def begin_list(self) -> None:
        """Note that its tools are being asked for."""
        self._list_is_old = False

    def end_list(self) -> None:
        """Note that they are known, unless the server has said in the meantime that they have changed."""
        if not self._list_is_old:
            self._listed_at = asyncio.get_running_loop().time()

    def forget_list(self) -> None:
        """Take what is known of the server's tools for nothing."""
        self._list_is_old, self._listed_at = True, None

    async def client(self) -> Client:
        """Return the client once it is connected. Raises `UnreachableError` if it can't be."""
        # Shielded: a caller that is cancelled must not cancel what others wait for.
        return await asyncio.shield(self._client)

    def track(self, call: Coroutine[Any, Any, CallToolResult]) -> asyncio.Task[CallToolResult]:
        """Return a call as a task that the link waits for; nobody else need."""
        task = asyncio.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._forget)
        return task

    def drain_and_end(self) -> None:
        """Have it take no further calls, and end soon, whether or not it answers those it has."""
        self._drain_seconds = DRAIN_SECONDS
        self.stopping.set()

    async def aclose(self) -> None:
        """End it, with all calls it still has."""
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
            call.exception()  # so that nobody complains of one that nobody waited for

    async def _keep_open(self, after: "Link | None") -> None:
        try:
            if after is not None:
                await asyncio.wait([after.keeper], timeout=PREDECESSOR_SECONDS)
            async with AsyncExitStack() as opened:
                async with asyncio.timeout(CONNECT_SECONDS):
                    client = await opened.enter_async_context(
                        Client(self._target(), cache=None, message_handler=self._on_message)
                    )
                self._client.set_result(client)
                await self.stopping.wait()
                if self._calls:
                    await asyncio.wait(self._calls, timeout=self._drain_seconds)
        except Exception as error:  # noqa: BLE001  # told to whoever waits for it
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
        return sanitized(target.connected(self.stopping), server=self._server.name)

    def _fail(self, error: Exception) -> None:
        if self._client.done():
            _log.warning("the connection to %r broke", self._server.name, exc_info=error)
            return
        unreachable = UnreachableError(_reason(error))
        unreachable.__cause__ = error
        self._client.set_exception(unreachable)
        self._client.exception()  # so that nobody complains where nobody waits


def _reason(error: BaseException) -> str:
    """Say why a server could not be connected, in the system's words or the server's own.

    >>> _reason(FileNotFoundError(2, "No such file or directory", "/secret")), _reason(RuntimeError("secret"))
    ('No such file or directory', 'RuntimeError')
    """
    if isinstance(error, BaseExceptionGroup):
        return _reason(error.exceptions[0])
    if isinstance(error, TimeoutError):
        return f"it did not answer within {CONNECT_SECONDS:.0f} s"
    if isinstance(error, MCPError):
        return error.message
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
