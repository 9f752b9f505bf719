"""The `turnkeeper` command, as a person runs it (OPS-1 to OPS-3)."""

import asyncio
import itertools
import os
import re
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import WorkflowHandle

from tests.ops.conftest import BOUND, needs_linux, until_ended
from tests.processes.forked import PIPE, STDOUT, ForkedProcess, fork, forked_commands
from tests.waiting import until
from turnkeeper.activities.failures import WORKER_DIED
from turnkeeper.clients.terminal.command_options import Gateway
from turnkeeper.models.command_line import command_line
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.settings.settings import Settings
from turnkeeper.ops.local.supervisor import run_until_signalled
from turnkeeper.stores.temporal.connection import connect
from turnkeeper.stores.temporal.endpoint import EmbeddedServer

LAST_LINE = "Ctrl-C stops everything. Sessions continue at the next start."


class Command:
    """A `turnkeeper` command that runs."""

    def __init__(self, process: asyncio.subprocess.Process | ForkedProcess) -> None:
        self._process = process
        self.pid = process.pid

    @classmethod
    async def start(cls, *arguments: str, program: Path | None = None, **env: str) -> "Command":
        """Run our own command, or the command of another installation."""
        env = {**os.environ, "TERM": "dumb", **env}
        if program is None:
            return cls(await fork("turnkeeper.cli", *arguments, env=env, cwd=Path.cwd(), stdout=PIPE, stderr=STDOUT))
        process = await asyncio.create_subprocess_exec(program, *arguments, stdout=PIPE, stderr=STDOUT, env=env)
        return cls(process)

    async def until_said(self, text: str) -> str:
        """Read on until a line has `text`; return all that was read."""
        received = ""
        while text not in received:
            line = await asyncio.wait_for(self._process.stdout.readline(), BOUND)
            assert line, f"ended without {text!r}, but with: {received}"
            received += line.decode()
        return received

    async def ended(self) -> tuple[int, str]:
        """Return the exit code and the rest of the output."""
        output, _ = await asyncio.wait_for(self._process.communicate(), BOUND)
        return self._process.returncode, output.decode()

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def children(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]


async def gateway_is_ready() -> bool:
    """Return whether the gateway of the working directory reaches Temporal and a worker."""
    return await Gateway.find(Settings()).has_worker()


async def run(*arguments: str, program: Path | None = None, **env: str) -> tuple[int, str]:
    return await (await Command.start(*arguments, program=program, **env)).ended()


@pytest.fixture
async def stack(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Command]:
    """Run `turnkeeper up` at free ports until the test ends; it forks its worker and its gateway."""
    with forked_commands():
        async with running_stack(monkeypatch) as command:
            yield command


@asynccontextmanager
async def running_stack(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Command]:
    for port in ("API_PORT", "TEMPORAL_PORT", "TEMPORAL_UI_PORT"):
        monkeypatch.setenv(f"TURNKEEPER_{port}", "0")
    command = await Command.start("up")
    try:
        await command.until_said(LAST_LINE)
        yield command
    finally:
        if command.is_running:
            command.signal(signal.SIGTERM)
            await command.ended()


async def test_ops_3_help_lists_the_working_commands():
    code, output = await run("--help")
    assert code == 0
    for command in ("up", "worker", "api", "chat", "demo", "doctor", "health", "replay-check", "version"):
        assert f" {command} " in output


async def test_ops_3_the_version_shows_the_details_for_a_bug_report():
    code, output = await run("version")
    assert code == 0
    assert [line.split()[0] for line in output.splitlines()] == ["turnkeeper", "temporalio", "Python"]
    assert "embedded Temporal server 1." in output


async def test_ops_3_the_doctor_without_a_stack_reports_what_is_missing_with_the_fix():
    ports = {"TURNKEEPER_API_PORT": "1", "TURNKEEPER_TEMPORAL_PORT": "2"}
    code, output = await run("doctor", **ports)
    broken = [line for line in output.splitlines() if line.startswith("BROKEN")]
    assert code == 1
    assert broken == [
        "BROKEN  Temporal server     Temporal cannot be reached at 127.0.0.1:2 (Connection refused). "
        f"Start it with `{command_line('up')}`, or set TEMPORAL_ADDRESS.",
        f"BROKEN  gateway             no answer at http://127.0.0.1:1. Fix: start it with `{command_line('up')}`.",
    ]


