"""Requests in the strictest shape that all known endpoints accept, for steps of any vendor (AGT-3, AGT-4)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vendors.anthropic_wire import AnthropicWire
from tests.vendors.chat_wire import ChatWire
from tests.vendors.responses_wire import ResponsesWire
from turnkeeper.activities.providers.anthropic import request as anthropic
from turnkeeper.activities.providers.openai import chat_request as chat
from turnkeeper.activities.providers.openai import responses
from turnkeeper.activities.providers.openai.chat_request import NO_SIGNATURE
from turnkeeper.activities.providers.request_encoding import description_of, plain_schema
from turnkeeper.models.transcript.model_call import (
    CallPart,
    ModelMessage,
    ModelRequest,
    ProviderState,
    RequestHead,
    ToolSpec,
)

HEAD = RequestHead(system="Be brief.", tools=[ToolSpec(name="look", input_schema={"type": "object"})])
BLANK = st.sampled_from(["", "\n\n", " ", "I look."])
IDS = st.sampled_from(["toolu_01A", "call_1", "functions.look:0", "D681PevKs", ""])


def state_of(vendor: str, text: str, calls: list[CallPart]) -> ProviderState | None:
    """Return the state as each vendor's answer leaves it."""
    if vendor == "anthropic":
        items: list[Any] = [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}]
        items += [{"type": "text", "text": text}] if text else []
        items += [{"type": "tool_use", "id": call.id, "name": call.name, "input": {}} for call in calls]
        return ProviderState(api=anthropic.API, model="claude-sonnet-5-5", items=items)
    if vendor == "openai":
        items = [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2ln"}]
        content = [{"type": "output_text", "text": text, "annotations": []}]
        message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
        items += [message] if text else []
        items += [
            {"type": "function_call", "id": f"fc_{n}", "call_id": call.id, "name": call.name, "arguments": "{}"}
            for n, call in enumerate(calls)
        ]
        return ProviderState(api=responses.API, model="gpt-5.5", items=items)
    if vendor == "openai-chat":
        items = [{"reasoning_content": "Hm."}, *({"type": "function", "id": call.id} for call in calls)]
        return ProviderState(api=chat.API, model="qwen3", items=items)
    return ProviderState(api="openai.chat.text", model="small", items=[{"thinking": "Hm."}])


@st.composite
def steps(draw: st.DrawFn) -> list[ModelMessage]:
    """A step of some vendor with its results, maybe with a steering prompt behind it."""
    vendor = draw(st.sampled_from(["anthropic", "openai", "openai-chat", "text"]))
    prefix = "" if draw(st.booleans()) else draw(st.sampled_from("abc"))
    ids = draw(st.lists(IDS.map(lambda own_id: f"{own_id}{prefix}"), min_size=1, max_size=3))
    calls = [CallPart(kind="call", id=own_id, name="look") for own_id in ids]
    text = draw(BLANK)
    state = state_of(vendor, text, calls) if draw(st.booleans()) else None
    results = [ModelMessage(role="tool", content="a chair", call_id=call.id, status="ok") for call in calls]
    steering = [ModelMessage(role="user", content="Hurry.")] if draw(st.booleans()) else []
    return [ModelMessage(role="assistant", content=text, tool_calls=calls, state=state), *results, *steering]


def checked_bodies(messages: list[ModelMessage]) -> dict[str, Any]:
    """Return the request as each API gets it; the API's own rules hold."""
    request = ModelRequest(head=HEAD, messages=messages)
    wires = {"anthropic": AnthropicWire(), "openai": ResponsesWire(), "chat": ChatWire(), "text": ChatWire("text")}
    bodies = {
        "anthropic": anthropic.encode(request, name="claude-sonnet-5-5"),
        "openai": responses.encode(request, name="gpt-5.5", session_id="s1"),
        "chat": chat.encode(request, name="qwen3"),
        "text": chat.encode_text(request, name="small"),
    }
    for name, body in bodies.items():
        wires[name].check(json.loads(json.dumps(body)))
    return bodies


@given(st.lists(steps(), min_size=1, max_size=5))
def test_agt_3_switching_vendors_at_any_point_of_a_turn_gives_a_valid_request(turn):
    messages = [ModelMessage(role="user", content="What is there?")]
    earlier = checked_bodies(messages)["chat"]["messages"]
    for step in turn:
        messages += step
        body = checked_bodies(messages)["chat"]["messages"]
        assert body[: len(earlier)] == earlier, "the request has not only grown at its end"
        earlier = body


@pytest.mark.parametrize(("text", "content"), [("\n\n", None), ("", None), ("I look.", "I look.")])
def test_agt_3_no_blank_text_is_sent_beside_calls(text, content):
    calls = [CallPart(kind="call", id="c", name="look")]
    for vendor in ("anthropic", "openai", "openai-chat", "text"):
        step = ModelMessage(role="assistant", content=text, tool_calls=calls, state=state_of(vendor, text, calls))
        messages = [
            ModelMessage(role="user", content="?"),
            step,
            ModelMessage(role="tool", content="a chair", call_id="c"),
        ]
        bodies = checked_bodies(messages)
        assert bodies["chat"]["messages"][2]["content"] == content
        assert '"\\n\\n"' not in json.dumps([bodies["openai"]["input"], bodies["anthropic"]["messages"]])


def gemini(*messages: ModelMessage, name: str = "gemini-3-pro", without: Any = ()) -> list[str | None]:
    """Return the signature of each call, in a request to Gemini."""
    request = ModelRequest(head=HEAD, messages=[ModelMessage(role="user", content="?"), *messages])
    body: Any = chat.encode(request, name=name, without=without)
    calls = [call for message in body["messages"] for call in message.get("tool_calls", [])]
    return [call.get("extra_content", {}).get("google", {}).get("thought_signature") for call in calls]


def gemini_step(signature: str | None = None, model: str = "gemini-3-pro") -> list[ModelMessage]:
    calls = [CallPart(kind="call", id=own_id, name="look") for own_id in ("a", "b")]
    items: list[Any] = [{}, *({"type": "function", "id": call.id} for call in calls)]
    if signature:
        items[1]["extra_content"] = {"google": {"thought_signature": signature}}
    state = ProviderState(api=chat.API, model=model, items=items) if signature else None
    results = [ModelMessage(role="tool", content="x", call_id=call.id) for call in calls]
    return [ModelMessage(role="assistant", tool_calls=calls, state=state), *results]


def test_agt_9_a_step_without_its_signature_gets_geminis_placeholder():
    signed, unsigned = gemini_step("c2ln"), gemini_step()
    assert gemini(*unsigned, *signed) == [NO_SIGNATURE, None, "c2ln", None]
    assert gemini(*unsigned, name="qwen3") == gemini(*unsigned, name="gemini-2.5-pro") == [None, None]
    assert gemini(*unsigned, without=["extra_content"]) == [None, None]
    alias = gemini_step("c2ln", model="my-alias")
    assert gemini(*unsigned, *alias, *unsigned, name="my-alias") == [None, None, "c2ln", None, NO_SIGNATURE, None]


# ── Schemas ──────────────────────────────────────────────────────────────────────────────────────────────────────────

TEXT = {"type": "string"}
NOTION = {
    "type": "object",
    "properties": {"page": TEXT},
    "required": ["page"],
    "anyOf": [
        {"properties": {"content": TEXT, "kind": {"const": "a"}}, "required": ["content", "kind"]},
        {"properties": {"source_url": TEXT, "kind": {"const": "b"}}, "required": ["source_url", "kind"]},
    ],
}
BOTH = {
    "allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": TEXT}, "required": ["b"]}],
    "$defs": {"A": {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}},
}


