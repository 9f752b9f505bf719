"""schemathesis over every operation, streams included: no answer but documented ones (API-2, API-7).

A few cases are part of every test run; `make fuzz CASES=20000` makes as many as are asked for.
"""

import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness import BOUND, Environment, asks

CASES = int(os.environ.get("FUZZ_CASES", "64"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
IS_LONG = CASES > 1_000
PHASES = os.environ.get("FUZZ_PHASES", "examples,coverage,fuzzing" if IS_LONG else "examples,fuzzing")
SECONDS = 4 * 3_600 if IS_LONG else 900
MAX_OUTAGES = 0.01
"""The share of cases that a busy machine may answer with a true 503 or 504; of a few cases it is `MIN_OUTAGES`."""

MIN_OUTAGES = 3

CONFIG = Path(__file__).parent / "schemathesis.toml"


WAITING = ("waiting0", "waiting1", "waiting2", "waiting3")
"""Sessions that wait for decisions. Only the first is met by requests of all kinds: others end what they meet."""


async def started_sessions(url: str) -> list[str]:
    """Start sessions for requests to meet: with turns, without any, ended."""
    async with httpx.AsyncClient(base_url=url, timeout=70) as http:
        for number in range(4):
            await http.post("/workflow", json={"id": f"s{number}", "title": f"Session {number}"})
            for prompt in ("p1", "p2")[: number % 3]:
                body = {"message": "hello", "id": prompt}
                assert (await http.post(f"/workflow/s{number}/prompt?wait=60", json=body)).status_code == 200
        await http.post("/workflow", json={"id": "ended"})
        await http.post("/workflow/ended/end")
    return [*(f"s{number}" for number in range(4)), "ended", "never-was"]


async def started_tasks(url: str) -> list[str]:
    """Start tasks that answer, and return their ids."""
    async with httpx.AsyncClient(base_url=url, timeout=70) as http:
        created = [await http.post("/tasks", json={"description": "Say hello."}) for _ in range(2)]
        return [answer.json()["task_id"] for answer in created]


async def started_approvals(url: str, env: Environment) -> list[dict[str, Any]]:
    """Start the sessions that wait for decisions, and return the calls that one of them waits for."""
    async with httpx.AsyncClient(base_url=url, timeout=70) as http:
        for session in WAITING:
            env.vendor.script = [asks(("pay", {"to": "bob"}), ("pay", {"to": "bob"}))]
            await http.post("/workflow", json={"id": session, "prompt": "pay bob, and once more"})
            approvals: list[dict[str, Any]] = []
            async with asyncio.timeout(BOUND):
                while len(approvals) < 2:
                    approvals = (await http.get(f"/workflow/{session}/approvals")).json()["approvals"]
    return approvals


@pytest.mark.timeout(SECONDS + 60)
async def test_api_7_every_response_to_a_generated_request_is_documented(
    url: str, env: Environment, tmp_path: Path
) -> None:
    config, report = tmp_path / "schemathesis.toml", tmp_path / "cases.ndjson"
    sessions = await started_sessions(url)
    approvals = await started_approvals(url, env)
    values = {
        "sessions": [*sessions, WAITING[0]],
        "tasks": await started_tasks(url),
        "waiting": WAITING,
        "calls": sorted({call["call_id"] for call in approvals}),
        "digests": sorted({call["args_digest"] for call in approvals}),
    }
    examples = {name: json.dumps(some) for name, some in values.items()}
    config.write_text(CONFIG.read_text().format(**examples, deterministic=str(not IS_LONG).lower()))
    async with httpx.AsyncClient(base_url=url) as http:
        paths = (await http.get("/openapi.json")).json()["paths"]
    operations = sum(len(methods) for methods in paths.values())
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "--no-color", "--config-file", str(config)),
        *("run", f"{url}/openapi.json", "--phases", PHASES, "--checks", "all"),
        *("--max-examples", str(max(1, CASES // operations)), "--seed", str(SEED)),
        *("--report", "ndjson", "--report-ndjson-path", str(report), "--no-shrink"),
    ]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=tmp_path
    )
    try:
        async with asyncio.timeout(SECONDS):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    statuses = statuses_in(report)
    print(f"{statuses.total()} answers: {dict(sorted(statuses.items()))}")  # noqa: T201  # the figure of a long run
    assert process.returncode == 0, output.decode()[-20_000:]
    assert statuses.total() >= CASES // 2
    assert not {status for status in statuses if status >= 500} - {503, 504}
    assert statuses[503] + statuses[504] <= max(MIN_OUTAGES, MAX_OUTAGES * statuses.total())


def statuses_in(report: Path) -> Counter[int]:
    """Return the number of answers of each status."""
    counts: Counter[int] = Counter()

    def look(value: Any) -> None:
        if isinstance(value, dict):
            if "status_code" in value and isinstance(value["status_code"], int):
                counts[value["status_code"]] += 1
            for inner in value.values():
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    for line in report.read_text().splitlines():
        look(json.loads(line))
    return counts
