"""The one loop that every vendor's real API is asked to go through, where its key is there and the test is wanted."""

import os
from contextlib import aclosing

import pytest

from activities.providers.protocol import CallContext, Provider
from models.model_call import ModelMessage, ModelRequest, ModelResponse, RequestHead, ToolSpec

WANTED = "LIVE_TESTS"
"""The environment variable that asks for tests which cost money, beside the vendor's key."""

HEAD = RequestHead(
    system="Use the tool to look up what you are asked. Then answer with the word you found, and nothing else.",
    tools=[
        ToolSpec(
            name="look_up",
            description="Looks up the secret word of a colour.",
            input_schema={"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]},
        )
    ],
)


def live(key: str) -> pytest.MarkDecorator:
    """Skip the test unless it is wanted and the variable `key` is set."""
    return pytest.mark.skipif(
        not (os.environ.get(WANTED) and os.environ.get(key)), reason=f"asks the real API: set {WANTED}=1 and {key}"
    )


async def go_through_a_tool_loop(provider: Provider, name: str, *, has_state: bool = True) -> list[ModelResponse]:
    """Ask, answer the call it makes, ask again with its own blocks; return both answers.

    `has_state`: there are such blocks, as there are not where an answer is no more than its parts.
    """
    asked = ModelMessage(
        role="user", content="Look up the secret words of red and of blue, both at once, and tell me both."
    )
    first = await _answer(provider, name, [asked])
    assert first.stop == "tool_calls"
    assert bool(first.state) is has_state
    words = {"red": "heron", "blue": "walnut"}
    results = [
        ModelMessage(role="tool", content=words[str(call.args["colour"]).lower()], call_id=call.id, tool_name=call.name)
        for call in first.calls
        if isinstance(call.args, dict)
    ]
    step = ModelMessage(role="assistant", content=first.text, tool_calls=first.calls, state=first.state)
    second = await _answer(provider, name, [asked, step, *results])
    assert second.stop == "end_turn"
    assert all(word in second.text.lower() for word in words.values())
    assert all(response.usage and response.usage.output_tokens for response in (first, second))
    return [first, second]


async def _answer(provider: Provider, name: str, messages: list[ModelMessage]) -> ModelResponse:
    context = CallContext(session_id="live", request=1, attempt=1)
    request = ModelRequest(head=HEAD, messages=messages)
    async with aclosing(provider.stream(name, request, context)) as events:
        async for event in events:
            if isinstance(event, ModelResponse):
                return event
    raise AssertionError("the stream ended without an answer")
