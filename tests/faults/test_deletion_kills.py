"""Gateways and workers die while a session is deleted: one deletion, one receipt, nothing left: API-1, OPS-10."""

import asyncio
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from httpx import AsyncClient, AsyncHTTPTransport, TransportError
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer

from tests.api.history.test_archive import deleted
from tests.faults.scripted import next_worker, plan_of, start
from tests.faults.test_worker_kills import doomed_worker
from tests.harness import BOUND, environment
from tests.processes.environment import SETTINGS, environment_without
from tests.processes.forked import STDOUT, ForkedProcess, fork
from tests.waiting import until
from turnkeeper.models.session.messages import DeletionOrder, deletion_id
from turnkeeper.models.settings.settings import Settings
from turnkeeper.ops.local.processes import LOOPBACK, reserved_port
from turnkeeper.stores.archive import ArchivedTurn
from turnkeeper.stores.stores import Stores
from turnkeeper.stores.temporal.payload_converter import DATA_CONVERTER
from turnkeeper.workflows.delete_session import DeleteSession


@pytest.fixture(autouse=True)
def _soon_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing writes late here: the sessions have no activity under way."""
    monkeypatch.setattr("turnkeeper.workflows.activity_options.DELETION_QUIET", timedelta(seconds=1))


# ---- gateways

TIMED_OUT = (503, 504)
"""The gateway's answers when Temporal takes longer than the gateway's timeouts."""


@dataclass
class GatewayProcess:
    """A gateway in its own process, which can be killed and started again."""

    http: AsyncClient
    env: dict[str, str]
    log: Path
    process: ForkedProcess | None = None

    async def start(self) -> None:
        """Start it, and return once it listens."""
        with self.log.open("ab") as log:
            self.process = await fork(
                *("turnkeeper.cli", "api"),
                env=self.env,
                cwd=self.log.parent,
                stdout=log.fileno(),
                stderr=STDOUT,
            )
        async with AsyncClient(base_url=self.http.base_url, transport=AsyncHTTPTransport(retries=9)) as patient:
            assert (await patient.get("/healthz")).status_code == 200, self.log.read_text()

    async def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal that ends it, and wait for that."""
        if self.process:
            self.process.send_signal(number)
            async with asyncio.timeout(BOUND):
                await self.process.wait()


@asynccontextmanager
async def gateway_process(temporal: Client, settings: dict[str, Any], log: Path) -> AsyncIterator[GatewayProcess]:
    ours = environment_without(*SETTINGS)
    own = {f"TURNKEEPER_{name.upper()}": str(value) for name, value in settings.items()}
    address = temporal.service_client.config.target_host
    with reserved_port() as port:
        env = {**ours, **own, "TEMPORAL_ADDRESS": address, "TURNKEEPER_API_PORT": str(port)}
        async with AsyncClient(base_url=f"http://{LOOPBACK}:{port}", timeout=BOUND) as http:
            gateway = GatewayProcess(http, env, log)
            try:
                await gateway.start()
                yield gateway
            finally:
                await gateway.end(signal.SIGTERM)


async def deletion_of(temporal: Client, session_id: str) -> WorkflowExecutionDescription:
    """Describe the deletion as soon as there is one."""

    async def described() -> WorkflowExecutionDescription | None:
        with suppress(RPCError):
            return await temporal.get_workflow_handle(deletion_id(session_id)).describe()

    return await until(described)


async def test_api_1_two_gateways_delete_a_session_at_once_and_one_is_killed(temporal: Client, tmp_path: Path) -> None:
    settings = {"task_queue": f"q-{uuid4()}", "state_dir": tmp_path / "state"}
    async with environment(temporal, **settings) as env:
        session = await env.start()
        await session.prompt("a hidden treasure")
        session_id, (turn,) = session.handle.id, await session.idle(turns=1)
        await env.stores.archive.put_turns(session_id, [ArchivedTurn(number=1, turn=turn)])
        await env.stores.blobs.put(session_id, ["a large treasure"])
    async with (
        gateway_process(temporal, settings, tmp_path / "doomed.log") as doomed,
        gateway_process(temporal, settings, tmp_path / "other.log") as other,
    ):
        # No worker: what is begun stays begun for as long as the test likes.
        asking = [asyncio.create_task(each.http.delete(f"/workflow/{session_id}")) for each in (doomed, other)]
        deletion = await deletion_of(temporal, session_id)
        await doomed.end()
        with pytest.raises(TransportError):
            await asking[0]
        answer = await asking[1]
        while answer.status_code in TIMED_OUT:  # as a client does on a busy machine
            answer = await other.http.delete(f"/workflow/{session_id}")
        assert (answer.status_code, answer.json()["status"]) == (202, "deleting")
        async with environment(temporal, **settings):
            receipt = await deleted(other.http, session_id)
        assert receipt == {
            "workflow_id": session_id,
            "status": "deleted",
            "runs": 1,
            "remaining": 0,
            "archived_turns": 1,
        }
        done = await deletion_of(temporal, session_id)
        assert (done.run_id, done.status) == (deletion.run_id, WorkflowExecutionStatus.COMPLETED)
        await doomed.start()
        again = await doomed.http.delete(f"/workflow/{session_id}")
        assert (again.status_code, again.json()) == (200, receipt)
    assert await is_forgotten(temporal, session_id)
    archive = tmp_path / "state" / "archive.db"
    assert b"treasure" not in archive.read_bytes()
    assert tables_with(session_id, archive) <= {"audit"}  # who deleted it


def tables_with(text: str, archive: Path) -> set[str]:
    with closing(sqlite3.connect(archive)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table for table in tables if text in repr(database.execute(f"SELECT * FROM {table}").fetchall())}


async def is_forgotten(temporal: Client, session_id: str) -> bool:
    with pytest.raises(RPCError) as error:
        await temporal.get_workflow_handle(session_id).describe()
    return error.value.status == RPCStatusCode.NOT_FOUND


# ---- workers


@pytest.mark.parametrize("dies_at", ["stop_session has run", "clear_stores has run"])
async def test_api_1_a_deletion_continues_wherever_the_worker_dies(
    temporal: Client, tmp_path: Path, dies_at: str
) -> None:
    session, settings = await start(temporal, tmp_path, [], model="offline:")
    async with Stores.of(Settings(**settings)) as stores:
        await stores.blobs.put(session.handle.id, ["a large text"])
        deletion = await temporal.start_workflow(
            DeleteSession.run,
            DeletionOrder(first_run_id=session.handle.first_execution_run_id or ""),
            id=deletion_id(session.handle.id),
            task_queue=settings["task_queue"],
        )
        async with doomed_worker(plan_of(temporal, settings, dies_at=dies_at)) as doomed:
            assert await doomed.exit_code() == -signal.SIGKILL
        async with next_worker(temporal, settings):
            receipt = await deletion.result()
        assert (receipt.runs, receipt.remaining) == (1, 0)
        assert await stores.blobs.delete(session.handle.id) == 0
    assert await is_forgotten(temporal, session.handle.id)
    replayer = Replayer(workflows=[DeleteSession], data_converter=DATA_CONVERTER)
    await replayer.replay_workflow(await deletion.fetch_history())
