"""Fixtures of the stack's tests: a separate working directory, and waits with a limit."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.processes.forked import forked_commands
from tests.waiting import BOUND
from turnkeeper.ops.local.dev_server import DevServer

needs_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a process of the death of the one that started it"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, in an environment without settings."""
    monkeypatch.chdir(tmp_path)
    for variable in list(os.environ):
        if variable.upper().startswith(("TURNKEEPER_", "TEMPORAL_")):
            monkeypatch.delenv(variable)
    # Not the developer's own temporal.toml.
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "temporal.toml"))
    (tmp_path / "temporal.toml").touch()
    return tmp_path


@pytest.fixture(scope="module")
def forked() -> Iterator[None]:
    """Fork the workers and gateways that the module's tests start."""
    with forked_commands():
        yield


@pytest.fixture
async def server(folder: Path) -> AsyncIterator[DevServer]:
    """Run an embedded server with a file."""
    async with DevServer(folder / "state", ui_port=None) as running:
        yield running


async def until_ended(pid: int) -> None:
    """Wait for a process that need not be our child."""
    ended = asyncio.Event()
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    asyncio.get_running_loop().add_reader(process, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), BOUND)
    finally:
        asyncio.get_running_loop().remove_reader(process)
        os.close(process)
