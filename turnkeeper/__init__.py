"""Durable AI-agent sessions on Temporal: agents and tools of one's own, and the Python client of a gateway.

    from turnkeeper import Agent, GatewayClient, tool

Names are loaded when they are first used: the processes of a stack need none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnkeeper.api.app import create_app as create_app
    from turnkeeper.api.callers import Caller as Caller
    from turnkeeper.api.callers import Role as Role
    from turnkeeper.clients.python.attachments import read_attachment as read_attachment
    from turnkeeper.clients.python.conversation import Conversation as Conversation
    from turnkeeper.clients.python.conversation import Event as Event
    from turnkeeper.clients.python.gateway import GatewayClient as GatewayClient
    from turnkeeper.clients.python.request_sender import CopyFailedError as CopyFailedError
    from turnkeeper.clients.python.request_sender import GatewayError as GatewayError
    from turnkeeper.clients.python.request_sender import GatewayProblemError as GatewayProblemError
    from turnkeeper.clients.python.request_sender import GatewayUnreachableError as GatewayUnreachableError
    from turnkeeper.clients.python.request_sender import GatewayUnreadableError as GatewayUnreadableError
    from turnkeeper.clients.python.request_sender import Problem as Problem
    from turnkeeper.features.agents.agent import Agent as Agent
    from turnkeeper.features.agents.agent import AgentDefinitionError as AgentDefinitionError
    from turnkeeper.features.agents.plugin import TurnkeeperPlugin as TurnkeeperPlugin
    from turnkeeper.features.agents.tool import Image as Image
    from turnkeeper.features.agents.tool import Tool as Tool
    from turnkeeper.features.agents.tool import ToolContext as ToolContext
    from turnkeeper.features.agents.tool import ToolDefinitionError as ToolDefinitionError
    from turnkeeper.features.agents.tool import ToolError as ToolError
    from turnkeeper.features.agents.tool import tool as tool
    from turnkeeper.models.errors import TurnkeeperError as TurnkeeperError
    from turnkeeper.models.session.messages import Configure as Configure
    from turnkeeper.models.settings.settings import Settings as Settings
    from turnkeeper.models.settings.settings import SettingsError as SettingsError
    from turnkeeper.models.settings.settings import load_settings as load_settings

_MODULES = {
    "Agent": "features.agents.agent",
    "AgentDefinitionError": "features.agents.agent",
    "Caller": "api.callers",
    "Configure": "models.session.messages",
    "Conversation": "clients.python.conversation",
    "CopyFailedError": "clients.python.request_sender",
    "Event": "clients.python.conversation",
    "GatewayClient": "clients.python.gateway",
    "GatewayError": "clients.python.request_sender",
    "GatewayProblemError": "clients.python.request_sender",
    "GatewayUnreachableError": "clients.python.request_sender",
    "GatewayUnreadableError": "clients.python.request_sender",
    "Image": "features.agents.tool",
    "Problem": "clients.python.request_sender",
    "Role": "api.callers",
    "Settings": "models.settings.settings",
    "SettingsError": "models.settings.settings",
    "Tool": "features.agents.tool",
    "ToolContext": "features.agents.tool",
    "ToolDefinitionError": "features.agents.tool",
    "ToolError": "features.agents.tool",
    "TurnkeeperError": "models.errors",
    "TurnkeeperPlugin": "features.agents.plugin",
    "create_app": "api.app",
    "load_settings": "models.settings.settings",
    "read_attachment": "clients.python.attachments",
    "tool": "features.agents.tool",
}


if not TYPE_CHECKING:  # a type checker would take every name for one of ours

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module 'turnkeeper' has no attribute {name!r}")
        return getattr(import_module(f"turnkeeper.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*_MODULES, *globals()]
