"""The tree keeps its shape: imports run downhill, handlers tell what they take."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from workflows.agentic_ai_workflow import AgenticAIWorkflow

ROOT = Path(__file__).parents[2]
UNSHIPPED = {"benchmarks", "tests"}
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name not in UNSHIPPED)


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


def test_every_package_is_shipped_typed_and_under_the_import_contracts() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    shipped = tools["hatch"]["build"]["targets"]["wheel"]["only-include"]
    assert sorted(name for name in shipped if not name.endswith(".py")) == PACKAGES
    assert sorted(tools["mypy"]["packages"]) == PACKAGES
    assert sorted(tools["importlinter"]["root_packages"]) == PACKAGES


@pytest.mark.parametrize(
    "path", modules("models", "stores", "workflows", "activities", "api"), ids=lambda path: path.stem
)
def test_nobody_imports_the_composition_roots(path: Path) -> None:
    assert not {name.partition(".")[0] for name in imported(path)} & {"worker", "cli", "stack", "tests", "benchmarks"}


@pytest.mark.parametrize("path", modules("models"), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_core_is_plain_data_and_pure_functions(path: Path) -> None:
    banned = {"temporalio", "fastapi", "asyncio", "time", "random", "uuid", "mcp", "uvicorn", "threading", "sqlalchemy"}
    assert not {name.partition(".")[0] for name in imported(path)} & banned


def test_every_handler_has_a_description_and_takes_one_json_value() -> None:
    definition = AgenticAIWorkflow.__temporal_workflow_definition  # type: ignore[attr-defined]
    handlers = [*definition.signals.values(), *definition.updates.values(), *definition.queries.values()]
    assert len(handlers) >= 9
    assert [handler.name for handler in handlers if not handler.description] == []


@pytest.mark.parametrize("path", modules("models", "stores", "workflows", "activities"), ids=lambda path: path.stem)
def test_no_model_has_a_default_of_clock_or_chance(path: Path) -> None:
    source = path.read_text()
    assert "default_factory=uuid" not in source
    assert "default_factory=datetime" not in source


def test_importing_the_gateway_loads_no_vendors_and_tools_sdk() -> None:
    sdks = ("mcp", "anthropic", "openai", "genai_prices", "jsonschema")
    script = f"import sys, api.app; print([m for m in {sdks} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
