"""The embedded server: one file, one server, nothing lost (OPS-2)."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.workflowservice.v1 import QueryWorkflowRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError
from temporalio.worker import Worker

from tests.ops.conftest import BOUND, needs_linux, until_ended
from tests.waiting import until
from turnkeeper.models.settings.settings import Settings
from turnkeeper.ops.local.dev_server import DevServer, DevServerError, find_binary, is_in_use
from turnkeeper.stores.temporal.connection import connect, missing_search_attributes, retention, set_retention
from turnkeeper.stores.temporal.endpoint import EmbeddedServer

STARTER = """
import asyncio, sys
from pathlib import Path
from turnkeeper.ops.local.dev_server import DevServer

async def main():
    server = DevServer(Path(sys.argv[1]), ui_port=None)
    await server.start()
    print(server.pid, flush=True)
    await server.wait()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
async def standing_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DevServer]:
    """A server shared by all tests that don't change it."""
    async with DevServer(tmp_path_factory.mktemp("server"), ui_port=None) as running:
        yield running


@pytest.fixture
async def client(standing_server: DevServer) -> Client:
    return await connect(Settings(state_dir=standing_server.state_dir))


async def test_ops_2_a_started_server_is_ready_for_sessions_and_records_its_address(standing_server, client):
    server = standing_server
    assert client.service_client.config.target_host == server.address
    assert await missing_search_attributes(client) == []
    assert EmbeddedServer.recorded(server.state_dir) == EmbeddedServer(
        address=server.address, ui_url=None, pid=server.pid
    )


async def test_ses_17_an_unprepared_server_registers_the_search_attributes_itself(folder):
    async with DevServer(folder, ui_port=None, prepares=False):
        client = await connect(Settings(state_dir=folder), patience=30)
        await until(lambda: has_every_attribute(client))


async def has_every_attribute(client: Client) -> bool:
    return not await missing_search_attributes(client)


async def test_ops_2_ended_sessions_are_retained_for_30_days_and_the_retention_can_change(client):
    assert await retention(client) == timedelta(days=30)
    await set_retention(client)
    await set_retention(client, days=3)
    assert await retention(client) == timedelta(days=3)
    assert await missing_search_attributes(client) == []


async def test_ops_2_a_second_server_on_the_same_file_is_rejected(standing_server):
    server = standing_server
    with pytest.raises(DevServerError) as refused:
        await DevServer(server.state_dir).start()
    assert str(refused.value) == (
        f"{server.database} is in use by the Temporal server at {server.address} (process {server.pid}): "
        "stop that server, or set another state_dir."
    )
    assert server.pid, "the first one still runs"


async def test_ops_2_after_a_kill_the_server_restarts_with_its_file_at_the_same_address(server):
    address = server.address
    client = await connect(Settings(state_dir=server.state_dir))
    await client.start_workflow("Kept", id="kept", task_queue="nobody")
    os.kill(server.pid, signal.SIGKILL)
    assert await asyncio.wait_for(server.wait(), BOUND) == -signal.SIGKILL
    assert not is_in_use(server.database)
    await server.start()
    assert server.address == address
    assert (await client.get_workflow_handle("kept").describe()).status == WorkflowExecutionStatus.RUNNING


async def test_ops_2_a_stopped_server_releases_the_file_and_removes_its_address(folder):
    async with DevServer(folder, ui_port=None) as server:
        assert is_in_use(server.database)
    assert not is_in_use(server.database)
    assert EmbeddedServer.recorded(folder) is None


@needs_linux
async def test_ops_2_a_server_does_not_outlive_its_killed_starter(folder):
    starter = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", STARTER, str(folder)),
        stdout=asyncio.subprocess.PIPE,
    )
    server = int(await asyncio.wait_for(starter.stdout.readline(), BOUND))
    assert is_in_use(folder / "temporal.db")
    starter.kill()
    await starter.wait()
    await until_ended(server)
    assert not is_in_use(folder / "temporal.db")


async def test_ops_1_a_busy_port_is_replaced_by_a_free_one_with_a_message(folder):
    with socket.create_server(("127.0.0.1", 0)) as other:
        busy = other.getsockname()[1]
        async with DevServer(folder, in_memory=True, port=busy, ui_port=None) as server:
            assert server.notes == [
                f"Port {busy} is in use, so Temporal listens on {server.address.partition(':')[2]}."
            ]
            assert not server.address.endswith(f":{busy}")


