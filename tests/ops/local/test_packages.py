"""The wheel and the source distribution, installed beside somebody else's code (OPS-1)."""

import os
import signal
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.ops.local.test_cli import LAST_LINE, Command, run

ROOT = Path(__file__).parents[3]


def build(source: Path, target: Path, *, kind: str) -> Path:
    """Build a wheel or an sdist of `source`; return the file."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(target)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = target.iterdir()
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("sdist"), kind="sdist")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"), kind="wheel")


def files_in(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/RECORD")}


def test_ops_1_a_wheel_installs_one_name_and_nothing_else(wheel: Path) -> None:
    assert {name.partition("/")[0] for name in files_in(wheel)} == {"turnkeeper", "turnkeeper-0.1.0.dist-info"}
    page = ROOT / "clients" / "page"
    page_files = {path.relative_to(ROOT) for path in page.rglob("*") if path.is_file()}
    assert {f"turnkeeper/{path.as_posix()}" for path in page_files} <= files_in(wheel)


def test_ops_1_a_source_distribution_holds_no_link_and_builds_the_same_wheel(
    sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    with tarfile.open(sdist) as packed:
        members = packed.getmembers()
        assert [member.name for member in members if not member.isfile()] == []
        assert {name for member in members if (name := member.name.split("/")[1]) and "/" in member.name} == {
            "turnkeeper",
            "LICENSE",
            "PKG-INFO",
            "README.md",
            "pyproject.toml",
            ".gitignore",
        }
        packed.extractall(tmp_path / "source", filter="data")
    (unpacked,) = (tmp_path / "source").iterdir()
    assert files_in(build(unpacked, tmp_path / "again", kind="wheel")) == files_in(wheel)


@pytest.fixture(scope="module")
def turnkeeper(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into an environment of its own; its dependencies come from the tests' environment."""
    environment = tmp_path_factory.mktemp("installed") / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(environment)}))
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet"]
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run([*pip, "--no-deps", "--ignore-installed", "--no-index", str(wheel)], check=True)
    return environment / "bin" / "turnkeeper"


@pytest.fixture
def project(folder: Path) -> Path:
    """Make a project whose packages have the names of our folders."""
    for name in ("activities", "api", "clients", "models", "ops", "stores", "workflows"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise RuntimeError('this is not the package that is wanted')\n")
    return folder


def test_ops_1_a_project_with_packages_of_the_same_names_imports_the_library(turnkeeper: Path, project: Path) -> None:
    program = "import turnkeeper.api.app as app, turnkeeper.worker\nprint(app.__file__)\n"
    (project / "use.py").write_text(program)
    used = subprocess.run([turnkeeper.with_name("python"), "use.py"], capture_output=True, text=True, check=True)
    assert Path(used.stdout).is_relative_to(turnkeeper.parents[1])


@pytest.mark.timeout(180)
async def test_ops_1_a_project_with_packages_of_the_same_names_runs_the_commands(
    turnkeeper: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The embedded server's program is among the dependencies.
    monkeypatch.setenv("PATH", f"{turnkeeper.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    for port in ("API_PORT", "TEMPORAL_PORT", "TEMPORAL_UI_PORT"):
        monkeypatch.setenv(f"TURNKEEPER_{port}", "0")
    stack = await Command.start("up", program=turnkeeper)
    try:
        await stack.until_said(LAST_LINE)
        (project / "turnkeeper-workspace" / "notes.txt").write_text("the code is 4711\n")
        code, output = await run("chat", "read notes.txt", program=turnkeeper)
        assert (code, "4711" in output) == (0, True), output
    finally:
        stack.signal(signal.SIGTERM)
        await stack.ended()
