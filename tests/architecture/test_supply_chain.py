"""Pinned dependencies without addresses: OPS-12."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_ops_12_constraints_pin_every_package_and_name_no_address() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 30
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []
