"""A session whose model is Anthropic's API on loopback: what a vendor sends goes through Temporal and back: AGT-3."""

from collections.abc import AsyncIterator

import pytest

from tests.harness import Environment
from tests.vendors.anthropic_cache import without_breakpoints
from tests.vendors.anthropic_wire import MODEL, AnthropicWire, error_body
from turnkeeper.activities.providers.provider import Provider
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.testing.vendor_server import Answer, Call, Reply

LOOK_TWICE = Answer(
    think="Left, then right.",
    text="I look.",
    calls=[Call("toolu_1", "look", {"at": "left", "a": [1.0, None]}), Call("toolu_2", "look", '{"at": ')],
)


@pytest.fixture
async def wire(env: Environment, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AnthropicWire]:
    """Anthropic's API, the vendor of all models of the environment."""
    async with AnthropicWire() as started:
        provider: Provider = started.provider()
        monkeypatch.setattr(env.vendor, "resolve", lambda model: (provider, MODEL))
        yield started


async def test_agt_3_thinking_and_parallel_calls_pass_through_temporal_unchanged(
    env: Environment, wire: AnthropicWire
) -> None:
    wire.script(LOOK_TWICE, Answer(text="A chair."), Answer(text="Goodbye."))
    session = await env.start(SessionInput(model=wire.model))
    await session.prompt("What is there?")
    await session.idle(turns=1)
    await session.prompt("Thanks.")
    turns = await session.idle(turns=2)
    assert [turn.agent_message for turn in turns] == ["A chair.", "Goodbye."]
    first, second, third = (without_breakpoints(received.body)["messages"] for received in wire.requests)
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert second[1]["content"] == [
        {"type": "thinking", "thinking": "Left, then right.", "signature": "sig+/="},
        {"type": "text", "text": "I look.", "citations": None},
        {
            "type": "tool_use",
            "id": "toolu_1",
            "name": "look",
            "input": {"at": "left", "a": [1.0, None]},
            "caller": {"type": "direct"},
        },
        {
            "type": "tool_use",
            "id": "toolu_2",
            "name": "look",
            "input": {"invalid_json": '{"at": '},
            "caller": {"type": "direct"},
        },
    ]
    assert [block["tool_use_id"] for block in second[2]["content"]] == ["toolu_1", "toolu_2"]
    assert "is_error" in second[2]["content"][1]


async def test_agt_9_stale_reasoning_is_left_out_once(env: Environment, wire: AnthropicWire) -> None:
    wire.script(LOOK_TWICE, wire.fault("stale_reasoning"), Answer(text="A chair."))
    session = await env.start(SessionInput(model=wire.model))
    await session.prompt("What is there?")
    (turn,) = await session.idle(turns=1)
    assert turn.agent_message == "A chair."
    _, refused, accepted = (received.body["messages"] for received in wire.requests)
    assert [block["type"] for block in refused[1]["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block["type"] for block in accepted[1]["content"]] == ["text", "tool_use", "tool_use"]


def look(number: int, *, think: str = "") -> Answer:
    return Answer(think=think, text="I look.", calls=[Call(f"toolu_{number}", "look", {"at": number})])


async def test_agt_3_a_turn_continues_without_its_thinking_once_that_was_evicted(
    env: Environment, wire: AnthropicWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake server rejects what such a model rejects: thinking in an answer that did not begin with its own."""
    provider: Provider = wire.provider()
    monkeypatch.setattr(env.vendor, "resolve", lambda model: (provider, "claude-sonnet-4-5"))
    steps = [look(number, think="Where?") for number in range(12)]
    wire.script(*steps, Answer(text="A chair."), look(12, think="Again?"), Answer(text="Still a chair."))
    history = {"max_messages": 8, "preserve_first_n": 0, "preserve_last_n": 2}
    session = await env.start(SessionInput.model_validate({"model": wire.model, "history": history}))
    await session.prompt("What is there?")
    await session.idle(turns=1)
    await session.prompt("And now?")
    turns = await session.idle(turns=2)
    assert [turn.agent_message for turn in turns] == ["A chair.", "Still a chair."]
    thinks = ["thinking" in received.body for received in wire.requests]
    assert thinks[0]
    assert False in thinks[:13], "an eviction has taken the turn's thinking away"
    assert thinks[13:] == [True, True]


async def test_agt_9_a_model_that_requires_missing_thinking_is_called_without_thinking(
    env: Environment, wire: AnthropicWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider: Provider = wire.provider()
    monkeypatch.setattr(env.vendor, "resolve", lambda model: (provider, "claude-sonnet-4-5"))
    missed = "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`. When `thinking`…"
    refused = Reply.error(400, error_body("invalid_request_error", missed))
    wire.script(look(1, think="Where?"), refused, Answer(text="A chair."))
    session = await env.start(SessionInput(model=wire.model))
    await session.prompt("What is there?")
    (turn,) = await session.idle(turns=1)
    assert turn.agent_message == "A chair."
    assert ["thinking" in received.body for received in wire.requests] == [True, True, False]
