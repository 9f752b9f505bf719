"""Requirement ids and tests name each other, both ways."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"

_ROW = re.compile(r"^\| ([A-Z]{3}-\d+) \|.*\| (kept|in part|later) \|$", re.MULTILINE)
_NAMED = re.compile(r"def test_(ses|ctx|agt|api|ops|tsk)_(\d+)_")


def listed() -> dict[str, str]:
    return dict(_ROW.findall((ROOT / "docs" / "requirements.md").read_text()))


def named_in_tests() -> set[str]:
    found: set[str] = set()
    for file in TESTS.rglob("test_*.py"):
        found |= {f"{area.upper()}-{number}" for area, number in _NAMED.findall(file.read_text())}
    law = (TESTS / "core" / "test_updates_law.py").read_text()
    return found | ({"SES-12"} if "class UpdatesLaw(RuleBasedStateMachine)" in law else set())


def test_every_requirement_that_is_kept_is_named_by_a_test() -> None:
    untested = {requirement for requirement, state in listed().items() if state != "later"} - named_in_tests()
    assert untested == set()


def test_every_requirement_that_a_test_names_is_listed_as_kept() -> None:
    unknown = {requirement for requirement in named_in_tests() if listed().get(requirement, "later") == "later"}
    assert unknown == set()
