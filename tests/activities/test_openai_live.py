"""OpenAI's real API, and an endpoint of one's own, where they are wanted: AGT-11."""

import os

import pytest

from activities.providers.openai_chat import OpenAIChatProvider
from activities.providers.openai_responses import OpenAIProvider
from models.settings import VENDORS_MODELS
from tests.vendors.live import go_through_a_tool_loop, live
from tests.vendors.responses_wire import ResponsesWire
from tests.vendors.server import Answer, Call

NAME = VENDORS_MODELS["OPENAI_API_KEY"].partition(":")[2]


@live("OPENAI_API_KEY")
@pytest.mark.parametrize("name", [NAME, "gpt-4.1"])
async def test_agt_11_the_real_api_takes_back_its_own_reasoning_and_calls(name):
    await go_through_a_tool_loop(OpenAIProvider(silence_timeout=120), name)


@live("OPENAI_API_KEY")
async def test_agt_11_the_real_api_takes_chat_completions_too():
    provider = OpenAIChatProvider(
        silence_timeout=120, base_url="https://api.openai.com/v1", api_key=os.environ["OPENAI_API_KEY"]
    )
    await go_through_a_tool_loop(provider, "gpt-4.1", has_state=False)


async def test_agt_11_the_loop_that_real_apis_are_asked_to_go_through_can_be_gone_through():
    calls = [Call("a", "look_up", {"colour": "red"}), Call("b", "look_up", {"colour": "Blue"})]
    async with ResponsesWire() as wire:
        wire.script(Answer(think="Two.", calls=calls), Answer(text="Heron, walnut."))
        first, second = await go_through_a_tool_loop(wire.provider(), NAME)
    assert (first.thinking, second.text) == ("Two.", "Heron, walnut.")
