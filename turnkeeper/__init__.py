"""Durable AI-agent sessions on Temporal: the Python client of a gateway.

    from turnkeeper import GatewayClient

Names are loaded when they are first used: the processes of a stack need none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from turnkeeper.models.errors import TurnkeeperError as TurnkeeperError
    from turnkeeper.models.session.messages import Configure as Configure

_MODULES = {
    "Configure": "models.session.messages",
    "Conversation": "clients.python.conversation",
    "CopyFailedError": "clients.python.request_sender",
    "Event": "clients.python.conversation",
    "GatewayClient": "clients.python.gateway",
    "GatewayError": "clients.python.request_sender",
    "GatewayProblemError": "clients.python.request_sender",
    "GatewayUnreachableError": "clients.python.request_sender",
    "GatewayUnreadableError": "clients.python.request_sender",
    "Problem": "clients.python.request_sender",
    "TurnkeeperError": "models.errors",
    "read_attachment": "clients.python.attachments",
}


if not TYPE_CHECKING:  # a type checker would take every name for one of ours

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module 'turnkeeper' has no attribute {name!r}")
        return getattr(import_module(f"turnkeeper.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*_MODULES, *globals()]
