"""The wheel and the source distribution, installed alone and beside somebody else's code (OPS-1, OPS-12)."""

import os
import signal
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
    packages = install(wheel, environment)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin" / "turnkeeper"


def install(wheel: Path, environment: Path) -> Path:
    """Install the wheel without dependencies into a new environment; return the folder of its packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--ignore-installed", "--no-index", str(wheel)], check=True)
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(environment)}))


@pytest.fixture(scope="module")
def client_alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel and what it depends on without extras; return the environment's Python."""
    environment = tmp_path_factory.mktemp("alone") / "environment"
    packages = install(wheel, environment)
    needed = list(needed_by(packages))
    assert len(needed) <= 12
    for each in needed:
        for name in {file.parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(Path(str(each.locate_file(name))))
    return environment / "bin" / "python"


def needed_by(packages: Path) -> Iterator[Distribution]:
    """Yield the distributions that ours in `packages` needs without extras, and what those need."""
    (ours,) = Distribution.discover(path=[str(packages)])
    pending, names = [ours], set[str]()
    while pending:
        for text in pending.pop().requires or ():
            requirement = Requirement(text)
            name = canonicalize_name(requirement.name)
            if name not in names and (not requirement.marker or requirement.marker.evaluate({"extra": ""})):
                names.add(name)
                pending.append(distribution(requirement.name))
                yield pending[-1]


def test_ops_12_the_wheel_alone_is_the_python_client(client_alone: Path) -> None:
    script = """if True:
        import sys, time
        began = time.process_time()
        from turnkeeper import Conversation, GatewayClient, GatewayProblemError
        print(time.process_time() - began)
        GatewayClient("http://127.0.0.1:1")
        for name in ("alembic", "fastapi", "mcp", "pydantic_settings", "sqlalchemy", "temporalio", "uvicorn"):
            try:
                __import__(name)
            except ModuleNotFoundError:
                continue
            print(name, "is installed")
    """
    seconds = []
    for _ in range(3):  # the first one compiles
        ran = subprocess.run([client_alone, "-c", script], capture_output=True, text=True, check=True)
        first, *others = ran.stdout.splitlines()
        assert others == []
        seconds.append(float(first))
    assert min(seconds) < 0.4


@pytest.mark.parametrize(
    ("command", "extra"), [("api", "server"), ("chat", "cli"), ("up", "all"), ("worker", "worker")]
)
def test_ops_12_a_command_without_its_extra_says_what_to_install(client_alone: Path, command: str, extra: str) -> None:
    program = client_alone.with_name("turnkeeper")
    ran = subprocess.run([program, command], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == f"'turnkeeper {command}' needs the package typer: pip install 'turnkeeper[{extra}]'\n"


def test_ops_12_the_client_is_typed(client_alone: Path, tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(
        """if True:
    from turnkeeper import Configure, Conversation, GatewayClient, GatewayProblemError

    async def ask(text: str) -> Conversation:
        async with GatewayClient("http://127.0.0.1:8080") as gateway:
            try:
                session = await gateway.start(prompt=text)
            except GatewayProblemError as error:
                print(error.problem.title)
                raise
            await gateway.configure(session.workflow_id, Configure(title="A question"))
            conversation = Conversation()
            async for event in gateway.events(session.workflow_id):
                print(event)
            return conversation
    """
    )
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", client_alone, "--cache-dir", tmp_path]
    checked = subprocess.run([*mypy, "use.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.stdout == "Success: no issues found in 1 source file\n"


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
