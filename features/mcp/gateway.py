"""What the MCP server adds to the gateway: its endpoint `/mcp`.

It is streamable HTTP, stateless, behind the checks of hosts, origins and sizes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from turnkeeper.api.http.streams import EVENT_STREAM
from turnkeeper.api.roles import MAX_HISTORY_BYTES, Access
from turnkeeper.api.services import GatewayFeature, Services
from turnkeeper.models.settings.settings import Settings

PATH = "/mcp"

Serve = Callable[[Services], AbstractAsyncContextManager[ASGIApp]]


def _load() -> Serve:
    from turnkeeper.features.mcp.server import serving

    return serving


class McpEndpoint:
    """Serves MCP, in protocol 2026-07-28 and in earlier ones with a handshake.

    The SDK is slow to load and takes 25 MB, so it is loaded at the first request.
    """

    access: Access = "reader"
    """Each method and each tool has a role of its own."""
    max_body_size = MAX_HISTORY_BYTES
    media_type = EVENT_STREAM

    def __init__(self) -> None:
        self._services: Services | None = None
        self._application: ASGIApp | None = None
        self._starting = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    def install(self, app: FastAPI) -> None:
        # Starlette treats an object as an ASGI application. There is no GET, which opens a stream for notifications.
        app.router.routes.append(Route(PATH, endpoint=self, methods=["POST"], include_in_schema=False))

    @asynccontextmanager
    async def running(self, services: Services) -> AsyncIterator[None]:
        """Serve requests while the context is open."""
        self._services = services
        try:
            yield
        finally:
            self._services = None
            self._stopping.set()
            if self._serving:
                await self._serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        application = await self._started()
        # The SDK compares header values literally, but in HTTP the spaces around them don't count.
        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        await application({**scope, "headers": headers}, receive, send)

    async def _started(self) -> ASGIApp:
        async with self._starting:
            if self._application is None:
                serve = await asyncio.to_thread(_load)
                started: asyncio.Future[ASGIApp] = asyncio.get_running_loop().create_future()
                # In its own task, since the SDK's task group must be entered and left by the same task.
                self._serving = asyncio.create_task(self._serve(serve, started))
                self._application = await started
        return self._application

    async def _serve(self, serve: Serve, started: "asyncio.Future[ASGIApp]") -> None:
        assert self._services is not None  # noqa: S101  # requests come while the gateway runs
        try:
            async with serve(self._services) as application:
                started.set_result(application)
                await self._stopping.wait()
        except Exception as error:
            if started.done():
                raise
            started.set_exception(error)


class _Mcp(GatewayFeature):
    def install(self, app: FastAPI, settings: Settings) -> None:
        app.state.mcp = McpEndpoint()
        app.state.mcp.install(app)

    def running(self, app: FastAPI, services: Services) -> AbstractAsyncContextManager[None]:
        endpoint: McpEndpoint = app.state.mcp
        return endpoint.running(services)


GATEWAY = _Mcp()
