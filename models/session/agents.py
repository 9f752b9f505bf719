"""What a version of an agent is, as part of a session's configuration (AGN-2, AGN-4)."""

import re
from collections.abc import Mapping

from turnkeeper.models.context.window import ConversationHistoryConfig
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.tools import ToolNames, ToolPolicy
from turnkeeper.models.wire import Frozen


class AgentConfiguration(Frozen):
    """One version of an agent: a session that is started with it takes all of this over."""

    label: str
    """Name and version, as in `weather@2`."""
    system_prompt: str
    model: str
    limits: Limits = Limits()
    history: ConversationHistoryConfig = ConversationHistoryConfig()
    tools: ToolNames = []
    tool_policy: ToolPolicy = {}
    handoffs: list[str] = []
    """The names of agents that `run_task` may name."""


class AgentChange(Frozen):
    """The agent that a session is to be. `others`, by name: those that it may hand over to, at any depth."""

    agent: AgentConfiguration
    others: dict[str, AgentConfiguration] = {}


def filled(instructions: str, values: Mapping[str, str]) -> str:
    """Return instructions with the values of these names; other braces stay.

    >>> filled("Serve {user} on {today}: {shop} {}", {"user": "anna", "today": "2026-11-28"})
    'Serve anna on 2026-11-28: {shop} {}'
    """
    return re.sub(r"\{([A-Za-z_]\w*)\}", lambda match: values.get(match[1], match[0]), instructions)
