"""A file with agents: loading it, and what is in it (AGN-1)."""

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from turnkeeper.features.agents.agent import Agent
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
    agents = {id(one): one for one in vars(_run(file)).values() if isinstance(one, Agent)}
    for agent in list(agents.values()):
        agents |= {id(one): one for one in agent.handoffs}
    names = [agent.name for agent in agents.values()]
    if not names:
        raise AgentFileError(f"{file}: there is no agent in it. Write agent = Agent(…) at its top level.")
    if twice := {name for name in names if names.count(name) > 1}:
        raise AgentFileError(f"{file}: two agents are called {sorted(twice)[0]!r}.")
    tools_of(list(agents.values()), file)
    return list(agents.values())


def tools_of(agents: list[Agent], file: Path) -> list[Tool]:
    """Return the own tools of agents, each once. Raises `AgentFileError` if two have the same name."""
    tools = dict[str, Tool]()
    for agent in agents:
        for one in agent.own_tools:
            if tools.setdefault(one.name, one) is not one:
                raise AgentFileError(f"{file}: two tools are called {one.name!r}.")
    return list(tools.values())


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
    text = str(error).splitlines()[0] if str(error) else "no text"
    return f"{type(error).__name__}: {text}{where}"
