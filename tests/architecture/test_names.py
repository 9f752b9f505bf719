"""Names and prose say what a thing is: no bare participles, no metaphors, one word for a limit."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.named_tests import named_tests

ROOT = Path(__file__).parents[2]
FOLDERS = (
    *("activities", "api", "benchmarks", "clients", "docs", "features", "models", "ops", "stores", "testing", "tests"),
    "workflows",
)
FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.py"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*.py")))
)

PARTICIPLES = {
    *("asked", "begun", "demanded", "found", "given", "gone", "heard", "held", "kept", "known", "looked", "made"),
    *("meant", "noted", "said", "sent", "shown", "spoken", "taken", "told", "untaken", "untold", "wanted", "written"),
}
"""As a whole name they say that something happened, but not what the thing is: `result`, `request`, `cached`."""

PREFIXES = ("MOST_", "LEAST_", "LARGEST_")
"""Limits are called `MAX_` and `MIN_`."""

METAPHORS = {
    *(
        "boarding",
        "evening",
        "leash",
        "mend",
        "mending",
        "scene",
        "sitting",
        "spilled",
        "stage",
        "staged",
        "storm",
        "tether",
    ),
    "wishes",
}
"""As a word of a name; there is a plain word for each."""

PHRASES = {
    "tell whether": "Return whether",
    "whoever": "a caller, a client, a worker",
    "so many": "n",
    "mend": "fix",
    "mends": "fixes",
    "mended": "fixed",
    "in good order": "what is right",
    "theory of operation": "what it is",
}
"""What docstrings and comments don't say, and what they say instead."""

TEST_IDIOMS = re.compile(
    r"_(anew|as_it_is|came_of|for_good|given|goes?_on|in_vain|is_lost|kept|known_ones|mend(s|ed)?|nobody|tells?|told|"
    r"wedges?|what_is_no|whoever|whose)(_|$)"
)
"""What the names of tests don't say, beside the banned words of other names."""

ANY_PHRASE = re.compile(rf"\b({'|'.join(PHRASES)})\b".replace(" ", r"[\s#]+"), re.IGNORECASE)

WIRE_NAMES = {
    ("models/transcript/conversation.py", "given"): "a field of the response to POST /tasks/preview",
    ("models/transcript/conversation.py", "kept"): "a field of the response to POST /tasks/preview",
    ("models/transcript/model_call.py", "known"): "a field of the input of the activity `list_tools`",
}
"""Names that clients or histories have, with the reason: they can't change."""


def words_of(name: str) -> list[str]:
    """Return the words of a name in lower case.

    >>> words_of("_MostOf_theBytes")
    ['most', 'of', 'the', 'bytes']
    """
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every name that the code binds, with its line."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=str(name))
                | ast.AsyncFunctionDef(name=str(name))
                | ast.ClassDef(name=str(name))
                | ast.arg(arg=str(name))
                | ast.Name(id=str(name), ctx=ast.Store())
                | ast.Attribute(attr=str(name), ctx=ast.Store())
                | ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ):
                yield name, getattr(node, "lineno", 0)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from ((alias.asname, alias.lineno) for alias in aliases if alias.asname)


def prose(source: str, tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every docstring and comment as one line, with its line number."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield " ".join(node.value.value.split()), node.lineno
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string, token.start[0]


def is_banned(name: str) -> bool:
    words = words_of(name)
    return (
        "".join(words) in PARTICIPLES
        or name.lstrip("_").startswith(PREFIXES)
        or (not name.startswith("test_") and not METAPHORS.isdisjoint(words))
    )


def banned_names(file: str, tree: ast.AST) -> list[str]:
    names = [(name, line) for name, line in bound_names(tree) if is_banned(name) and (file, name) not in WIRE_NAMES]
    names += [(word, 0) for word in words_of(Path(file).stem) if word in METAPHORS]
    return [f"{file}:{line} {name}" for name, line in sorted(names, key=lambda pair: pair[1])]


def banned_phrases(file: str, source: str, tree: ast.AST) -> list[str]:
    if not ANY_PHRASE.search(source):
        return []  # most files: finding comments is slow
    return [
        f"{file}:{line} write {instead!r} for {phrase!r}"
        for text, line in prose(source, tree)
        for phrase, instead in PHRASES.items()
        if re.search(rf"\b{phrase}\b", text, re.IGNORECASE)
    ]


def complaints(file: str, source: str) -> list[str]:
    tree = ast.parse(source)
    return banned_names(file, tree) + banned_phrases(file, source, tree)


@pytest.mark.parametrize("folder", [*FOLDERS, ""])
def test_names_and_prose_are_plain(folder: str) -> None:
    files = [file for file in FILES if file.rpartition("/")[0].partition("/")[0] == folder]
    assert [complaint for file in files for complaint in complaints(file, (ROOT / file).read_text())] == []


def test_the_names_of_tests_are_plain_and_have_at_most_80_characters() -> None:
    names = [(test.file, test.name) for test in named_tests()]
    assert [f"{file}::{name}" for file, name in names if len(name) > 80 or TEST_IDIOMS.search(name)] == []


SAMPLE = """
class Told:
    _MOST_BYTES = 1

    def keep(self, kept, *, text):
        self._held = kept  # whoever reads it
        return [found for found in text]


def leash_length(n):
    'Tell   whether so many fit.'
"""


def test_banned_names_and_phrases_are_found_everywhere() -> None:
    assert [complaint.removeprefix("a.py:") for complaint in complaints("a.py", SAMPLE)] == [
        "2 Told",
        "3 _MOST_BYTES",
        "5 kept",
        "6 _held",
        "7 found",
        "10 leash_length",
        "11 write 'Return whether' for 'tell whether'",
        "11 write 'n' for 'so many'",
        "6 write 'a caller, a client, a worker' for 'whoever'",
    ]
    assert complaints("ops/leash.py", "") == ["ops/leash.py:0 leash"]


def test_a_name_that_says_what_it_is_may_have_such_a_word_in_it() -> None:
    plain = "def test_the_sent_prompt(): ...\nsent_at = known_ids = is_found = MAX_BYTES = 1  # almost anything"
    assert complaints("a.py", plain) == []
