"""Programs from npm, as their lock files have them: installed once a machine, outside the tree."""

import os
import shutil
import subprocess
from fcntl import LOCK_EX, flock
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import pytest

INSTALL_SECONDS = 240


def node() -> Path:
    """Return a Node that is new enough: the one of Playwright."""
    playwright = find_spec("playwright")
    program = Path(playwright.origin).parent / "driver" / "node" if playwright and playwright.origin else None
    if program is None or not program.exists():
        pytest.skip("Playwright, whose Node is new enough, is not installed")
    return program


def installed(program: Path, *shared: Path) -> Path:
    """Return a folder with the files of `program` and `shared`, and the packages of the program's lock file."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    lock = (program / "package-lock.json").read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "turnkeeper-tests" / f"{program.name}-{sha256(lock).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as one_at_a_time:  # processes of one test run
        flock(one_at_a_time, LOCK_EX)
        for file in (*shared, *program.iterdir()):
            shutil.copy(file, folder)
        if not (folder / "node_modules" / ".package-lock.json").exists():  # npm writes it last
            _install([npm, "ci", "--no-audit", "--no-fund", "--silent", "--prefix", str(folder)])
    return folder


def _install(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_SECONDS)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"the packages could not be installed from their registry ({type(error).__name__})")
