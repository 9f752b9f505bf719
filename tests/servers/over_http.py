"""A good tool server behind HTTP, made with the SDK. Run as `python over_http.py <port> <json|events|sse>`.

`json` and `events` are answers of streamable HTTP, `sse` is the older transport.

Its id is the first line of its output, once it listens.
"""

import asyncio
import os
import sys

import uvicorn
from mcp.server.mcpserver import MCPServer

meeting: list[asyncio.Event] = []


async def echo(text: str) -> str:
    return text


async def pid() -> str:
    return str(os.getpid())


async def hang(marker: str) -> str:
    """Begin, which the test sees by a file, and never end."""
    os.close(os.open(marker, os.O_CREAT))
    await asyncio.Event().wait()
    return ""


async def meet(people: int) -> str:
    """Return once `people` calls are inside."""
    inside = asyncio.Event()
    meeting.append(inside)
    if len(meeting) == people:
        for waiting in meeting:
            waiting.set()
    await inside.wait()
    return "met"


class AnnouncingServer(uvicorn.Server):
    async def startup(self, sockets: list | None = None) -> None:
        await super().startup(sockets)
        sys.stdout.write(f"{os.getpid()}\n")
        sys.stdout.flush()


def main(port: int, form: str) -> None:
    server = MCPServer("over http", log_level="CRITICAL")
    for tool in (echo, pid, hang, meet):
        server.add_tool(tool)
    app = server.sse_app() if form == "sse" else server.streamable_http_app(json_response=form == "json")
    AnnouncingServer(uvicorn.Config(app, port=port, log_level="critical")).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
