"""A short campaign of faults, as part of every run in CI; `make soak` has the long ones (OPS-10)."""

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.campaign import campaign
from tests.faults.campaign.campaign import Options, run_campaign
from tests.faults.campaign.checker import violations
from tests.faults.campaign.report import figures, table
from tests.ops.conftest import needs_linux
from tests.processes.forked import PIPE, STDOUT, fork, forked_commands
from tests.waiting import until

pytestmark = [needs_linux, pytest.mark.timeout(1_200)]

SHORT = Options(
    minutes=5,
    sessions=1,
    seed=2,
    burst=8,
    kinds=frozenset({"worker_b killed", "temporal killed", "worker_a frozen", "gateway_b cut"}),
    at_most=4,
)
"""Each kind once, and then it is over: in half a minute, or later where the machine has something else to do."""

START_SECONDS = 400.0


@pytest.fixture(autouse=True)
def _forked() -> Iterator[None]:
    """Fork the processes of the stack; `make soak` executes them."""
    with forked_commands():
        yield


async def test_ops_10_a_short_fault_campaign_breaks_no_promise(tmp_path, monkeypatch):
    monkeypatch.setattr(campaign, "REPLAY_SECONDS", 0.0)  # the histories of one session are enough
    evidence = await run_campaign(SHORT, tmp_path)
    broken_promises = violations(evidence)
    assert not broken_promises, table(evidence, broken_promises, f"logs in {tmp_path}")
    assert len(evidence.faults) == SHORT.at_most
    assert sum(attempt.outcome == "ok" for attempt in evidence.attempts) >= 15
    assert evidence.replays.runs >= SHORT.sessions
    assert figures(evidence)["clients"]["answers_shown"] > 0


async def test_ops_10_a_stopped_campaign_leaves_no_process_behind(tmp_path):
    process = await fork(
        *("tests.faults.campaign", "--sessions", "1"),
        env={**os.environ, "TMPDIR": str(tmp_path)},
        cwd=Path(__file__).parents[2],
        stdout=PIPE,
        stderr=STDOUT,
    )
    try:
        await until(lambda: faults_have_begun(tmp_path), within=START_SECONDS)
        async with asyncio.timeout(START_SECONDS):
            assert len(processes_of(tmp_path)) >= 4
            process.send_signal(signal.SIGINT)
            output = (await process.stdout.read()).decode()
            code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert code == 130, output
    assert re.search(r"^Stopped; .* is left as it is\.$", output, re.MULTILINE)
    assert processes_of(tmp_path) == []


def faults_have_begun(folder: Path) -> bool:
    return any("fault begins" in log.read_text() for log in folder.glob("*/log.jsonl"))


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of processes that run below `folder`, or have a path in it as an argument."""
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                where = str((entry / "cwd").readlink())
            except OSError:
                continue
            if where.startswith(str(folder)) or any(str(folder) in word for word in words):
                processes.append(" ".join(words))
    return processes