async def test_ops_3_the_doctor_does_not_require_a_gateway_on_a_worker_machine():
    code, output = await run("doctor", TEMPORAL_ADDRESS="127.0.0.1:2", TURNKEEPER_API_PORT="1")
    (broken,) = [line for line in output.splitlines() if line.startswith("BROKEN")]
    assert "ok      partial output      none: no worker has a socket in" in output
    assert (code, "Connection refused" in broken, broken.endswith("Check TEMPORAL_ADDRESS.")) == (1, True, True)
    assert f"ok      gateway             none at http://127.0.0.1:1; `{command_line('api')}` starts one" in output


def test_ops_2_a_stack_under_nohup_does_not_end_with_its_terminal():
    async def work() -> str:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        return "finished"

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_until_signalled(work()) == "finished"
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_ops_2_a_stack_in_the_background_of_a_script_stops_at_sigint():
    """Shells without job control ignore SIGINT for what they start with `&`."""

    async def work() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(BOUND):
            await asyncio.Event().wait()
        return "finished"

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run_until_signalled(work()) is None
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("command", ["up", "worker", "api", "doctor"])
async def test_ops_4_an_unknown_key_stops_every_command_with_its_name(folder, command):
    (folder / "turnkeeper.toml").write_text("api_prt = 1")
    code, output = await run(command)
    assert code == 1
    assert "'api_prt' (in turnkeeper.toml) is not a setting. Did you mean api_port?" in output
    assert "Traceback" not in output


async def test_agt_8_a_workspace_that_cannot_be_a_folder_stops_the_start(folder):
    (folder / "turnkeeper-workspace").touch()
    code, output = await run("up")
    assert (code, output) == (1, "workspace_root='turnkeeper-workspace' cannot be created: File exists.\n")


@pytest.mark.parametrize("command", ["up", "worker", "api"])
async def test_ses_15_a_state_folder_of_another_version_is_left_unchanged(folder, command, monkeypatch):
    folder.joinpath("state").mkdir()
    monkeypatch.setenv("TURNKEEPER_STATE_DIR", "state")
    archive = folder / "state/archive.db"
    with closing(sqlite3.connect(archive)) as connection:
        connection.executescript("CREATE TABLE alembic_version (version_num); INSERT INTO alembic_version VALUES (7)")
    before = archive.read_bytes()
    code, output = await run(command, TURNKEEPER_API_PORT="0")
    assert (code, output.count("\n")) == (1, 1)
    assert "made by another version of Turnkeeper: delete" in output
    assert archive.read_bytes() == before
    assert [file.name for file in archive.parent.iterdir()] == [archive.name]


async def test_ops_4_a_gateway_for_other_machines_without_keys_is_rejected():
    code, output = await run("api", TURNKEEPER_API_HOST="0.0.0.0")
    assert code == 1
    assert "turnkeeper keys create" in output


@needs_linux
async def test_ops_1_one_command_starts_everything_and_ctrl_c_stops_it(folder, stack):
    server = EmbeddedServer.recorded(folder / ".turnkeeper")
    assert await gateway_is_ready()
    code, findings = await run("doctor")
    assert (code, "BROKEN" in findings) == (0, False), findings
    assert "the embedded server has no authentication" in findings

    children = stack.children()
    assert server.pid in children
    stack.signal(signal.SIGINT)
    code, output = await stack.ended()
    assert (code, output) == (0, "")
    for child in children:
        await until_ended(child)
    assert not Gateway.file(folder / ".turnkeeper").exists()
    assert EmbeddedServer.recorded(folder / ".turnkeeper") is None


