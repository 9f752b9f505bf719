"""The page's modules are checked as strictly as the Python is: by the types in their comments (API-5)."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.page.from_npm import npm_package

STATIC = Path(__file__).parents[3] / "clients" / "page"

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
}


def test_api_5_the_modules_of_the_page_pass_a_strict_type_check(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    compiler = npm_package(request, "typescript", "5.9.3") / "bin" / "tsc"
    project = {"compilerOptions": STRICT, "files": [str(path) for path in sorted(STATIC.rglob("*.js"))]}
    (tmp_path / "tsconfig.json").write_text(json.dumps(project))
    node = shutil.which("node") or "node"
    checked = subprocess.run(
        [node, str(compiler), "--project", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout) == (0, "")
