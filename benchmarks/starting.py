"""The start of `turnkeeper up` and the memory of its processes (OPS-11)."""

import asyncio
import os
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import httpx

from benchmarks import proc
from benchmarks.environment import BOUND
from benchmarks.results import Row, within
from turnkeeper.ops.local.processes import LOOPBACK, Program, free_port
from turnkeeper.ops.local.supervisor import own_command

SAMPLES = 5
POLL_SECONDS = 0.01

MAX_SECONDS, MAX_MEGABYTES = 2.0, 220.0


async def starting() -> list[Row]:
    """Start the stack several times in one folder, the first time unmeasured; on Linux, add up its memory."""
    with TemporaryDirectory(prefix=".turnkeeper-bench-", dir=Path.cwd()) as folder:
        starts = [await _start(Path(folder)) for _ in range(SAMPLES + 1)][1:]
    seconds = median(start[0] for start in starts)
    rows = [within("make run to ready, warm", seconds, MAX_SECONDS, unit="s", digits=2)]
    if sys.platform == "linux":
        megabytes = median(start[1] for start in starts)
        rows.append(
            within("private memory of its processes but Temporal's server", megabytes, MAX_MEGABYTES, unit="MB")
        )
    return rows


async def _start(folder: Path) -> tuple[float, float]:
    """Return the seconds until the stack is ready, and then the MB of its processes."""
    port, ports = free_port(), (free_port(), free_port())
    variables = {
        "TURNKEEPER_STATE_DIR": str(folder / "state"),
        "TURNKEEPER_WORKSPACE_ROOT": str(folder / "workspace"),
        "TURNKEEPER_API_PORT": str(port),
        "TURNKEEPER_TEMPORAL_PORT": str(ports[0]),
        "TURNKEEPER_TEMPORAL_UI_PORT": str(ports[1]),
    }
    stack = Program(own_command("up"), log=folder / "up.log", env={**os.environ, **variables}, folder=folder)
    started_at = perf_counter()
    await stack.start()
    try:
        await _until_ready(port)
        return perf_counter() - started_at, sum(map(proc.private_megabytes, _own(stack.pid or 0)))
    finally:
        await stack.stop(seconds=BOUND)


async def _until_ready(port: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}") as http, asyncio.timeout(BOUND):
        while True:
            try:
                ready = await http.get("/readyz")
                if ready.is_success and ready.json()["workers"]:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(POLL_SECONDS)


def _own(pid: int) -> list[int]:
    """Return the ids of a stack's processes without Temporal's server."""
    return [process for process in proc.tree(pid) if "start-dev" not in proc.arguments(process)]
