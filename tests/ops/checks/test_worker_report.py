"""The health checks of the containers, and the end of programs that load the SDK (OPS-5)."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from temporalio.client import Client

from tests.harness import environment
from tests.ops.conftest import BOUND
from tests.ops.local.test_cli import Command
from tests.restart_ports import restart_port
from tests.waiting import until
from turnkeeper.models.settings.settings import Settings
from turnkeeper.ops.local import worker_process
from turnkeeper.ops.local.worker_process import MAX_AGE_SECONDS, WorkerReport, find_trouble, reporting

COMPOSE = yaml.safe_load((Path(__file__).parents[3] / "docker-compose.yml").read_text())["services"]

RUNS = 5
"""Runs of each health check: one that loaded the SDK would crash in half of them."""


async def exit_code(*command: str, **env: str) -> tuple[int, str]:
    """Run a program of this installation; return its exit code and what it wrote."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, "PATH": path, **env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), BOUND)
    assert process.returncode is not None
    return process.returncode, output.decode()


@asynccontextmanager
async def running(*arguments: str, **env: str) -> AsyncIterator[Command]:
    command = await Command.start(*arguments, **env)
    try:
        yield command
    finally:
        command.signal(signal.SIGTERM)
        await command.ended()


async def test_ops_5_the_health_checks_of_the_containers_never_crash(temporal: Client, folder: Path) -> None:
    port = restart_port()
    env = {
        "TEMPORAL_ADDRESS": temporal.service_client.config.target_host,
        "TURNKEEPER_TASK_QUEUE": f"q-{folder.name}",
        "TURNKEEPER_STATE_DIR": str(folder),
        "TURNKEEPER_API_PORT": str(port),
    }
    checks = [
        [part.replace("8080", str(port)) for part in COMPOSE[service]["healthcheck"]["test"][1:]]
        for service in ("worker", "gateway")
    ]
    assert [check[0] for check in checks] == ["turnkeeper", "python"]
    assert (await exit_code(*checks[0], **env))[0] == 1, "before the worker has started"
    async with running("worker", **env), running("api", **env):
        for check in checks:
            await until(lambda check=check: is_healthy(check, env))
            results = [await exit_code(*check, **env) for _ in range(RUNS)]
            assert results == [(0, "")] * RUNS
    code, output = await exit_code(*checks[0], **env)
    assert (code, "No worker has reported" in output) == (1, True), "the worker has stopped"


async def is_healthy(check: list[str], env: dict[str, str]) -> bool:
    return (await exit_code(*check, **env))[0] == 0


async def test_ops_5_a_worker_reports_while_temporal_lists_it_as_a_poller(
    temporal: Client, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "REPORT_SECONDS", 0.01)
    settings = Settings(state_dir=folder / "state", task_queue="another")
    async with environment(temporal) as env:
        ours = settings.model_copy(update={"task_queue": env.task_queue})
        async with reporting(env.worker, ours):
            await until(lambda: find_trouble(ours) is None)
            report = WorkerReport.model_validate_json(WorkerReport.file(ours.state_dir).read_text())
            assert report.identity == env.worker.config()["identity"]
        assert "No worker has reported" in (find_trouble(ours) or "")


@pytest.mark.parametrize(
    ("age", "trouble"),
    [
        (0.0, None),
        (MAX_AGE_SECONDS + 100, f"Worker w reported last {MAX_AGE_SECONDS + 100:.0f} s ago."),
        (-1_000.0, "Worker w reported last before this machine was started."),
    ],
)
def test_ops_5_an_outdated_report_is_ignored(folder: Path, age: float, trouble: str | None) -> None:
    WorkerReport(identity="w", reported_at=time.monotonic() - age).write(folder)
    assert find_trouble(Settings(state_dir=folder)) == trouble


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        ("pass", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no')", 1, "no"),
        ("1 / 0", 1, "ZeroDivisionError"),
    ],
)
async def test_ops_5_a_program_ends_with_its_exit_code_and_without_clean_up(body: str, code: int, text: str) -> None:
    script = (
        "import atexit, sys\nfrom turnkeeper.ops.local.process import run_to_end\n"
        f"atexit.register(print, 'cleaned up')\ndef main(): {body}\nrun_to_end(main)"
    )
    ended_with, output = await exit_code(sys.executable, "-c", script)
    assert (ended_with, text in output, "cleaned up" in output) == (code, True, False)
