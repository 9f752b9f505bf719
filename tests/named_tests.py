"""Reads the tests' names and docstrings, for pages that are made of them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent


@dataclass(frozen=True)
class NamedTest:
    """A test function."""

    file: str
    """Below `tests/`."""
    name: str
    docstring: str
    """On one line; empty without one."""

    @property
    def link(self) -> str:
        """The test as a link from a page in `docs/`."""
        return f"[`{self.name}`](../tests/{self.file})"


def named_tests(folder: Path = TESTS) -> Iterator[NamedTest]:
    """Yield every test function below `folder`, in the order of files and lines."""
    for path in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                docstring = " ".join((ast.get_docstring(node) or "").split())
                yield NamedTest(path.relative_to(folder).as_posix(), node.name, docstring)
