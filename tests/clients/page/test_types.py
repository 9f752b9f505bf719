"""The page's modules are checked as strictly as the Python is: by the types in their comments (API-5)."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.servers.from_registries import npm_package
from turnkeeper.api.app import create_app
from turnkeeper.models.settings.settings import Settings

PAGE = Path(__file__).parents[3] / "clients" / "page"
WIRE = PAGE / "conversation" / "wire.js"
CHECK = Path(__file__).with_name("wire_check.ts")

STRICT = {
    "allowJs": True,
    "checkJs": True,
    "noEmit": True,
    "strict": True,
    "target": "es2024",
    "module": "es2022",
    "moduleResolution": "bundler",
    "lib": ["es2024", "dom", "dom.iterable"],
    "types": [],
    "skipLibCheck": True,
}


def run_node(script: Path, *arguments: str) -> list[str]:
    """Return the lines that a script of a package prints, which are none where it succeeds in silence."""
    command = [shutil.which("node") or "node", str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


@pytest.fixture(scope="module")
def type_errors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The compiler's errors in the page's modules and in the comparison with the OpenAPI document; it runs once."""
    folder = tmp_path_factory.mktemp("types")
    generator = npm_package(request.config.cache, "openapi-typescript@7.13.0") / "bin" / "cli.js"
    document, described = folder / "openapi.json", folder / "openapi.ts"
    document.write_text(json.dumps(create_app(Settings(state_dir=folder)).openapi()))
    run_node(generator, str(document), "--output", str(described), "--default-non-nullable", "false")
    compiler = npm_package(request.config.cache, "typescript@5.9.3") / "bin" / "tsc"
    paths = {"openapi": [str(described)], "page/*": [f"{PAGE}/*"]}
    files = [str(path) for path in (*sorted(PAGE.rglob("*.js")), CHECK)]
    project = {"compilerOptions": {**STRICT, "paths": paths}, "files": files}
    (folder / "tsconfig.json").write_text(json.dumps(project))
    return run_node(compiler, "--project", str(folder))


def test_api_5_the_modules_of_the_page_pass_a_strict_type_check(type_errors: list[str]) -> None:
    assert [error for error in type_errors if CHECK.name not in error] == []


def test_api_5_the_types_of_the_page_match_the_openapi_document(type_errors: list[str]) -> None:
    assert [error for error in type_errors if CHECK.name in error] == []


def test_api_5_every_wire_type_is_compared() -> None:
    names_alone = WIRE.read_text()
    while "{" in names_alone:
        names_alone = re.sub(r"{[^{}]*}", "", names_alone)
    types = re.findall(r"@typedef[\s*]+(\w+)", names_alone)
    compared = re.findall(r"^  (\w+): Reads<page\.\1, ", CHECK.read_text(), re.MULTILINE)
    assert sorted(compared) == sorted(types)
