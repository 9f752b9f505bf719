"""Terminals and a real gateway, with a worker whose model answers when the test opens its gate."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.terminal.terminal import Terminal, turnkeeper_terminal
from tests.harness import BOUND
from tests.processes.forked import DEVNULL, PIPE, fork
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.ops.local.supervisor import own_command

ROOT = Path(__file__).parents[3]
COMMAND = own_command("chat")

READY = "/help lists the commands"

Chat = Callable[..., AbstractAsyncContextManager[Terminal]]


def plain_env(**more: str) -> dict[str, str]:
    """The environment of a command in a test's terminal: nothing but `PATH`, with our programs."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT), **more}


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    code: int
    out: str
    err: str


@pytest.fixture
async def gateway(url: str) -> AsyncIterator[GatewayClient]:
    async with GatewayClient(url) as client:
        yield client


@pytest.fixture
def chat(url: str, tmp_path: Path) -> Chat:
    """Open a terminal with `turnkeeper chat` in it; with `is_awaited` the block begins when the chat has started."""

    @asynccontextmanager
    async def open_terminal(
        *arguments: str, at: str = url, columns: int = 90, rows: int = 32, is_awaited: bool = True, **env: str
    ) -> AsyncIterator[Terminal]:
        command = ["chat", "--url", at, *arguments]
        env_of_chat = plain_env(**env)
        async with turnkeeper_terminal(*command, env=env_of_chat, cwd=tmp_path, columns=columns, rows=rows) as terminal:
            if is_awaited:
                await terminal.until(READY)
            yield terminal

    return open_terminal


async def run_chat(*arguments: str, cwd: Path, stdin: str | None = None, **env: str) -> Finished:
    """Run `turnkeeper chat` without a terminal, to its end."""
    return await run_command("chat", *arguments, cwd=cwd, stdin=stdin, **env)


async def run_command(*arguments: str, cwd: Path, stdin: str | None = None, **env: str) -> Finished:
    """Run a command of `turnkeeper` without a terminal, to its end."""
    process = await fork(
        "turnkeeper.cli",
        *arguments,
        env=plain_env(**env),
        cwd=cwd,
        stdin=PIPE if stdin is not None else DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        async with asyncio.timeout(BOUND):
            out, err = await process.communicate(stdin.encode() if stdin is not None else None)
    finally:
        process.kill()
        code = await process.wait()
    return Finished(code, out.decode(), err.decode())
