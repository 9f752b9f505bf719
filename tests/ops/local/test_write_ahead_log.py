"""The embedded server's database: an accepted prompt is on the disk, a deleted text is not (OPS-2, OPS-8)."""

import asyncio
import os
import shutil
import signal
import sqlite3
import stat
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from tests.ops.conftest import BOUND, needs_linux
from tests.waiting import until
from turnkeeper.models.settings.settings import Settings
from turnkeeper.ops.local import dev_server
from turnkeeper.ops.local.dev_server import DevServer
from turnkeeper.stores.temporal.connection import connect

TEXT = "where is the treasure?"

QUICK_DELETION = {"history.transferProcessorUpdateAckInterval": '"1s"'}
"""A closed session is deleted once the server has noted that it was closed, which it does every 30 s otherwise."""

PRAGMAS = dev_server.PRAGMAS

NAMES = ("temporal.db", "temporal.db-wal", "temporal.db-shm")


async def start(client: Client, session_id: str = "kept") -> None:
    """Start a session that no worker runs."""
    await client.start_workflow("Kept", id=session_id, task_queue="nobody")


async def prompts(client: Client) -> list[str]:
    """Return the prompts in the history of the session."""
    history = await client.get_workflow_handle("kept").fetch_history()
    signals = [event.workflow_execution_signaled_event_attributes for event in history.events]
    return [payload.data.decode().strip('"') for each in signals for payload in each.input.payloads]


def journal_mode(database: Path) -> str:
    with closing(sqlite3.connect(database)) as connection:
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    return str(mode)


def files_with(text: str, folder: Path) -> list[str]:
    return [name for name in NAMES if (folder / name).exists() and text.encode() in (folder / name).read_bytes()]


def command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def copy_at_this_moment(server: DevServer, folder: Path) -> None:
    """Copy the files as a power failure would leave them: at one moment, whatever the server was doing."""
    folder.mkdir()
    os.kill(server.pid, signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)
        for name in (*NAMES, "temporal.db.version"):
            with suppress(FileNotFoundError):
                shutil.copy2(server.state_dir / name, folder / name)
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def test_ops_2_an_accepted_prompt_survives_a_kill_of_the_server(server):
    client = await connect(Settings(state_dir=server.state_dir))
    await start(client)
    await client.get_workflow_handle("kept").signal("prompt", TEXT)
    os.kill(server.pid, signal.SIGKILL)
    assert await asyncio.wait_for(server.wait(), BOUND) == -signal.SIGKILL
    await server.start()
    assert await prompts(client) == [TEXT]
    assert journal_mode(server.database) == "wal"


@needs_linux
async def test_ops_8_every_commit_of_the_server_is_synced(server):
    command = command_line(server.pid)
    pragmas = [value for name, value in pairwise(command) if name == "--sqlite-pragma"]
    assert pragmas == ["journal_mode=wal", "synchronous=full", "secure_delete=1"]


@needs_linux
async def test_ops_2_a_copy_of_the_files_at_any_moment_has_all_accepted_prompts(folder, monkeypatch):
    monkeypatch.setattr(dev_server, "TRUNCATION_SECONDS", BOUND)  # only the server writes
    accepted: list[str] = []

    async def send(client: Client) -> None:
        await start(client)
        while True:
            text = f"prompt {len(accepted)}"
            await client.get_workflow_handle("kept").signal("prompt", text)
            accepted.append(text)

    copies: list[tuple[Path, list[str]]] = []
    async with DevServer(folder / "state", ui_port=None) as server:
        sending = asyncio.create_task(send(await connect(Settings(state_dir=server.state_dir))))
        try:
            for number in range(1, 6):
                await until(lambda number=number: sending.done() or len(accepted) >= 5 * number)
                copy, so_far = folder / f"copy{number}", [*accepted]
                copy_at_this_moment(server, copy)
                copies.append((copy, so_far))
            assert not sending.done()
        finally:
            sending.cancel()
    for copy, so_far in copies:
        with closing(sqlite3.connect(copy / "temporal.db")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert all(files_with(text, copy) for text in so_far)
    async with DevServer(copy, ui_port=None) as restored:
        assert (await prompts(await connect(Settings(state_dir=restored.state_dir))))[: len(so_far)] == so_far


async def test_api_1_the_text_of_a_deleted_session_is_in_neither_the_database_nor_its_log(folder, monkeypatch):
    async with DevServer(folder / "state", ui_port=None, dynamic_config=QUICK_DELETION) as server:
        client = await connect(Settings(state_dir=server.state_dir))
        await start(client)
        session = client.get_workflow_handle("kept")
        await session.signal("prompt", TEXT)
        await session.terminate()
        assert files_with(TEXT, server.state_dir)
        await client.workflow_service.delete_workflow_execution(
            DeleteWorkflowExecutionRequest(
                namespace=client.namespace, workflow_execution=WorkflowExecution(workflow_id="kept")
            )
        )

        async def is_deleted() -> bool:
            try:
                await session.describe()
            except RPCError as error:
                return error.status == RPCStatusCode.NOT_FOUND
            return False

        await until(is_deleted)
        await until(lambda: not files_with(TEXT, server.state_dir))


async def test_ops_2_a_stopped_server_leaves_no_write_ahead_log(folder):
    server = DevServer(folder / "state", ui_port=None)
    await server.start()
    await start(await connect(Settings(state_dir=server.state_dir)))
    await server.stop()
    assert not (folder / "state" / "temporal.db-wal").exists()
    assert not (folder / "state" / "temporal.db-shm").exists()


async def test_ops_2_a_database_with_a_rollback_journal_is_opened_and_converted(folder, monkeypatch):
    monkeypatch.setattr(dev_server, "PRAGMAS", {"secure_delete": "1"})
    async with DevServer(folder / "state", ui_port=None) as older:
        client = await connect(Settings(state_dir=older.state_dir))
        await start(client)
        await client.get_workflow_handle("kept").signal("prompt", TEXT)
    assert journal_mode(older.database) == "delete"
    monkeypatch.setattr(dev_server, "PRAGMAS", PRAGMAS)
    async with DevServer(folder / "state", ui_port=None) as server:
        assert await prompts(await connect(Settings(state_dir=server.state_dir))) == [TEXT]
        assert journal_mode(server.database) == "wal"


async def test_api_4_the_write_ahead_log_is_private(server):
    await start(await connect(Settings(state_dir=server.state_dir)))
    modes = {name: stat.S_IMODE((server.state_dir / name).stat().st_mode) for name in NAMES}
    assert modes == dict.fromkeys(NAMES, 0o600)


async def test_ops_2_a_log_that_cannot_be_truncated_now_is_truncated_later(server, monkeypatch):
    monkeypatch.setattr(dev_server, "TRUNCATION_WAIT_SECONDS", 0.0)
    await start(await connect(Settings(state_dir=server.state_dir)))
    with closing(sqlite3.connect(server.database)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM executions").fetchone()
        await start(await connect(Settings(state_dir=server.state_dir)), "other")
        assert not dev_server.truncate(server.database)
    await until(lambda: dev_server.truncate(server.database))
