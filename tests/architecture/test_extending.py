"""A provider or a route that was forgotten somewhere is noticed: the places of `docs/extending.md` (AGT-4, API-7)."""

import pkgutil
import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest
from fastapi import APIRouter

from turnkeeper.activities.providers.provider import provider_class
from turnkeeper.api import routes
from turnkeeper.api.app import create_app
from turnkeeper.api.http.openapi import errors
from turnkeeper.api.problems import KINDS, ProblemName
from turnkeeper.models.ids import BUILT_IN_PROVIDERS, split_model
from turnkeeper.models.settings.settings import ENV_PREFIX, VENDORS_MODELS, Settings
from turnkeeper.ops.local.processes import gateway_environment

ROOT = Path(__file__).parents[2]

_ROW = re.compile(r"^\| `([\w./]+)` \| (.*?) \|", re.MULTILINE)


@pytest.mark.parametrize("name", BUILT_IN_PROVIDERS)
def test_agt_4_a_provider_is_what_its_line_says(name: str) -> None:
    vendor = provider_class(name).vendor
    assert vendor.name == name
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert vendor.package in ("", *extras)
    variable = vendor.key if vendor.key.isupper() else ENV_PREFIX + vendor.key.upper().replace(".", "__")
    assert not vendor.key or gateway_environment({variable: "sk-1"}) == {}, "only workers get keys"


def test_agt_4_a_vendors_key_selects_the_vendors_example_model() -> None:
    vendors = [provider_class(split_model(model)[0]).vendor for model in VENDORS_MODELS.values()]
    assert {vendor.key: f"{vendor.name}:{vendor.example}" for vendor in vendors} == VENDORS_MODELS


KNOW_A_VENDOR = {
    "models/ids.py": "the list",
    "models/transcript/model_call.py": "OpenAI's maximum of tools, which a session shows",
}


def test_agt_4_a_provider_is_a_folder_a_line_and_a_fault_server() -> None:
    table = (ROOT / "docs" / "extending.md").read_text().partition("## A model provider")[2].partition("\n## ")[0]
    assert len(_ROW.findall(table)) == 3
    names = re.compile(rf"\"(?:{'|'.join(set(BUILT_IN_PROVIDERS) - {'offline'})})\"")
    folders = ("activities", "api", "clients", "features", "models", "ops", "stores", "workflows")
    files = {*ROOT.glob("*.py"), *(path for folder in folders for path in (ROOT / folder).rglob("*.py"))}
    known_by = {path.relative_to(ROOT).as_posix() for path in files if names.search(path.read_text())}
    assert {path for path in known_by if not path.startswith("activities/providers/")} == {*KNOW_A_VENDOR}


def test_api_7_every_module_of_routes_is_part_of_the_gateway(tmp_path: Path) -> None:
    paths = {path for path, _ in operations(tmp_path)}
    modules = [import_module(f"{routes.__name__}.{module.name}") for module in pkgutil.iter_modules(routes.__path__)]
    routers = [one for module in modules for one in vars(module).values() if isinstance(one, APIRouter)]
    declared = {route.path for router in routers for route in router.routes}  # type: ignore[attr-defined]
    assert len(declared) > 15
    assert declared - paths == set()


def operations(folder: Path) -> dict[tuple[str, str], str]:
    """Return the ids of the OpenAPI document's operations, by path and method."""
    paths = create_app(Settings(state_dir=folder)).openapi()["paths"]
    return {
        (path, method): operation["operationId"]
        for path, methods in paths.items()
        for method, operation in methods.items()
    }


def test_the_places_to_extend_exist() -> None:
    rows = _ROW.findall((ROOT / "docs" / "extending.md").read_text())
    assert len(rows) > 10
    for path, text in rows:
        other_files = re.findall(r"`([\w/]+/\w+\.\w+)`", text)
        content = "".join((ROOT / file).read_text() for file in (path, *other_files, "models/session/session.py"))
        states = "".join(file.read_text() for name in ("models", "features") for file in (ROOT / name).rglob("*.py"))
        names = re.findall(r"`(_?\w+)`", text)
        assert [name for name in names if name not in content and f"class {name}(" not in states] == [], path


def test_a_route_takes_at_most_three_places() -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    table = page.partition("## A route\n")[2].partition("\n\nThen")[0]
    assert 0 < len(_ROW.findall(table)) <= 3


def test_the_tests_that_the_checklists_name_exist() -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in re.findall(r"`(test_\w+)`", page) if f"def {name}(" not in tests] == []
    assert [path for path in re.findall(r"`(tests/[\w/]+\.\w+)`", page) if not (ROOT / path).exists()] == []


def test_api_7_every_error_of_the_document_has_a_meaning() -> None:
    assert list(KINDS) == list(get_args(ProblemName))
    with pytest.raises(KeyError):
        errors("internal")
