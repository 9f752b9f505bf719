"""Packages from npm's registry for the tests of the page, in a folder that later runs reuse."""

import shutil
import subprocess
from pathlib import Path

import pytest

FETCH_SECONDS = 120


def npm_package(request: pytest.FixtureRequest, name: str, version: str) -> Path:
    """Return the folder of a package. Where there is no npm or no registry, the test is skipped."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"npm is not installed: {name} can't be fetched")
    assert request.config.cache is not None
    folder = request.config.cache.mkdir(f"npm-{name}-{version}")
    package = folder / "node_modules" / name
    if not (folder / "node_modules" / ".package-lock.json").exists():  # npm writes it last
        command = [npm, "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(folder), f"{name}@{version}"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=FETCH_SECONDS)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"{name}@{version} could not be fetched from its registry ({type(error).__name__})")
    return package
