"""Tests wait for what is to happen, not for time to pass: only `tests/waiting.py` sleeps."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
WAITING = TESTS / "waiting.py"
FILES = [path for path in sorted(TESTS.rglob("*.py")) if path not in (WAITING, Path(__file__))]

SLEEPING_SCRIPT = re.compile(r"\bsleep\(|\bsleep \d|\bsetTimeout\(|\bsetInterval\(")

DOCUMENTED_PAUSES = {"interop/ai_sdk/driver.mjs": 1}
"""Scripts that pause because a client of ours is documented to: how often they do."""


def sleeps(tree: ast.AST) -> Iterator[ast.AST]:
    """Find what puts the test to sleep. A workflow's own timer is what is tested."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr="sleep", value=owner) if ast.unparse(owner) != "workflow":
                yield node
            case ast.Attribute(attr="wait_for_timeout"):
                yield node
            case ast.ImportFrom(names=names) if any(name.name == "sleep" for name in names):
                yield node
            case ast.Constant(value=str(script)) if SLEEPING_SCRIPT.search(script):
                yield node


def asks_at_full_speed(node: ast.AST) -> bool:
    return isinstance(node, ast.While) and all(isinstance(statement, ast.Pass) for statement in node.body)


def test_no_test_sleeps_or_polls_at_full_speed() -> None:
    trees = {path.relative_to(TESTS): ast.parse(path.read_text()) for path in FILES}
    assert [f"{path}:{node.lineno}" for path, tree in trees.items() for node in sleeps(tree)] == []
    asking = [
        f"{path}:{node.lineno}" for path, tree in trees.items() for node in ast.walk(tree) if asks_at_full_speed(node)
    ]
    assert asking == [], "`until` of tests/waiting.py leaves the machine to others"


def test_only_the_fault_campaign_lets_real_time_pass() -> None:
    users = {str(path.parent.relative_to(TESTS)) for path in FILES if re.search(r"\bpass_time\(", path.read_text())}
    assert users == {"faults/campaign"}


def test_a_script_pauses_only_where_clients_are_documented_to_wait() -> None:
    scripts = [
        path
        for suffix in ("js", "mjs", "sh")
        for path in TESTS.rglob(f"*.{suffix}")
        if "node_modules" not in path.parts
    ]
    pauses = {str(path.relative_to(TESTS)): len(SLEEPING_SCRIPT.findall(path.read_text())) for path in scripts}
    assert {script: count for script, count in pauses.items() if count} == DOCUMENTED_PAUSES
