"""`make test` and `make test-live`: the tests they run and the environment they see (AGT-4, AGT-11)."""

import asyncio
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.file_order import LONG
from tests.processes.forked import DEVNULL, PIPE, fork

ROOT = Path(__file__).parents[2]

KEYS = {"ANTHROPIC_API_KEY": "sk-ant-of-the-developer", "OPENAI_API_KEY": "sk-of-the-developer"}
RUN_SECONDS = 120.0

VENDORS = ("ANTHROPIC_", "OPENAI_", "TURNKEEPER_OPENAI_CHAT__", "LIVE_")


@dataclass(frozen=True)
class TestRun:
    """How a run of pytest ended, and what it printed."""

    __test__ = False

    exit_code: int
    output: str


async def pytest_run(*arguments: str, **env: str) -> TestRun:
    without = {name: value for name, value in os.environ.items() if not name.startswith(VENDORS)}
    process = await fork(
        "pytest", "-p", "no:cacheprovider", *arguments, env={**without, **env}, cwd=ROOT, stdout=PIPE, stderr=DEVNULL
    )
    try:
        async with asyncio.timeout(RUN_SECONDS):
            output, _ = await process.communicate()
    finally:
        process.kill()
    return TestRun(await process.wait(), output.decode())


async def test_agt_11_live_tests_run_only_when_they_are_named() -> None:
    # Collecting all the others takes half a minute and shows no more.
    others = [
        f"--ignore={folder}" for folder in (ROOT / "tests").iterdir() if folder.name not in ("architecture", "live")
    ]
    every = (await pytest_run("--collect-only", "tests", *others, **KEYS)).output
    assert "tests/architecture/test_runs.py::" in every
    assert "tests/live" not in every
    assert "tests/live/test_live.py::" in (await pytest_run("--collect-only", "tests/live", **KEYS)).output


async def test_agt_11_live_tests_without_a_key_are_skipped_with_the_reason() -> None:
    ran = await pytest_run("-rs", "tests/live")
    assert ran.exit_code == 0
    for missing in (*KEYS, "TURNKEEPER_OPENAI_CHAT__BASE_URL, LIVE_CHAT_MODEL"):
        assert f"not set: {missing}\n" in ran.output


async def test_agt_4_only_live_tests_see_the_developers_keys() -> None:
    chosen = "tests/ops/local/test_settings.py::test_agt_4_without_a_key_new_sessions_use_the_offline_model"
    ran = await pytest_run(chosen, **KEYS)
    assert "1 passed" in ran.output, ran.output


async def test_ops_1_a_test_without_its_program_is_skipped_or_in_ci_fails() -> None:
    chosen = ["-rs", "tests/stores/partials/test_doctor_redis.py", "-k", "wrong_password"]
    without = {"PATH": str(Path(sys.executable).parent), "CI": ""}
    ran = await pytest_run(*chosen, **without)
    assert (ran.exit_code, "no Redis is installed" in ran.output) == (0, True), ran.output
    ran = await pytest_run(*chosen, **{**without, "CI": "true"})
    assert ran.exit_code == 1
    assert "With CI set no test may be skipped: Skipped: no Redis is installed" in ran.output


OF_EVERY_SYSTEM = {"chattr", "setpriv", "temporal", "chromium-browser", "google-chrome"}
"""Parts of Debian's essential packages, what comes with our own packages, and other names of what CI installs."""


def test_ops_1_ci_installs_every_program_that_a_test_looks_for() -> None:
    sources = [file.read_text() for file in (ROOT / "tests").rglob("*.py")]
    looked_for = {name for source in sources for name in re.findall(r"""which\("([\w-]+)"\)""", source)}
    installed = set(re.findall(r"^has ([\w-]+) \|\|", (ROOT / ".ci" / "run").read_text(), re.MULTILINE))
    assert {"node", "npm", "initdb", "chromium", "chromium-headless-shell", "redis-server"} <= looked_for & (
        installed | OF_EVERY_SYSTEM
    )
    assert looked_for - installed == OF_EVERY_SYSTEM


def test_every_file_that_runs_early_exists_and_is_listed_once() -> None:
    assert [name for name in LONG if not (ROOT / "tests" / name).exists()] == []
    assert len(set(LONG)) == len(LONG)
