"""Requirement ids and tests name each other, both ways, and every sentence of a requirement names what shows it."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
PAGE = ROOT / "docs" / "requirements.md"

_ROW = re.compile(r"^\| ([A-Z]{3}-\d+) \| (.*) \| (kept|in part|later) \|$", re.MULTILINE)
_SECTION = re.compile(r"^## ([A-Z]{3}-\d+): (.*)\n\n((?:(?!## ).*\n?)*)", re.MULTILINE)
_CLAIM = re.compile(r"^(\d+)\. ((?:.+\n(?: {3}(?! *- ).+\n)*))((?: {3}- .+\n?)*)", re.MULTILINE)
_PROOF = re.compile(r"^ {3}- `([\w/]+\.py)::(\w+)`$", re.MULTILINE)
_MISSING = re.compile(r"^(?:Later|Not reached): ", re.MULTILINE)
_IDS = re.compile(r"(?:_|\b)(ses|ctx|agt|api|ops|tsk)_(\d+)(?=_)")
_NAMED = re.compile(r"(?:def|class) (\w+)[(:]")

STATE_MACHINE = ("models/session/test_updates_law.py", "UpdatesLaw")
"""What a property shows has no name of a test: hypothesis makes it of the class."""


@dataclass
class Section:
    """What the page says about a requirement."""

    about: str
    claims: list[tuple[str, list[tuple[str, str]]]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    says_what_is_missing: bool = False


def states() -> dict[str, str]:
    return {name: state for name, _, state in _ROW.findall(PAGE.read_text())}


def sections(text: str) -> dict[str, Section]:
    by_name: dict[str, Section] = {}
    for name, about, body in _SECTION.findall(text):
        section = Section(about, says_what_is_missing=bool(_MISSING.search(body)))
        for number, sentence, proofs in _CLAIM.findall(body):
            section.numbers.append(int(number))
            section.claims.append((sentence, _PROOF.findall(proofs)))
        assert sum(len(proofs) for _, proofs in section.claims) == body.count("   - "), f"{name}: a line can't be read"
        by_name[name] = section
    return by_name


def requirements_of(test: str) -> set[str]:
    """Return the ids in a test's name; for `ctx_9_to_ctx_11` the whole range."""
    ids = {f"{area.upper()}-{number}" for area, number in _IDS.findall(test)}
    for area, first, last in re.findall(r"([a-z]{3})_(\d+)_to_[a-z]{3}_(\d+)", test):
        ids |= {f"{area.upper()}-{number}" for number in range(int(first), int(last) + 1)}
    return ids


def names_in(file: Path) -> set[str]:
    return set(_NAMED.findall(file.read_text()))


def named_in_tests() -> set[str]:
    tests = (name for file in TESTS.rglob("test_*.py") for name in names_in(file) if name.startswith("test_"))
    return {requirement for test in tests for requirement in requirements_of(test)} | {"SES-12"}


def test_every_requirement_that_is_kept_is_named_by_a_test() -> None:
    untested = {requirement for requirement, state in states().items() if state != "later"} - named_in_tests()
    assert untested == set()


def test_every_requirement_that_a_test_names_is_listed_as_kept() -> None:
    unknown = {requirement for requirement in named_in_tests() if states().get(requirement, "later") == "later"}
    assert unknown == set()


def test_every_requirement_that_is_not_for_later_is_said_in_numbered_sentences() -> None:
    documented = sections(PAGE.read_text())
    rows = {name: about for name, about, state in _ROW.findall(PAGE.read_text()) if state != "later"}
    assert {name: section.about for name, section in documented.items()} == rows
    for name, section in documented.items():
        assert section.numbers == list(range(1, len(section.claims) + 1)), name
        assert section.claims, name


def test_what_is_kept_leaves_nothing_for_later_and_what_is_kept_in_part_says_what_is_missing() -> None:
    wrong = {
        name
        for name, section in sections(PAGE.read_text()).items()
        if section.says_what_is_missing != (states()[name] == "in part")
    }
    assert wrong == set()


@pytest.mark.parametrize("name", [name for name, state in states().items() if state != "later"])
def test_every_sentence_names_tests_that_are_there(name: str) -> None:
    section = sections(PAGE.read_text())[name]
    own = 0
    for sentence, proofs in section.claims:
        assert proofs, sentence
        for file, test in proofs:
            assert (TESTS / file).exists(), file
            assert test in names_in(TESTS / file), f"{file} has no {test}"
            is_machine = (file, test) == STATE_MACHINE
            assert is_machine or requirements_of(test) or file.startswith("architecture/"), test
            own += name in requirements_of(test) or is_machine
    assert own, "no test carries the requirement's own id"


def test_a_sentence_without_a_test_or_with_one_that_is_gone_is_noticed() -> None:
    claims = "1. One thing\n   holds.\n   - `a/test_b.py::test_ses_99_c`\n2. Another holds.\n"
    page = f"## SES-99: all\n\n{claims}\nLater: more.\n"
    section = sections(page)["SES-99"]
    assert section.numbers == [1, 2]
    assert section.says_what_is_missing
    assert [proofs for _, proofs in section.claims] == [[("a/test_b.py", "test_ses_99_c")], []]
    assert requirements_of("test_ctx_9_to_ctx_11_and_tsk_3_x") == {"CTX-9", "CTX-10", "CTX-11", "TSK-3"}
