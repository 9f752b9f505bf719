"""Writes `docs/others-bugs.md`, the bug reports of other projects that tests name: `python -m tests.others_bugs.page`.

The docstring of such a test is a sentence about the bug, and then the reports:

    Half a character in a tool's result ends the connection.

    Reported as claude-code#86560, opencode#17758.

Tests with the same docstring show the same bug.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.named_tests import NamedTest, named_tests

PAGE = Path(__file__).parents[2] / "docs" / "others-bugs.md"

REPORTED = re.compile(r"(?P<symptom>.+?) Reported as (?P<reports>[\w./-]+#\d+(?:, [\w./-]+#\d+)*)\.")

HEAD = """\
# Bugs of others

Public bug reports of other projects that were tried here, each with the test that shows that it can't happen. The table
is made from the tests' docstrings: `python -m tests.others_bugs.page`.

| bug | reported as | test |
|---|---|---|
"""


def page(tests: Iterable[NamedTest]) -> str:
    """Return the page about the tests that name reports, in their order.

    Raises:
        ValueError: A docstring names reports in another form.
    """
    by_docstring = dict[str, list[NamedTest]]()
    for test in tests:
        if "Reported as" in test.docstring:
            by_docstring.setdefault(test.docstring, []).append(test)
    return HEAD + "".join(_row(docstring, showing) for docstring, showing in by_docstring.items())


def _row(docstring: str, tests: Sequence[NamedTest]) -> str:
    match = REPORTED.fullmatch(docstring)
    if match is None:
        name = f"{tests[0].file}::{tests[0].name}"
        raise ValueError(f"{name}: the docstring must be a sentence about the bug, then 'Reported as project#1.'")
    return f"| {match['symptom']} | {match['reports']} | {', '.join(test.link for test in tests)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(named_tests()))