async def test_ops_2_a_server_never_restarts_at_another_address(folder):
    async with DevServer(folder, in_memory=True, ui_port=None) as server:
        await server.stop()
        with (
            socket.create_server(("127.0.0.1", int(server.address.partition(":")[2]))),
            pytest.raises(DevServerError, match=r"^Port \d+, which the Temporal server used before, is in use"),
        ):
            await server.start()


async def test_ops_2_the_web_ui_is_served_at_the_recorded_address(folder):
    async with DevServer(folder, in_memory=True) as server:
        host, _, port = server.ui_url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /temporal/ HTTP/1.0\r\n\r\n")
        assert b" 200 " in await asyncio.wait_for(reader.readline(), BOUND)
        writer.close()


async def test_ops_2_a_file_of_another_server_version_is_rejected_with_the_fix(folder):
    async with DevServer(folder, ui_port=None) as server:
        version_file = folder / "temporal.db.version"
        version = version_file.read_text().strip()
    version_file.write_text("1.0.0\n")
    with pytest.raises(DevServerError) as refused:
        await server.start()
    assert str(refused.value) == (
        f"{server.database} was written by Temporal server 1.0.0, but {find_binary(folder)} contains {version}, which "
        "may not be able to read it: put a `temporal` with server 1.0.0 on PATH, or set another state_dir."
    )
    assert not is_in_use(server.database)


async def test_ops_2_a_server_that_ends_at_its_start_reports_the_reason(folder):
    with pytest.raises(DevServerError, match=r"^The Temporal server stopped while starting: .*invalid"):
        await DevServer(folder, in_memory=True, dynamic_config={"limit": "not json"}).start()


async def test_ops_2_dynamic_configuration_reaches_the_server(folder):
    small = {"limit.maxIDLength": "20"}
    async with DevServer(folder, in_memory=True, ui_port=None, dynamic_config=small):
        client = await connect(Settings(state_dir=folder))
        with pytest.raises(RPCError, match=r"exceeds maximum allowed length \(21/20\)"):
            await client.start_workflow("Any", id="x" * 21, task_queue="nobody")


@workflow.defn(sandboxed=False)
class AnswersQueries:
    """Answers one query and never ends: Temporal can lose a query that arrives while a workflow ends."""

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.signal
    def wake(self) -> None:
        """Cause a workflow task."""

    @workflow.query
    def answer(self) -> int:
        return 42


async def test_ops_8_many_queries_wait_for_the_workflow_task_and_none_is_rejected(client):
    """By default the server accepts one, and refuses the others:  "consistent query buffer is full"."""
    queries = 50

    def asked_worker() -> Worker:
        at_once = timedelta(seconds=0.1)
        return Worker(
            client, task_queue="asked", workflows=[AnswersQueries], sticky_queue_schedule_to_start_timeout=at_once
        )

    async with asked_worker():
        handle = await client.start_workflow(AnswersQueries.run, id="asked", task_queue="asked")
        assert await handle.query(AnswersQueries.answer) == 42
    await handle.signal(AnswersQueries.wake)  # from here on a workflow task waits, and queries wait for it
    request = QueryWorkflowRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=handle.id),
        query=WorkflowQuery(query_type="answer"),
    )
    # Without the SDK's retries, which hide a refusal behind seconds of waiting.
    calls = [asyncio.ensure_future(client.workflow_service.query_workflow(request)) for _ in range(queries)]
    for _ in range(3):  # what was sent before these has arrived
        await handle.describe()
    async with asked_worker(), asyncio.timeout(BOUND):
        answers = await asyncio.gather(*calls)
    assert [answer.query_result.payloads[0].data for answer in answers] == [b"42"] * queries


async def test_ops_2_the_namespace_in_temporals_own_configuration_is_created(folder, monkeypatch):
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "sessions")
    settings = Settings(state_dir=folder, temporal_port=0, temporal_ui_port=0)
    async with DevServer.for_settings(settings):
        client = await connect(settings, patience=BOUND)
        assert client.namespace == "sessions"
        assert await missing_search_attributes(client) == []


def test_ops_2_the_program_on_path_is_preferred_to_the_one_beside_python(folder, monkeypatch):
    beside, on_path = folder / "venv" / "temporal", folder / "path" / "temporal"
    for program in (beside, on_path):
        program.parent.mkdir()
        program.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(beside.with_name("python")))
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_binary(folder) == on_path
    monkeypatch.setenv("PATH", "")
    assert find_binary(folder) == beside
    beside.unlink()
    assert find_binary(folder) is None
