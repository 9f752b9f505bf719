"""Sessions whose vendor refuses a part of a request: the turn answers, and the session remembers it (AGT-9)."""

from collections.abc import Callable
from typing import Any

import pytest
from temporalio.client import Client

from tests.vendors.apis import WIRES
from tests.vendors.environment import next_turn, vendor_environment
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.testing.vendor_server import Answer, Call, Received, Reply, VendorServer

DONE = Answer(text="Done.")


def refuse_if(wire: VendorServer, is_refused: Callable[[Any], bool], words: str) -> None:
    """Make the vendor reject these requests with 400, and answer all others."""
    answer, refusal = wire.reply(DONE), Reply.error(400, {"error": {"type": "invalid_request_error", "message": words}})
    wire.server.check = lambda body: None

    def reply(received: Received) -> Reply:
        return refusal if is_refused(received.body) else answer

    wire.server.otherwise = reply


def schema_of_look(body: Any) -> dict[str, Any]:
    tools = [tool.get("function", tool) for tool in body.get("tools", [])]
    look = next((tool for tool in tools if tool["name"] == "look"), {})
    schema: dict[str, Any] = look.get("parameters") or look.get("input_schema") or {}
    return schema.get("properties") or {}


@pytest.mark.parametrize("words", ["Invalid schema for function 'look': unsupported keyword.", "Bad Request"])
@pytest.mark.parametrize("api", WIRES)
async def test_agt_9_a_session_with_a_rejected_tool_answers_each_turn(temporal: Client, api: str, words: str) -> None:
    """F2, L1: its schema is left out in the first turn, which says so; no later request is refused."""
    async with WIRES[api]() as wire, vendor_environment(temporal, wire) as env:
        env.tools.specs = [
            tool.model_copy(update={"input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}})
            if tool.name == "look"
            else tool
            for tool in env.tools.specs
        ]
        refuse_if(wire, schema_of_look, words)
        session = await env.start(SessionInput(model=wire.model))
        first = await next_turn(session, "hello")
        requests = len(wire.requests)
        second = await next_turn(session, "again")
        assert (first.agent_message, second.agent_message) == ("Done.", "Done.")
        assert first.steps[-1].left_out.startswith("Left out for this model: schema")
        assert (second.steps[-1].left_out, len(wire.requests)) == ("", requests + 1)


async def test_agt_9_a_too_long_request_rejected_without_a_message_is_halved_once(temporal: Client) -> None:
    """L3: its tools stay, since a shorter request with them was accepted."""
    async with WIRES["openai-chat"]() as wire, vendor_environment(temporal, wire) as env:
        refuse_if(wire, lambda body: len(str(body["messages"])) > 9_000, "Bad Request")
        session = await env.start(SessionInput(model=wire.model))
        turns = [await next_turn(session, f"{number} {'x' * 3_000}") for number in range(5)]
        assert [turn.agent_message for turn in turns] == ["Done."] * 5
        assert all("tools" in received.body for received in wire.requests)
        assert not any(step.left_out for turn in turns for step in turn.steps)


async def test_agt_9_after_an_unexplained_rejection_the_tools_are_listed_again_once(temporal: Client) -> None:
    """F2: the operator removes a tool; the session has it no longer in the next turn."""
    async with WIRES["openai-chat"]() as wire, vendor_environment(temporal, wire) as env:
        wire.refuse_always(Reply.error(400, {"error": {"message": "Bad Request"}}))
        session = await env.start(SessionInput(model=wire.model))
        first = await next_turn(session, "hello")
        env.tools.specs = env.tools.specs[:1]
        refuse_if(wire, lambda body: False, "")
        second = await next_turn(session, "again")
        assert (first.error_type, second.agent_message) == ("bad_request", "Done.")
        names = [tool["function"]["name"] for tool in wire.requests[-1].body["tools"]]
        assert [name for name in names if name != "run_task"] == [env.tools.specs[0].name]


async def test_agt_9_reasoning_that_is_rejected_twice_stays_out_of_the_session(temporal: Client) -> None:
    """A vendor that takes none back: it is dropped once, and left out from the second refusal on."""
    async with WIRES["anthropic"]() as wire, vendor_environment(temporal, wire) as env:
        thoughtful = wire.reply(Answer(think="I think.", text="Done."))
        refusal = Reply.error(400, {"error": {"type": "invalid_request_error", "message": "Bad Request"}})
        wire.server.otherwise = lambda received: refusal if '"signature"' in received.raw.decode() else thoughtful
        session = await env.start(SessionInput(model=wire.model))
        turns = [await next_turn(session, f"prompt {number}") for number in range(5)]
        assert [turn.agent_message for turn in turns] == ["Done."] * 5
        assert [bool(turn.steps[-1].left_out) for turn in turns] == [False, True, True, False, False]
        assert len(wire.requests) == 5 + 2


@pytest.mark.parametrize(
    "words",
    [
        "Invalid value for 'content': expected a string, got null.",
        "messages.1.content: Input should be a valid string",
        "messages[1]: `content` must not be null",
    ],
)
async def test_agt_9_an_endpoint_that_rejects_null_content_gets_an_empty_text(temporal: Client, words: str) -> None:
    """L14: beside calls without a text the content is null; nothing is taken for too long."""
    async with WIRES["openai-chat"]() as wire, vendor_environment(temporal, wire) as env:
        call = wire.reply(Answer(calls=[Call("c1", "look", {"at": "it"})]))
        refuse_if(wire, lambda body: any(message["content"] is None for message in body["messages"]), words)
        wire.script(call)
        session = await env.start(SessionInput(model=wire.model))
        first = await next_turn(session, "hello")
        requests = len(wire.requests)
        second = await next_turn(session, "again")
        assert (first.agent_message, second.agent_message) == ("Done.", "Done.")
        assert first.steps[-1].left_out.startswith("Left out for this model: messages without content")
        assert (requests, len(wire.requests)) == (3, 4)
        assert [message["content"] for message in wire.requests[-1].body["messages"]][2] == ""
