"""A file's agents as data: read in a process of its own, and registered as versions (AGN-4)."""

import asyncio
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from turnkeeper.features.agents.agent import Agent
from turnkeeper.features.agents.agent_file import AgentFileError
from turnkeeper.features.agents.versions import AgentData, AgentVersion, AgentVersions

DESCRIBE_SECONDS = 30.0
"""How long a file may take to load."""

DESCRIBE = "--describe"
"""Option of `turnkeeper tools FILE`: print the agents, and serve nothing."""

RUN_TASK = "run_task"


def server_name(file: Path) -> str:
    """Return the name of a file's tool server, which patterns of policies name.

    >>> server_name(Path("my__shop.v2.py"))
    'my_shop_v2'
    """
    words = "".join(char if char.isascii() and char.isalnum() else "_" for char in file.stem).split("_")
    return "_".join(filter(None, words)) or "tools"


def data_of(agent: Agent, server: str) -> dict[str, Any]:
    """Return what `AgentData` has of an agent whose own tools are those of `server`, which policies have to name."""
    own = {one.name: f"{server}__{one.name}" for one in agent.own_tools}
    policy = {own.get(pattern, pattern): decision for pattern, decision in agent.tool_policy.items()}
    for one in agent.own_tools:
        if one.ask is not None:
            policy.setdefault(own[one.name], "ask" if one.ask else "allow")
    names = [one if isinstance(one, str) else own[one.name] for one in agent.tools]
    data = {
        "instructions": agent.instructions,
        "model": agent.model,
        "tool_policy": policy,
        "limits": agent.limits,
        "history": agent.history,
        "handoffs": [one.name for one in agent.handoffs],
    }
    given = {name: value for name, value in data.items() if value}
    return {**given, "tools": [*names, *([RUN_TASK] if agent.handoffs else [])]}


def description(agents: Sequence[Agent], file: Path) -> str:
    """Return agents as the JSON text that `read_agents` reads."""
    return json.dumps({agent.name: data_of(agent, server_name(file)) for agent in agents})


def tools_command(file: Path, *options: str) -> list[str]:
    """Return the command of a file's tool process."""
    return [sys.executable, "-P", "-m", "turnkeeper", "tools", str(file), *options]


async def read_agents(file: Path) -> dict[str, AgentData]:
    """Return the agents in a file by name, in their order.

    The file is run in another process: what it does when it is loaded can't hurt this one.

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
        process.kill()
        await process.wait()
        raise AgentFileError(f"{file}: it took over {DESCRIBE_SECONDS:g} s to load.") from None
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise AgentFileError(lines[-1] if lines else f"{file}: its process ended with {process.returncode}.")
    described: dict[str, Any] = json.loads(output)
    return {name: AgentData.model_validate(data) for name, data in described.items()}


async def register(agents: dict[str, AgentData], versions: AgentVersions, *, now: datetime) -> list[AgentVersion]:
    """Store agents as versions, and return them. Raises `StoreUnavailableError`."""
    return [await versions.add(name, data, now=now) for name, data in agents.items()]
