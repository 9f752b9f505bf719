"""The summary of the matrix, after all tests: also of those that ran in other processes."""

import json
from collections import Counter

import pytest

PROPERTY = "matrix"
"""The name of the property in which a test reports its outcomes, as JSON."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for group in ("passed", "failed") for report in terminalreporter.stats.get(group, [])]
    outcomes = [
        outcome
        for report in reports
        for name, value in getattr(report, "user_properties", [])
        if name == PROPERTY
        for outcome in json.loads(str(value))
    ]
    if not outcomes:
        return
    rows, refused = Counter[str](), Counter[str]()
    for outcome in outcomes:
        rows[outcome["flavour"]] += 1
        refused[outcome["flavour"]] += outcome["refused"]
    terminalreporter.section("matrix of model faults")
    for flavour, count in sorted(rows.items()):
        terminalreporter.write_line(f"{flavour:22} {count:5} rows {refused[flavour]:6} refused requests")
    ended = sum(outcome["is_ended"] for outcome in outcomes)
    again = sum(outcome["unlearned"] for outcome in outcomes)
    wrong = sum(bool(outcome["problem"]) for outcome in outcomes)
    terminalreporter.write_line(f"{len(outcomes)} rows; sessions ended: {ended}; not as expected: {wrong}")
    terminalreporter.write_line(f"illegal requests not learned from: {again}")
