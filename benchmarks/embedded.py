"""The embedded server with a file, as `make run` starts it, beside the same server in memory (OPS-11)."""

from statistics import median

from benchmarks.environment import bench_environment, interleaved
from benchmarks.measurements import SESSIONS, Row, row, turns_a_second

SAMPLES = 3


async def embedded() -> list[Row]:
    """Measure turns a second of 32 concurrent sessions on each server."""
    async with bench_environment(in_memory=False) as on_file, bench_environment() as in_memory:
        ours = [await on_file.session("four") for _ in range(SESSIONS)]
        floor = [await in_memory.session("four") for _ in range(SESSIONS)]
        samples = await interleaved(SAMPLES, lambda: turns_a_second(ours), lambda: turns_a_second(floor))
    on_file_rate, in_memory_rate = map(median, samples)
    return [
        row(
            f"turns a second, {SESSIONS} sessions, server with a file to server in memory",
            f"{on_file_rate:.1f}",
            f"{in_memory_rate:.1f}",
            on_file_rate / in_memory_rate,
            at_least=0.7,
        )
    ]