def test_agt_6_top_level_alternatives_of_a_schema_are_merged_and_described():
    tool = ToolSpec(name="attach", description="Attaches.", input_schema=NOTION)
    kinds = {"anyOf": [{"const": "a"}, {"const": "b"}]}
    assert plain_schema(tool) == {
        "type": "object",
        "properties": {"page": TEXT, "content": TEXT, "kind": kinds, "source_url": TEXT},
        "required": ["page", "kind"],
    }
    assert description_of(tool) == f"Attaches.\n\nIts arguments, as JSON Schema: {json.dumps(NOTION)}"


def test_agt_6_all_of_schemas_are_merged_without_loss():
    tool = ToolSpec(name="both", description="Both.", input_schema=BOTH)
    merged = {"properties": {"a": TEXT, "b": TEXT}, "required": ["a", "b"], "type": "object", "$defs": BOTH["$defs"]}
    assert plain_schema(tool) == merged
    assert description_of(tool) == "Both."


def test_agt_6_references_that_double_at_every_level_are_merged_within_a_limit():
    definitions = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}
    tool = ToolSpec(name="deep", input_schema={"$ref": "#/$defs/d0", "$defs": definitions})
    assert plain_schema(tool)["type"] == "object"
    assert "as JSON Schema" in description_of(tool)


def test_agt_6_every_array_in_a_schema_has_items():
    array = {"type": "array"}
    schema: dict[str, Any] = {
        "properties": {
            "a": array,
            "b": {"type": ["array", "null"]},
            "c": {"anyOf": [array, {"type": "array", "items": array}]},
            "d": {"properties": {"e": {"$ref": "#/$defs/f"}}, "default": {"type": "array"}},
        },
        "$defs": {"f": array},
    }
    whole = json.dumps(plain_schema(ToolSpec(name="x", input_schema=schema)))
    assert whole.count('"array"') - whole.count('"default": {"type": "array"}') == whole.count('"items"')
