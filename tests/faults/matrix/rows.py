"""All rows, and a sample for the ordinary test run."""

from collections.abc import Sequence
from itertools import chain

from tests.faults.matrix import dialects, models, orders, parts, shapes, words
from tests.faults.matrix.playing import PLAIN, Row

SAMPLE = 40
MAX_BATCH = 60
"""Rows of a test at most, so that processes share the work evenly."""


def all_rows() -> list[Row]:
    return list(chain(parts.rows(), orders.rows(), shapes.rows(), words.rows(), dialects.rows(), models.rows()))


def sample() -> list[Row]:
    """Return about `SAMPLE` rows with the usual tools, spread over all of them."""
    rows = [row for row in all_rows() if row.tools is PLAIN]
    return rows[:: max(1, len(rows) // SAMPLE)]


def batches(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows in batches with the same tools."""
    by_tools = dict[str, list[Row]]()
    for row in rows:
        by_tools.setdefault(" ".join(tool.digest for tool in row.tools), []).append(row)
    return [group[at : at + MAX_BATCH] for group in by_tools.values() for at in range(0, len(group), MAX_BATCH)]
