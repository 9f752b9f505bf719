"""Every API there is a provider for, on loopback."""

from collections.abc import Callable

from tests.vendors.anthropic_wire import AnthropicWire
from tests.vendors.chat_wire import ChatWire
from tests.vendors.responses_wire import ResponsesWire
from tests.vendors.server import VendorWire

WIRES: dict[str, Callable[[], VendorWire]] = {
    "anthropic": AnthropicWire,
    "openai": ResponsesWire,
    "openai-chat": ChatWire,
}
