"""The page of requirements is what the names of the tests say."""

import re

import pytest

from tests.named_tests import NamedTest, named_tests
from tests.requirements import AREAS, MISSING, PAGE, SENTENCES, files_by_id, ids_in, page


@pytest.fixture(scope="module")
def tests() -> list[NamedTest]:
    return list(named_tests())


def test_the_page_of_requirements_is_up_to_date(tests: list[NamedTest]) -> None:
    assert PAGE.read_text() == page(tests), "run: python -m tests.requirements"


def test_every_requirement_has_tests_unless_all_of_it_is_missing(tests: list[NamedTest]) -> None:
    untested = SENTENCES.keys() - files_by_id(tests).keys()
    assert untested == {requirement for requirement, missing in MISSING.items() if missing == "all of it."}


def test_every_id_in_the_name_of_a_test_is_a_requirement(tests: list[NamedTest]) -> None:
    assert [(test.file, test.name) for test in tests if not SENTENCES.keys() >= set(ids_in(test.name))] == []


def test_every_id_stands_at_the_beginning_of_the_name(tests: list[NamedTest]) -> None:
    """Elsewhere the page would not list the test."""
    anywhere = re.compile(rf"(?<=_)(?:{'|'.join(AREAS).lower()})_\d+(?=_)")
    assert [test.name for test in tests if len(anywhere.findall(test.name)) != len(ids_in(test.name))] == []
