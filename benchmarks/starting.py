"""The start of `turnkeeper up` and the memory of its processes (OPS-11)."""

import asyncio
import os
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import httpx

from benchmarks.environment import BOUND
from benchmarks.measurements import Row
from turnkeeper.ops.local.ports import LOOPBACK, free_port
from turnkeeper.ops.local.processes import Program
from turnkeeper.ops.local.supervisor import own_command

SAMPLES = 5
POLL_SECONDS = 0.01

MAX_SECONDS, MAX_MEGABYTES = 2.0, 350.0


async def starting() -> list[Row]:
    """Start the stack several times in one folder, the first time unmeasured; on Linux, add up its memory."""
    with TemporaryDirectory(prefix=".turnkeeper-bench-", dir=Path.cwd()) as folder:
        starts = [await _start(Path(folder)) for _ in range(SAMPLES + 1)][1:]
    seconds = median(start[0] for start in starts)
    rows = [Row("make run to ready, warm", f"{seconds:.2f} s", "", "", f"≤ {MAX_SECONDS:g} s", seconds <= MAX_SECONDS)]
    if sys.platform == "linux":
        megabytes = median(start[1] for start in starts)
        reached = megabytes <= MAX_MEGABYTES
        goal = f"≤ {MAX_MEGABYTES:g} MB"
        rows.append(Row("memory of all its processes, shared pages once", f"{megabytes:.0f} MB", "", "", goal, reached))
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
        return perf_counter() - started_at, sum(map(_megabytes, _tree(stack.pid or 0)))
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


def _tree(pid: int) -> list[int]:
    """Return the ids of a process and of all processes below it."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it has ended meanwhile, or this is no Linux
        return []
    return [pid, *(below for child in children for below in _tree(child))]


def _megabytes(pid: int) -> float:
    """Return the process's memory; of a page that `n` processes share, an `n`th."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)
