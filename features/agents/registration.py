"""A file's agents, read in a process of their own (AGN-3, AGN-4). It loads neither the file nor a database."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnkeeper.features.agents.agent_file import AgentFileError

LOOK_SECONDS = 0.2
"""How often files are looked at that are reloaded when they are saved."""

DESCRIBE_SECONDS = 30.0
"""How long a file may take to load."""

DESCRIBE = "--describe"
"""Option of `turnkeeper tools FILE`: print what is in it, and serve nothing."""


@dataclass(frozen=True)
class AgentFile:
    """What is in a file: its agents' data by name, in their order, and the Python files that it consists of."""

    agents: dict[str, dict[str, Any]]
    files: tuple[Path, ...]


def tools_command(file: Path, *options: str) -> list[str]:
    """Return the command of a file's tool process."""
    return [sys.executable, "-P", "-m", "turnkeeper", "tools", str(file), *options]


async def read_agents(file: Path) -> AgentFile:
    """Run a file in another process, and return what is in it: nothing that it does can hurt this one.

    Raises:
        AgentFileError: it does not load; the message says why, and in which line.
    """
    process = await asyncio.create_subprocess_exec(
        *tools_command(file, DESCRIBE),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(DESCRIBE_SECONDS):
            output, errors = await process.communicate()
    except TimeoutError:
        raise AgentFileError(f"{file}: it took over {DESCRIBE_SECONDS:g} s to load.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise AgentFileError(lines[-1] if lines else f"{file}: its process ended with {process.returncode}.")
    described = json.loads(output.splitlines()[-1])  # the file itself may have printed something before
    return AgentFile(described["agents"], tuple(map(Path, described["files"])))


def neighbours(file: Path) -> list[Path]:
    """Return the Python files beside one: which of them it consists of is unknown until it loads."""
    return sorted(file.parent.glob("*.py"))


def stamps(files: Iterable[Path]) -> dict[Path, int]:
    """Return when each file was saved, in nanoseconds; one that is not there now, as in a save, is left out."""
    result = dict[Path, int]()
    for file in files:
        with contextlib.suppress(OSError):
            result[file] = file.stat().st_mtime_ns
    return result


async def saved(*files: Path, before: Mapping[Path, int] | None = None) -> dict[Path, int]:
    """Wait until one of these files is saved, and return when each one was; `before`: when each one was, if known."""
    seen = {**stamps(files), **(before or {})}
    while (now := stamps(files)) == {file: seen[file] for file in files if file in seen}:  # noqa: ASYNC110  # nobody tells
        await asyncio.sleep(LOOK_SECONDS)
    return now
