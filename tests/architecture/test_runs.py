"""What `make test` and `make test-live` run, and what of the developer's environment they see (AGT-4, AGT-11)."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

KEYS = {"ANTHROPIC_API_KEY": "sk-ant-of-the-developer", "OPENAI_API_KEY": "sk-of-the-developer"}
VENDORS = ("ANTHROPIC_", "OPENAI_", "TURNKEEPER_OPENAI_CHAT__", "LIVE_")


def pytest_run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    without = {name: value for name, value in os.environ.items() if not name.startswith(VENDORS)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env={**without, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_agt_11_live_tests_are_no_part_of_the_others_and_found_when_they_are_named() -> None:
    # To collect all the others takes half a minute and shows no more.
    others = [
        f"--ignore={folder}" for folder in (ROOT / "tests").iterdir() if folder.name not in ("architecture", "live")
    ]
    every = pytest_run("--collect-only", "tests", *others, **KEYS).stdout
    assert "tests/architecture/test_runs.py::" in every
    assert "tests/live" not in every
    assert "tests/live/test_live.py::" in pytest_run("--collect-only", "tests/live", **KEYS).stdout


def test_agt_11_without_a_key_the_live_tests_say_what_they_left_out_and_fail_nobody() -> None:
    ran = pytest_run("-rs", "tests/live")
    assert ran.returncode == 0
    for missing in (*KEYS, "TURNKEEPER_OPENAI_CHAT__BASE_URL, LIVE_CHAT_MODEL"):
        assert f"not set: {missing}\n" in ran.stdout


def test_agt_4_no_other_test_sees_the_keys_of_the_developer() -> None:
    chosen = "tests/ops/local/test_settings.py::test_agt_4_without_a_key_new_sessions_get_the_offline_model"
    ran = pytest_run(chosen, **KEYS)
    assert "1 passed" in ran.stdout, ran.stdout


def test_ops_1_a_test_that_lacks_a_program_is_skipped_with_the_reason_and_in_ci_it_fails() -> None:
    chosen = ["-rs", "tests/stores/partials/test_doctor_redis.py", "-k", "wrong_password"]
    without = {"PATH": str(Path(sys.executable).parent), "CI": ""}
    ran = pytest_run(*chosen, **without)
    assert (ran.returncode, "no Redis is installed" in ran.stdout) == (0, True), ran.stdout
    ran = pytest_run(*chosen, **{**without, "CI": "true"})
    assert ran.returncode == 1
    assert "With CI set no test may be skipped: Skipped: no Redis is installed" in ran.stdout


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
