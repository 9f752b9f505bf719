"""Pinned dependencies without addresses, and results that reach their goals: OPS-11, OPS-12."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_ops_12_constraints_pin_every_package_and_name_no_address() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 30
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []


@pytest.mark.parametrize(
    "what",
    [
        "signal to visible answer, turn 5",
        "signal to visible answer, turn 200",
        "history bytes of a turn",
        "GET /conversation, nothing new, 2000 turns to 10",
        "signal to visible answer, one tool, turn 2000 to turn 10",
        "largest state handed over",
        "50 messages validated and truncated",
        "tokens of an enriched prompt",
        "first partial text after the vendor's first chunk",
        "history events per streamed chunk",
    ],
)
def test_ops_11_the_written_results_reach_what_was_to_be_reached(what: str) -> None:
    rows = [line for line in (ROOT / "benchmarks" / "RESULTS.md").read_text().splitlines() if line.startswith("|")]
    found = [row for row in rows if row.startswith(f"| {what}")]
    assert found
    assert all(row.rstrip().endswith("| yes |") for row in found)
