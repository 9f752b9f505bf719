"""`benchmarks/RESULTS.md`: the part that `make bench` writes, and after it that of `make bench-peers`."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.measurements import Row

RESULTS = Path(__file__).with_name("RESULTS.md")

PEERS = "## Other libraries\n"
"""The first line of the part that `make bench-peers` writes."""

MARKS = {True: "yes", False: "**no**", None: ""}


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


def with_own_part(page: str, own: str) -> str:
    r"""Return `page` with `own` as the part of `make bench`.

    >>> with_own_part("old\n" + PEERS + "theirs\n", "new\n")
    'new\n\n## Other libraries\ntheirs\n'
    """
    _, heading, theirs = page.partition(PEERS)
    return own + (f"\n{heading}{theirs}" if heading else "")


def with_peers(page: str, peers: str) -> str:
    r"""Return `page` with `peers`, which begins with `PEERS`, as the part of `make bench-peers`.

    >>> with_peers("ours\n\n" + PEERS + "old\n", PEERS + "new\n")
    'ours\n\n## Other libraries\nnew\n'
    """
    return f"{page.partition(PEERS)[0].rstrip()}\n\n{peers}"
