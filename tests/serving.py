"""A gateway on a real port, in the test's own process: what only a socket shows, such as streams."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI


@asynccontextmanager
async def served(app: FastAPI, *, port: int = 0) -> AsyncIterator[str]:
    """Yield the address at which `app` listens on loopback; at a free port, or at `port`."""
    with listener(port) as sock:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


def listener(port: int = 0) -> socket.socket:
    """Listen on loopback; whoever connects before the server runs is served once it does."""
    sock = socket.create_server(("127.0.0.1", port))
    sock.setblocking(False)
    return sock
