"""Anthropic's real API, where it is wanted: AGT-11."""

import pytest

from activities.providers.anthropic import AnthropicProvider
from models.settings import VENDORS_MODELS
from tests.vendors.anthropic_wire import AnthropicWire
from tests.vendors.live import go_through_a_tool_loop, live
from tests.vendors.server import Answer, Call

NAME = VENDORS_MODELS["ANTHROPIC_API_KEY"].partition(":")[2]


@live("ANTHROPIC_API_KEY")
@pytest.mark.parametrize("name", [NAME, "claude-haiku-4-5"])
async def test_agt_11_the_real_api_takes_back_its_own_thinking_and_calls(name: str) -> None:
    await go_through_a_tool_loop(AnthropicProvider(silence_timeout=120), name)


async def test_agt_11_the_loop_that_real_apis_are_asked_to_go_through_can_be_gone_through() -> None:
    calls = [Call("a", "look_up", {"colour": "red"}), Call("b", "look_up", {"colour": "Blue"})]
    async with AnthropicWire() as wire:
        wire.script(Answer(think="Two.", calls=calls), Answer(text="Heron, walnut."))
        first, second = await go_through_a_tool_loop(wire.provider(), NAME)
    assert (first.thinking, second.text) == ("Two.", "Heron, walnut.")
