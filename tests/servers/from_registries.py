"""Tool servers that nobody here wrote, fetched from their registries into a folder that later runs find again."""

import shutil
import subprocess
import sys
import venv

import pytest

TIME = "mcp-server-time==2026.10.19"
"""Anthropic's reference server of the time, in Python, by the SDK we use too: the newest protocol."""

EVERYTHING = "@modelcontextprotocol/server-everything@2026.8.31"
"""The reference server of all that MCP has, in TypeScript: another SDK, an older protocol, stdio and HTTP."""

FETCH_SECONDS = 120


def time_server(cache: pytest.Cache) -> list[str]:
    """Return the command of the server of the time, in an environment of its own."""
    folder = cache.mkdir("mcp-server-time-2026.10.19")
    program = folder / "bin" / "mcp-server-time"
    if not program.exists():
        venv.create(folder, clear=True)
        installer = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
        _fetch([*installer, "install", "--quiet", "--no-compile", TIME], TIME)
    return [str(program)]


def everything_server(cache: pytest.Cache) -> list[str]:
    """Return the command of the server of everything, to which a transport is added."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed: the server of another SDK cannot be run")
    folder = cache.mkdir("server-everything-2026.8.31")
    program = folder / "node_modules" / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
    if not program.exists():
        _fetch([npm, "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(folder), EVERYTHING], EVERYTHING)
    return [node, str(program)]


def _fetch(command: list[str], package: str) -> None:
    """Run an installer. Where its registry can't be reached, the test is skipped."""
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=FETCH_SECONDS)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"{package} could not be fetched from its registry ({type(error).__name__})")
