"""Pinned dependencies without addresses, and results that reach their goals: OPS-11, OPS-12."""

import re
from pathlib import Path

from tests.requirements import MISSING

ROOT = Path(__file__).parents[2]


def test_ops_12_constraints_pin_every_package_and_name_no_address() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 30
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []


def results() -> list[tuple[str, str]]:
    """Return what was measured and whether it reached its goal, for every row that has one."""
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    return re.findall(r"^\| (.+?) \|.*\| (yes|\*\*no\*\*) \|$", text, re.MULTILINE)


def test_ops_11_the_requirement_names_every_result_that_misses_its_goal() -> None:
    assert len(results()) > 25
    assert {what for what, reached in results() if reached != "yes"} == set(re.findall("`(.+?)`", MISSING["OPS-11"]))
