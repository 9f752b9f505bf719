"""`turnkeeper up` and `turnkeeper chat` beside each other, as on a user's machine: API-6, OPS-1."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.terminal.conftest import COMMAND, READY, plain_env, run_chat
from tests.clients.terminal.terminal import terminal_with
from tests.ops.local.test_cli import LAST_LINE, Command
from tests.processes.forked import forked_commands
from turnkeeper.models.command_line import command_line
from turnkeeper.stores.temporal.endpoint import EmbeddedServer


@pytest.fixture(autouse=True)
def _forked() -> Iterator[None]:
    """Fork the stack's worker and gateway; `tests/ops/local/test_packages.py` executes them."""
    with forked_commands():
        yield


@pytest.mark.timeout(120)
async def test_api_6_the_addresses_that_up_prints_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for port in ("API_PORT", "TEMPORAL_PORT", "TEMPORAL_UI_PORT"):
        monkeypatch.setenv(f"TURNKEEPER_{port}", "0")
    stack = await Command.start("up")
    try:
        output = await stack.until_said(LAST_LINE)
        assert "  Chat        http://127.0.0.1:" in output
        assert f"  Terminal    {command_line('chat')}\n" in output
        server = EmbeddedServer.recorded(tmp_path / ".turnkeeper")
        assert f"  Temporal    {server.address}\n  Web UI      http://127.0.0.1:" in output
        workspace = tmp_path / "turnkeeper-workspace"
        assert f"  Workspace   {workspace}   (change it with TURNKEEPER_WORKSPACE_ROOT)\n" in output
        (workspace / "notes.txt").write_text("the code is 4711\n")
        result = await run_chat("read notes.txt", cwd=tmp_path)
        assert (result.code, result.err) == (0, "")
        assert "4711" in result.out
        async with terminal_with(COMMAND, env=plain_env(), cwd=tmp_path) as terminal:
            await terminal.until(READY)
            assert "--url" not in terminal.text
            terminal.type("read notes.txt")
            await terminal.until('⚒ file_read(path="notes.txt") ✓')
            await terminal.until("turn 1 ·")
    finally:
        stack.signal(signal.SIGTERM)
        await stack.ended()
