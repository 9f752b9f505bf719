"""A proxy that loses something: it forwards to a real gateway, and removes one turn from the answers."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse

from turnkeeper.ops.local.processes import LOOPBACK

PASSED_BACK = ("content-type",)


class QuietServer(uvicorn.Server):
    """Uvicorn in the test's own loop; signals stay pytest's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def lossy_gateway(url: str, *, turn: str, where: str = "", refuses: tuple[str, ...] = ()) -> AsyncIterator[str]:
    """Yield the address of a proxy of `url` that removes `turn` from answers to paths that end with `where`.

    Paths that end with one of `refuses` are answered with 503.
    """
    app = FastAPI()
    async with httpx.AsyncClient(base_url=url, timeout=None, trust_env=False) as real:

        @app.api_route("/{path:path}", methods=["GET", "POST", "PATCH", "DELETE"])
        async def pass_on(request: Request) -> Response:
            if request.url.path.endswith(refuses):
                return Response(status_code=503)
            headers = {name: value for name, value in request.headers.items() if name != "host"}
            target = httpx.URL(path=request.url.path, query=request.url.query.encode())
            forwarded = real.build_request(request.method, target, headers=headers, content=await request.body())
            answer = await real.send(forwarded, stream=True)
            loses = request.url.path.endswith(where)
            return StreamingResponse(
                lines_of(answer, without=turn if loses else ""),
                status_code=answer.status_code,
                headers={name: answer.headers[name] for name in PASSED_BACK if name in answer.headers},
            )

        with socket.create_server((LOOPBACK, 0)) as listener:
            server = QuietServer(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                yield f"http://{LOOPBACK}:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                await serving


async def lines_of(answer: httpx.Response, *, without: str) -> AsyncIterator[str]:
    """Yield an answer line by line: JSON, and events whose data are."""
    try:
        async for line in answer.aiter_lines():
            name, separator, data = line.partition("data: ")
            if line.startswith("{"):
                yield f"{json.dumps(lacking(json.loads(line), without))}\n"
            elif separator and not name:
                yield f"data: {json.dumps(lacking(json.loads(data), without))}\n"
            else:
                yield f"{line}\n"
    finally:
        await answer.aclose()


def lacking(value: Any, turn: str) -> Any:
    """Return JSON without the turn of that id, at any depth."""
    if isinstance(value, dict):
        return {name: lacking(item, turn) for name, item in value.items()}
    if isinstance(value, list):
        return [
            lacking(item, turn)
            for item in value
            if not (isinstance(item, dict) and item.get("id") == turn and "user_message" in item)
        ]
    return value
