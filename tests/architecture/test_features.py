"""What a feature imports: the core, itself, and the features that its first sentences name."""

import ast
import re
from pathlib import Path

import pytest

from turnkeeper.features import FEATURES, all_features

ROOT = Path(__file__).parents[2] / "features"


def imported_by(feature: str) -> set[str]:
    """Return the other features whose modules a feature imports, also for types only."""
    names = set[str]()
    for file in (ROOT / feature).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names |= {match[1] for module in modules if (match := re.match(r"turnkeeper\.features\.(\w+)", module))}
    return names & set(FEATURES) - {feature}


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_imports_only_features_that_it_says_it_needs(feature: str) -> None:
    (needs,) = (one.needs for one in all_features() if one.name == feature)
    undeclared = {(feature, other) for other in imported_by(feature) - set(needs)}
    assert undeclared == set()


@pytest.mark.parametrize("feature", FEATURES)
def test_the_first_lines_of_a_feature_say_what_it_needs(feature: str) -> None:
    docstring = ast.get_docstring(ast.parse((ROOT / feature / "__init__.py").read_text())) or ""
    sentence = re.search(r"Needs (.*?)\.", docstring.partition("\n\n")[0])
    named = re.findall(r"`(\w+)`", sentence[1]) if sentence else []
    (needs,) = (one.needs for one in all_features() if one.name == feature)
    assert tuple(named) == tuple(needs)
