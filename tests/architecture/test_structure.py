"""The shape of the tree: imports run downhill, and handlers describe themselves."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnkeeper.features.copies.workflow import CopySession
from turnkeeper.workflows.agentic_ai_workflow import AgenticAIWorkflow
from turnkeeper.workflows.delete_session import DeleteSession

ROOT = Path(__file__).parents[2]
PACKAGES = ("activities", "api", "clients", "features", "models", "ops", "stores", "testing", "workflows")
"""Folders at the top level; `turnkeeper/` has a link to each, and to `cli.py` and `worker.py`."""

MAX_FILES = 14


def modules(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_imports_run_downhill() -> None:
    lint = subprocess.run(
        [Path(sys.executable).with_name("lint-imports")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert lint.returncode == 0, lint.stdout + lint.stderr


def test_every_folder_belongs_to_the_package() -> None:
    links = {path.name: path.readlink() for path in (ROOT / "turnkeeper").iterdir() if path.is_symlink()}
    assert links == {name: Path("..") / name for name in (*PACKAGES, "cli.py", "worker.py")}
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"turnkeeper", "tests", "benchmarks"}
    assert folders == set(PACKAGES)


def test_every_package_opens_with_a_sentence() -> None:
    packages = [path for path in modules(*PACKAGES) if path.stem == "__init__"]
    assert [path for path in packages if not ast.get_docstring(ast.parse(path.read_text()))] == []
    assert {path.parent for path in modules(*PACKAGES)} == {path.parent for path in packages}


@pytest.mark.parametrize("folder", [*PACKAGES, "tests", "benchmarks", "docs"])
def test_modules_are_imported_only_through_the_package(folder: str) -> None:
    bare = {*PACKAGES, "cli", "worker"}
    may_be_bare = re.compile(rf"^[ \t]*(import|from) +({'|'.join(bare)})\b", re.MULTILINE)
    files = [path for path in modules(folder) if may_be_bare.search(path.read_text())]
    assert [path for path in files if {name.partition(".")[0] for name in imported(path)} & bare] == []


def test_a_folder_that_grows_branches() -> None:
    files = Counter(str(path.parent.relative_to(ROOT)) for path in modules(*PACKAGES) if path.stem != "__init__")
    assert {folder: count for folder, count in files.items() if count > MAX_FILES} == {}


def test_the_core_is_plain_data_and_pure_functions() -> None:
    banned = {"temporalio", "fastapi", "asyncio", "time", "random", "uuid", "mcp", "uvicorn", "threading", "sqlalchemy"}
    impure = {path: {name.partition(".")[0] for name in imported(path)} & banned for path in modules("models")}
    assert {path: names for path, names in impure.items() if names} == {}


def test_each_exception_that_leaves_a_turn_is_raised_in_one_place() -> None:
    raised = [
        node.exc
        for path in modules(*PACKAGES)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise) and node.exc
    ]
    named = [exc.func if isinstance(exc, ast.Call) else exc for exc in raised]
    counts = Counter(name.id for name in named if isinstance(name, ast.Name))
    assert {name: counts[name] for name in WAYS_OUT} == dict.fromkeys(WAYS_OUT, 1)


WAYS_OUT = ("TurnFailedError", "TurnStoppedError", "TurnPausedError")


PARTS: dict[str, set[str]] = {
    "transcript": {"get"},
    "queue": {"check_waiting", "forget_below", "is_unparking_due", "remove_moved", "restore_parked", "withdraw"},
    "archive": {"record_failure", "record_success"},
    "tools": {"deny", "find", "keep_for_segment", "note_absent", "offer"},
    "started": {"close_task", "drop", "rejection", "start"},
    "own": {"end_condensing", "note_sent", "report"},
    "context": {
        *("max_tokens", "messages_to_summarise", "pop_limit_warning", "pop_room_warning"),
        *("confirm_limit", "evict", "insert_summary", "learn_limit", "restore_limit"),
    },
    "evicted": {"begin_summary", "is_summary_due", "note_failed_summary", "pop_counts"},
    "view": {"digest", "open_segment", "request"},
    "turn_slot": {
        *("add_response", "add_usage", "change", "note_request", "running", "settle_step", "append_step_to_view"),
        *("stop_waiting", "wait_until"),
    },
}
"""Methods that others may call on a session's parts: they read, raise the revision, or precede a request."""


IN_WORKFLOWS = [*modules("workflows"), *ROOT.glob("features/*/workflow/*.py"), *ROOT.glob("features/*/workflow*.py")]


@pytest.mark.parametrize("path", IN_WORKFLOWS, ids=lambda path: str(path.relative_to(ROOT)))
def test_ses_12_only_a_session_changes_its_parts(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [getattr(node, "target", None)]
        changed = [target for target in targets if isinstance(target, ast.Attribute) and part_of(target)]
        assert not changed, f"line {changed[0].lineno} sets {ast.unparse(changed[0])}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and (part := part_of(node.func)):
            assert node.func.attr in PARTS[part], f"line {node.lineno} calls {ast.unparse(node.func)}"


def part_of(attribute: ast.Attribute) -> str | None:
    """Return the part of a session that `attribute` is of, as in `session.queue.fits`."""
    owner = attribute.value
    if not isinstance(owner, ast.Attribute) or owner.attr not in PARTS:
        return None
    is_of_session = ast.unparse(owner.value).endswith(("session", "tasks")) or part_of(owner) is not None
    return owner.attr if is_of_session else None


def test_every_handler_has_a_description_and_takes_one_json_value() -> None:
    definitions = [kind.__temporal_workflow_definition for kind in (AgenticAIWorkflow, CopySession, DeleteSession)]  # type: ignore[attr-defined]
    handlers = [
        handler
        for definition in definitions
        for handler in (*definition.signals.values(), *definition.updates.values(), *definition.queries.values())
    ]
    assert len(handlers) >= 10
    assert [handler.name for handler in handlers if not handler.description] == []


def test_no_model_has_a_default_from_the_clock_or_a_random_source() -> None:
    default = re.compile(r"default_factory=(uuid|datetime)")
    files = modules("models", "stores", "workflows", "activities")
    assert [path for path in files if default.search(path.read_text())] == []


def test_importing_the_gateway_loads_no_vendors_and_tools_sdk() -> None:
    sdks = ("mcp", "anthropic", "openai", "genai_prices", "jsonschema")
    script = f"import sys, turnkeeper.api.app; print([m for m in {sdks} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
