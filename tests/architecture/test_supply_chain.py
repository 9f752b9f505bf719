"""Pinned dependencies without addresses, and results that reach their goals: OPS-11, OPS-12."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_ops_12_constraints_pin_every_package_and_name_no_address() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 30
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []


def results() -> list[tuple[str, str]]:
    """Return what was measured and whether it reached its goal, for every row that has one."""
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    return re.findall(r"^\| (.+?) \|.*\| (yes|\*\*no\*\*) \|$", text, re.MULTILINE)


def test_ops_11_the_written_results_reach_what_was_to_be_reached_but_those_that_are_said_not_to() -> None:
    page = (ROOT / "docs" / "requirements.md").read_text()
    section = re.search(r"^## OPS-11: .*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert section
    missed = re.search(r"^Not reached: (.*?)\n\n", section[0], re.MULTILINE | re.DOTALL)
    assert missed
    documented = {" ".join(name.split()) for name in re.findall(r"`(.+?)`", missed[1], re.DOTALL)}
    assert len(results()) > 25
    assert {what for what, reached in results() if reached != "yes"} == documented
