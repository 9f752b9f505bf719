"""`Agent`: instructions, a model, tools and rules under one name (AGN-2).

It is data: a worker registers it as a version (`versions.py`), and a session that is started with it keeps that one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnkeeper.features.agents.skills import Skill, SkillError
from turnkeeper.features.agents.tool import Tool
from turnkeeper.models.ids import AGENT_NAME_PATTERN


class AgentDefinitionError(ValueError):
    """An agent is not complete or contradicts itself. The message says what is wrong, and what is allowed."""


@dataclass(frozen=True)
class Agent:
    """An agent.

    >>> Agent("weather", instructions="Answer in one sentence.", tools=["file_read"]).name
    'weather'
    """

    name: str
    """Lower-case letters, digits, `-` and `_`, at most 64."""
    instructions: str = field(kw_only=True)
    """What the model is told. `{user}`, `{today}` and the session's variables are filled in; other braces stay."""
    model: str | None = field(default=None, kw_only=True)
    """`provider:name`; by default the installation's."""
    tools: Sequence[Tool | str] = field(default=(), kw_only=True)
    """Exactly the tools that it has: functions with `@tool`, or names of built-in or configured ones, as `file_read`
    or `issues__*`."""
    tool_policy: dict[str, str] = field(default_factory=dict, kw_only=True)
    """Patterns of tools to `allow`, `ask` or `deny`."""
    limits: dict[str, Any] = field(default_factory=dict, kw_only=True)
    history: dict[str, Any] = field(default_factory=dict, kw_only=True)
    handoffs: Sequence["Agent"] = field(default=(), kw_only=True)
    """Agents that it may start as tasks; with them it has the tool `run_task`."""
    skills: Sequence[Path | str] = field(default=(), kw_only=True)
    """Folders with a `SKILL.md`, best as `Path(__file__).parent / "returns"`; with them it has the tool `skill`."""

    def __post_init__(self) -> None:
        if not re.fullmatch(AGENT_NAME_PATTERN, self.name):
            raise AgentDefinitionError(
                f"The agent {self.name!r} needs another name: lower-case letters, digits, - and _, at most 64."
            )
        if self.name == "default":
            raise AgentDefinitionError("An agent can't be called 'default': that is what the settings say.")
        if not self.instructions.strip():
            raise AgentDefinitionError(f"The agent {self.name!r} has no instructions.")
        for one in self.tools:
            if not isinstance(one, Tool | str):
                raise AgentDefinitionError(
                    f"The agent {self.name!r} has the tool {one!r}, which is neither a name nor a function with @tool."
                )
        try:
            self.read_skills()
        except SkillError as error:
            raise AgentDefinitionError(f"The agent {self.name!r} has a skill that can't be read: {error}") from error
        names = [one if isinstance(one, str) else one.name for one in self.tools]
        if twice := {name for name in names if names.count(name) > 1}:
            raise AgentDefinitionError(f"The agent {self.name!r} has the tool {sorted(twice)[0]!r} twice.")

    def read_skills(self) -> list[Skill]:
        """Return its skills, as their folders have them now. Raises `SkillError`."""
        return [Skill.read(Path(folder)) for folder in self.skills]

    @property
    def own_tools(self) -> list[Tool]:
        return [one for one in self.tools if isinstance(one, Tool)]
