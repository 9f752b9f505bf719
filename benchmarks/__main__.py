"""`make bench`: runs the measurements, and writes a section of `benchmarks/RESULTS.md` for each.

`make bench ONLY=streaming,commands` runs some of them; the sections of all others stay. A measurement that fails is a
row that says so, and the others run.
"""

import argparse
import asyncio
import json
import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

from benchmarks.actions import actions
from benchmarks.commands import commands
from benchmarks.copies import copies
from benchmarks.hand_off import hand_off
from benchmarks.listing import listing
from benchmarks.page import page
from benchmarks.reading import reading
from benchmarks.recovery import recovery
from benchmarks.results import MARKS, RESULTS, Row, section, with_section
from benchmarks.starting import starting
from benchmarks.streaming import streaming
from benchmarks.throughput import throughput
from benchmarks.turns import turns
from benchmarks.watching import watching
from turnkeeper.ops.local.process import run_to_end

TITLES: Mapping[Callable[[], Awaitable[list[Row]]], str] = {
    streaming: "A model that streams",
    actions: "Temporal's actions",
    turns: "A model that answers at once",
    throughput: "Many sessions",
    watching: "Watchers",
    commands: "Prompts",
    reading: "Reading",
    starting: "The start",
    page: "The page",
    copies: "Copies",
    listing: "Lists",
    recovery: "Recovery",
    hand_off: "Hand-off",
}
"""The measurements and the titles of their sections, in their order."""


async def measure(names: Sequence[str], publish: Callable[[str, list[Row]], None]) -> None:
    """Run the measurements of these names one after the other, each in its own environment, and publish their rows."""
    for measurement, title in TITLES.items():
        if measurement.__name__ not in names:
            continue
        started_at = perf_counter()
        try:
            rows = await measurement()
        except Exception as error:  # noqa: BLE001  # whatever it is, the other measurements run
            traceback.print_exc()
            rows = [Row(f"{measurement.__name__} failed: {type(error).__name__}", "")]
        for line in rows:
            print(" | ".join([line.what, line.measured, line.floor, line.ratio, line.goal, MARKS[line.reached]]))
        print(f"{measurement.__name__} took {perf_counter() - started_at:.0f} s", flush=True)
        publish(title, rows)


def publish_section(title: str, rows: list[Row]) -> None:
    """Write the section of a measurement; those of the others stay."""
    RESULTS.write_text(with_section(RESULTS.read_text(), list(TITLES.values()), section(title, rows)))


def main() -> None:
    names = [measurement.__name__ for measurement in TITLES]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default="", help=f"names with commas between them: {', '.join(names)}")
    parser.add_argument("--json", type=Path, help="write the rows to this file, and no results")
    options = parser.parse_args()
    chosen = [name for name in options.only.split(",") if name] or names
    if unknown := set(chosen) - set(names):
        parser.error(f"no such measurement: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    logging.basicConfig(level=logging.CRITICAL)
    rows = list[dict[str, object]]()

    def collect(title: str, new: list[Row]) -> None:
        rows.extend({"section": title, **asdict(row)} for row in new)

    asyncio.run(measure(chosen, collect if options.json else publish_section))
    if options.json:
        options.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    run_to_end(main)