@needs_linux
async def test_ops_2_a_process_that_dies_is_restarted_and_reported(folder, stack):
    server = EmbeddedServer.recorded(folder / ".turnkeeper")
    assert await gateway_is_ready()
    for child in stack.children():
        os.kill(child, signal.SIGKILL)
    outputs = [await stack.until_said("Restarting") for _ in range(3)]
    # Whether it had failed to start is a matter of how long the start of all took.
    assert sorted(re.sub(r"(now|in 0\.5 s)\.$", "soon", line) for line in "".join(outputs).splitlines()) == [
        "The Temporal server stopped (SIGKILL). Restarting soon",
        "The gateway stopped (SIGKILL). Restarting soon",
        "The worker stopped (SIGKILL). Restarting soon",
    ]
    await until(gateway_is_ready)
    assert EmbeddedServer.recorded(folder / ".turnkeeper").address == server.address


@needs_linux
async def test_ops_10_the_activities_of_the_stacks_killed_worker_fail_at_once(folder, stack):
    """The stack has not called Temporal before: it loads the SDK for this."""
    scripts = folder / ".turnkeeper" / "scripts"
    scripts.mkdir()
    (scripts / "slow.json").write_text('{"responses": [{"text": "one word after another", "chunk_delay": 2}]}')
    client = await connect(Settings())
    session = await client.start_workflow(
        "AgenticAIWorkflow",
        SessionInput(model="offline:script/slow"),
        id="slow",
        task_queue=Settings().task_queue,
        start_signal="prompt",
        start_signal_args=["go"],
    )

    await until(lambda: model_call(session, lambda call: call.HasField("last_heartbeat_time")))
    _, worker, _ = stack.children()
    os.kill(worker, signal.SIGKILL)
    await stack.until_said("The worker stopped (SIGKILL). Restarting now.")
    lost = await until(lambda: model_call(session, lambda call: call.attempt == 2))
    assert lost.last_failure.application_failure_info.type == WORKER_DIED


async def model_call(
    session: WorkflowHandle[Any, Any], condition: Callable[[PendingActivityInfo], bool]
) -> PendingActivityInfo | None:
    """Return the session's running model call if it meets the condition."""
    pending = (await session.describe()).raw_description.pending_activities
    return next((one for one in pending if one.activity_type.name == "call_model" and condition(one)), None)


@needs_linux
async def test_ops_2_a_second_stack_is_rejected_and_nothing_survives_a_killed_first_one(
    monkeypatch,
):
    async with running_stack(monkeypatch) as stack:
        code, output = await run("up")
        assert code == 1
        assert "temporal.db is in use by the Temporal server at 127.0.0.1:" in output

        children = stack.children()
        assert len(children) == 3
        stack.signal(signal.SIGKILL)
        for child in children:
            await until_ended(child)


async def test_ops_3_a_worker_waiting_for_temporal_logs_the_address():
    """B7: an address that accepts connections and never answers."""
    silent = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    address = "{}:{}".format(*silent.sockets[0].getsockname())
    command = await Command.start("worker", TEMPORAL_ADDRESS=address)
    try:
        await command.until_said(f"Waiting for Temporal at {address}")
    finally:
        command.signal(signal.SIGKILL)
        await command.ended()
        silent.close()


async def test_ops_3_a_gateway_that_cannot_connect_logs_it():
    """B7: it keeps running, and answers 503."""
    command = await Command.start("api", TEMPORAL_ADDRESS="127.0.0.1:1", TURNKEEPER_API_PORT="0")
    try:
        output = await command.until_said("Temporal cannot be reached at 127.0.0.1:1")
        assert "Check TEMPORAL_ADDRESS. Until then every request is answered 503." in output
    finally:
        command.signal(signal.SIGTERM)
        await command.ended()


@pytest.mark.parametrize("columns", ["60", "100"])
async def test_api_6_help_is_wrapped_to_the_width_of_the_terminal(columns: str):
    """U14: lines are wrapped at the terminal's width, not where the source breaks them."""
    for command in ("chat", "demo", "replay-check"):
        _, output = await run(command, "--help", COLUMNS=columns)
        text = [line.strip() for line in output.partition("╭")[0].splitlines()]
        for line, following in itertools.pairwise(text[2:]):
            if line and following:
                assert len(line) + 1 + len(following.split()[0]) > int(columns) - 4, line
