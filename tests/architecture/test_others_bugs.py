"""The page about bugs of others is what the tests' docstrings say."""

import pytest

from tests.named_tests import NamedTest, named_tests
from tests.others_bugs.page import HEAD, PAGE, page


def test_the_page_of_others_bugs_is_up_to_date() -> None:
    assert PAGE.read_text() == page(named_tests()), "run: python -m tests.others_bugs.page"


def test_a_report_in_another_form_is_an_error() -> None:
    for docstring in ("Reported as x#1.", "It hangs. Reported as x.", "It hangs. Reported as x#1. And more."):
        with pytest.raises(ValueError, match=r"a\.py::test_b"):
            page([NamedTest("a.py", "test_b", docstring)])


def test_tests_of_the_same_bug_are_one_row() -> None:
    reported = "It hangs. Reported as x/y#1, z#2."
    tests = [
        NamedTest("a.py", "b", reported),
        NamedTest("a.py", "c", "Something else."),
        NamedTest("d.py", "e", reported),
    ]
    assert page(tests) == f"{HEAD}| It hangs. | x/y#1, z#2 | [`b`](../tests/a.py), [`e`](../tests/d.py) |\n"
