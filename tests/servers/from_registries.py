"""Programs of others, such as tool servers, installed from their registries into folders that later runs reuse."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

TIME = "mcp-server-time==2026.10.19"
"""Anthropic's reference server of the time, in Python, by the SDK we use too: the newest protocol."""

BESIDE_TIME = ["tzdata==2026.6", "tzlocal==5.4.5"]
"""Its dependencies that we don't have; the SDK is installed already."""

EVERYTHING = "@modelcontextprotocol/server-everything@2026.8.31"
"""The reference server of all that MCP has, in TypeScript: another SDK, an older protocol, stdio and HTTP."""

FILES = "@modelcontextprotocol/server-filesystem@2026.8.31"
"""The reference server of files, in TypeScript. Most of its tools have an `outputSchema`."""

FETCH_SECONDS = 120


def time_server(cache: pytest.Cache) -> dict[str, object]:
    """Return the entry of the server of the time in `mcp.json`: its program, and where what it needs is."""
    folder = cache.mkdir("mcp-server-time-2026.10.19-alone")
    program = folder / "bin" / "mcp-server-time"
    if not program.exists():
        installer = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps"]
        _fetch(folder, lambda target: [*installer, "--target", target, TIME, *BESIDE_TIME], TIME)
    return {"command": sys.executable, "args": [str(program)], "env": {"PYTHONPATH": str(folder)}}


def everything_server(cache: pytest.Cache) -> list[str]:
    """Return the command of the server of everything, to which a transport is added."""
    return _from_npm(cache, EVERYTHING)


def file_server(cache: pytest.Cache) -> list[str]:
    """Return the command of the server of files, to which folders are added."""
    return _from_npm(cache, FILES)


def npm_package(cache: pytest.Cache, package: str) -> Path:
    """Return the folder of `NAME@VERSION`. Where there is no npm or no registry, the test is skipped."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"npm is not installed: {package} can't be fetched")
    folder = cache.mkdir(f"npm-{package.rpartition('/')[2].replace('@', '-')}")
    installed = folder / "node_modules" / package.rpartition("@")[0]
    if not installed.exists():
        installer = [npm, "install", "--no-audit", "--no-fund", "--silent"]
        _fetch(folder, lambda target: [*installer, "--prefix", target, package], package)
    return installed


def _from_npm(cache: pytest.Cache, package: str) -> list[str]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the server of another SDK cannot be run")
    return [node, str(npm_package(cache, package) / "dist" / "index.js")]


def _fetch(folder: Path, command: Callable[[str], list[str]], package: str) -> None:
    """Install into the empty `folder`, as a whole: several processes of a test run may install the same at once.

    Where the registry can't be reached, the test is skipped.
    """
    with TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as new:
        try:
            subprocess.run(command(new), check=True, capture_output=True, timeout=FETCH_SECONDS)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"{package} could not be fetched from its registry ({type(error).__name__})")
        with suppress(OSError):  # another process was quicker
            Path(new).rename(folder)
