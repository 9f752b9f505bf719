"""What an agent is without the code of its tools: the data of a version, which never changes (AGN-4)."""

import re
from hashlib import sha256
from typing import Annotated

from pydantic import Field

from turnkeeper.models.context.window import HistoryChange
from turnkeeper.models.ids import AGENT_NAME_PATTERN
from turnkeeper.models.limits import LimitsChange, SystemPrompt
from turnkeeper.models.session.agents import AgentConfiguration
from turnkeeper.models.session.messages import Configure, ModelName, SessionInput, configured
from turnkeeper.models.session.tools import ToolNames, ToolPolicy
from turnkeeper.models.wire import Strict

AgentName = Annotated[str, Field(pattern=rf"^{AGENT_NAME_PATTERN}$")]


class AgentData(Strict):
    """What an agent is. What it does not say is as the settings say."""

    instructions: SystemPrompt
    model: ModelName | None = None
    """`provider:name`; null: the installation's."""
    tools: ToolNames = []
    """Exactly the tools that it has, with the server of each that is not built in: `weather__forecast`."""
    tool_policy: ToolPolicy = {}
    limits: LimitsChange | None = None
    history: HistoryChange | None = None
    handoffs: list[AgentName] = Field([], max_length=50)
    """Agents that it may start as tasks."""
    tools_digest: str = Field("", max_length=64)
    """Changes with the definitions of its own tools: then it is another version."""

    @property
    def digest(self) -> str:
        """Is the same for the same data."""
        return sha256(self.text.encode()).hexdigest()

    @property
    def text(self) -> str:
        return self.model_dump_json(exclude_unset=True)

    def configuration(self, label: str, base: SessionInput) -> AgentConfiguration:
        """Return what a session has that is this agent. Raises `RejectedError`, naming a limit that is none."""
        whole = configured(base, Configure(model=self.model, limits=self.limits, history=self.history))
        return AgentConfiguration(
            label=label,
            system_prompt=self.instructions,
            model=whole.model,
            limits=whole.limits,
            history=whole.history,
            tools=self.tools,
            tool_policy=self.tool_policy,
            handoffs=self.handoffs,
        )


def name_and_version(label: str) -> tuple[str, int | None]:
    """Return what a caller means by `weather` or `weather@7`. Raises `ValueError`.

    >>> name_and_version("weather@7"), name_and_version("weather")
    (('weather', 7), ('weather', None))
    """
    parts = re.fullmatch(rf"({AGENT_NAME_PATTERN})(?:@([1-9][0-9]{{0,8}}))?", label)
    if parts is None:
        raise ValueError("write the name of an agent, or NAME@VERSION")
    return parts[1], int(parts[2]) if parts[2] else None
