"""A file with agents: loading it, and what is in it as data (AGN-1, AGN-4).

Only a process of its own loads one (`registration.py`): it is somebody's code, which may do anything.
"""

import importlib.util
import json
import sys
import traceback
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from turnkeeper.features.agents.agent import Agent
from turnkeeper.features.agents.skills import TOOL as SKILL_TOOL
from turnkeeper.features.agents.skills import skill_tool, with_skills
from turnkeeper.features.agents.tool import Tool
from turnkeeper.models.errors import TurnkeeperError

MODULE = "turnkeeper_agents"
"""The name that a file is loaded under: one of its own, so that it can be called `models.py`."""


class AgentFileError(TurnkeeperError):
    """A file has no agents, or does not load. The message names its line."""


def load_agents(file: Path) -> list[Agent]:
    """Run a file, and return the agents in it, in their order, each name once.

    Raises:
        AgentFileError: there is no such file, it raises, or there is no agent in it.
    """
    if not file.is_file():
        raise AgentFileError(f"{file}: there is no such file.")
    agents = with_handoffs([one for one in vars(_run(file)).values() if isinstance(one, Agent)])
    names = [agent.name for agent in agents]
    if not names:
        raise AgentFileError(f"{file}: there is no agent in it. Write agent = Agent(…) at its top level.")
    if twice := {name for name in names if names.count(name) > 1}:
        raise AgentFileError(f"{file}: two agents are called {sorted(twice)[0]!r}.")
    tools_of(agents, file)
    return agents


def with_handoffs(agents: Sequence[Agent]) -> list[Agent]:
    """Return agents with all that they hand over to, each once; those that nobody hands over to come first."""
    result, missing = dict[int, Agent](), list(agents)
    while missing:
        agent = missing.pop(0)
        if id(agent) not in result:
            result[id(agent)] = agent
            missing += agent.handoffs
    handed_to = {id(other) for agent in result.values() for other in agent.handoffs}
    return sorted(result.values(), key=lambda agent: id(agent) in handed_to)


def tools_of(agents: Sequence[Agent], where: object) -> list[Tool]:
    """Return the own tools of agents, each once, with the one that reads their skills.

    Raises `AgentFileError` if two have the same name.
    """
    skills = {agent.name: agent.read_skills() for agent in agents if agent.skills}
    all_tools = [one for agent in agents for one in agent.own_tools] + ([skill_tool(skills)] if skills else [])
    tools = dict[str, Tool]()
    for one in all_tools:
        if tools.setdefault(one.name, one) is not one:
            raise AgentFileError(f"{where}: two tools are called {one.name!r}.")
    return list(tools.values())


RUN_TASK = "run_task"


def server_name(file: Path) -> str:
    """Return the name of a file's tool server, which patterns of policies name.

    >>> server_name(Path("my__shop.v2.py"))
    'my_shop_v2'
    """
    words = "".join(char if char.isascii() and char.isalnum() else "_" for char in file.stem).split("_")
    return "_".join(filter(None, words)) or "tools"


def description(file: Path) -> str:
    """Load a file, and return as JSON what `read_agents` reads: its agents' data, and the files that it consists of.

    Raises:
        AgentFileError: it does not load, or an agent has an invalid value.
    """
    from turnkeeper.features.agents.agent_data import AgentData

    agents = dict[str, Any]()
    for agent in load_agents(file):
        try:
            agents[agent.name] = AgentData(**data_of(agent, server_name(file))).model_dump(exclude_unset=True)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            raise AgentFileError(f"{file}: the agent {agent.name!r}: {field}: {first['msg']}") from error
    folder = file.parent.resolve()
    modules = {getattr(module, "__file__", None) for module in sys.modules.values()}
    own = {one for one in modules if one and Path(one).is_relative_to(folder) and "site-packages" not in one}
    return json.dumps({"agents": agents, "files": sorted({str(file.resolve()), *own})})


def data_of(agent: Agent, server: str) -> dict[str, Any]:
    """Return what `AgentData` has of an agent whose own tools are those of `server`, which policies have to name."""
    own = {one.name: f"{server}__{one.name}" for one in agent.own_tools}
    policy = {own.get(pattern, pattern): decision for pattern, decision in agent.tool_policy.items()}
    for one in agent.own_tools:
        if one.ask is not None:
            policy.setdefault(own[one.name], "ask" if one.ask else "allow")
    names = [one if isinstance(one, str) else own[one.name] for one in agent.tools]
    definitions: list[object] = [[one.name, one.description, one.effect, one.input_schema] for one in agent.own_tools]
    instructions = agent.instructions
    if skills := agent.read_skills():
        instructions = with_skills(instructions, skills)
        names.append(f"{server}__{SKILL_TOOL}")
        definitions += [one.digest for one in skills]
    data = {
        "instructions": instructions,
        "model": agent.model,
        "tool_policy": policy,
        "limits": agent.limits,
        "history": agent.history,
        "handoffs": [one.name for one in agent.handoffs],
        "tools_digest": sha256(json.dumps(definitions).encode()).hexdigest()[:16] if definitions else "",
    }
    non_empty = {name: value for name, value in data.items() if value}
    return {**non_empty, "tools": [*names, *([RUN_TASK] if agent.handoffs else [])]}


def _run(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(MODULE, file)
    if spec is None or spec.loader is None:
        raise AgentFileError(f"{file}: it is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module  # for pydantic, which looks for a model's module
    sys.path.insert(0, str(file.parent.resolve()))  # for its own imports
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise AgentFileError(f"{file}: {_reason(error, file)}") from error
    return module


def _reason(error: BaseException, file: Path) -> str:
    """Return what happened, with the last line of the file that took part in it."""
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename).resolve() == file.resolve():
            line = frame.lineno
    where = f" (line {line})" if line else ""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    text = text.splitlines()[0] if text else "no text"
    return f"{type(error).__name__}: {text}{where}"
