"""`/mcp` in the gateway: streamable HTTP, stateless, behind the gateway's own checks of hosts, origins and sizes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from turnkeeper.api.services import Services

PATH = "/mcp"

Serve = Callable[[Services], AbstractAsyncContextManager[ASGIApp]]


def _load() -> Serve:
    from turnkeeper.api.mcp.server import serving

    return serving


class McpEndpoint:
    """Serves MCP. A client may speak 2026-07-28, or a protocol with a handshake from before.

    The SDK is slow to load and takes 25 MB, so that waits for the first request.
    """

    def __init__(self) -> None:
        self._services: Services | None = None
        self._application: ASGIApp | None = None
        self._starting = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    def install(self, app: FastAPI) -> None:
        # Starlette calls an object as an ASGI application. GET, for streams that only listen, is not offered.
        app.router.routes.append(Route(PATH, endpoint=self, methods=["POST"], include_in_schema=False))

    @asynccontextmanager
    async def running(self, services: Services) -> AsyncIterator[None]:
        """Serve requests as long as the context is open."""
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
        # The SDK compares values of headers as they are; HTTP does not count the spaces around them.
        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        await application({**scope, "headers": headers}, receive, send)

    async def _started(self) -> ASGIApp:
        async with self._starting:
            if self._application is None:
                serve = await asyncio.to_thread(_load)
                started: asyncio.Future[ASGIApp] = asyncio.get_running_loop().create_future()
                # In a task of its own: the SDK's task group must be left by the task that has entered it.
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
