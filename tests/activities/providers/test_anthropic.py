"""Requests to Anthropic's Messages API, and responses built from its stream: AGT-3, AGT-4, AGT-10."""

import json
import os
from collections.abc import Iterable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.processes.forked import PIPE, ROOT, fork
from tests.vendors.anthropic_cache import without_breakpoints
from tests.vendors.anthropic_wire import (
    MODEL,
    AnthropicWire,
    Block,
    answer_events,
    block_events,
    message_end,
    message_start,
    text,
    thinking,
    tool_use,
)
from tests.vendors.golden_files import assert_golden
from turnkeeper.activities.providers.anthropic.provider import AnthropicAccumulator
from turnkeeper.activities.providers.anthropic.request import ANSWER_TOKENS, GO_ON, encode
from turnkeeper.activities.providers.protocol import Delta, ModelError
from turnkeeper.activities.providers.request_encoding import OPENING
from turnkeeper.models.transcript.conversation import Usage
from turnkeeper.models.transcript.model_call import (
    CallPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ProviderState,
    RequestHead,
    ToolSpec,
)
from turnkeeper.testing.vendor_server import Answer, Call

HEAD = RequestHead(
    system="Be brief.",
    tools=[
        ToolSpec(
            name="look",
            description="Look at a thing.",
            input_schema={"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
        ),
        ToolSpec(name="pay", input_schema={"anyOf": [{"type": "object"}], "additionalProperties": False}),
    ],
)


def user(content: str) -> ModelMessage:
    return ModelMessage(role="user", content=content)


def assistant(content: str = "", *calls: Call, items: list[Any] | None = None, api: str = "anthropic.messages") -> Any:
    state = None if items is None else ProviderState(api=api, model=MODEL, items=items)
    parts = [CallPart(kind="call", id=call.id, name=call.name, args=call.args) for call in calls]
    return ModelMessage(role="assistant", content=content, tool_calls=parts, state=state)


def result(call_id: str, content: str, status: Any = "ok") -> ModelMessage:
    return ModelMessage(role="tool", content=content, call_id=call_id, tool_name="look", status=status)


def whole_body(*messages: ModelMessage, head: RequestHead = HEAD, name: str = MODEL) -> dict[str, Any]:
    """Return the body, checked against the vendor's types and rules."""
    body = encode(ModelRequest(head=head, messages=list(messages)), name=name)
    AnthropicWire().check(json.loads(json.dumps(body)))
    return body


def encoded(*messages: ModelMessage, head: RequestHead = HEAD, name: str = MODEL) -> dict[str, Any]:
    """Return the body as the model reads it: without the breakpoints of the prompt cache, which move."""
    return without_breakpoints(whole_body(*messages, head=head, name=name))


ITEMS: list[Any] = [
    {"type": "thinking", "thinking": "First the\nleft “one”…", "signature": "EqQBCkYIBRgC+/8="},
    {"type": "text", "text": "I look. ", "citations": None},
    {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3p"},
    {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "left"}, "caller": {"type": "direct"}},
    {"type": "thinking", "thinking": "", "signature": "EqQBother="},
    {"type": "tool_use", "id": "toolu_2", "name": "look", "input": {"at": "1.0"}, "caller": {"type": "direct"}},
]
STEP = assistant(
    "I look. ", Call("toolu_1", "look", {"at": "left"}), Call("toolu_2", "look", {"at": "1.0"}), items=ITEMS
)
CONVERSATION = [
    user("What is there? “Ü”"),
    STEP,
    result("toolu_1", "looked\n\na chair"),
    result("toolu_2", "There is no such thing.", "error"),
    user("Be quick."),
    assistant("A chair."),
    user("Thanks. And now?"),
    assistant(
        "",
        Call("call:1", "files.read", {"at": "x"}),
        Call("call:1", "look", '{"at": '),
        api="openai.responses",
        items=[{}],
    ),
    result("call:1", "read"),
    result("call:1", "The arguments are no JSON object.", "error"),
    assistant("Done.\n"),
]


# ---- requests


def test_agt_3_a_conversation_is_encoded_to_the_recorded_bytes() -> None:
    assert_golden("anthropic_conversation", whole_body(*CONVERSATION, user("Go home.")))


def test_agt_3_a_summary_request_is_encoded_to_the_recorded_bytes() -> None:
    assert_golden(
        "anthropic_summary", whole_body(user("Summarise."), head=RequestHead(system="Be brief.", max_tokens=1024))
    )


def flat(body: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(message["role"], block) for message in body["messages"] for block in message["content"]]


WHOLE_GROUPS = [length for length in range(1, len(CONVERSATION)) if CONVERSATION[length].role != "tool"]


@pytest.mark.parametrize("length", WHOLE_GROUPS)
def test_agt_3_appending_messages_keeps_the_encoded_prefix_unchanged(length: int) -> None:
    whole, part = encoded(*CONVERSATION), encoded(*CONVERSATION[:length])
    beginning = flat(part)
    if CONVERSATION[length - 1].role == "assistant":
        assert beginning.pop() == ("user", {"type": "text", "text": GO_ON})
    assert json.dumps(flat(whole)[: len(beginning)]) == json.dumps(beginning)
    assert {**whole, "messages": []} == {**part, "messages": []}


def test_agt_3_a_steps_own_blocks_are_sent_back_byte_for_byte() -> None:
    message = encoded(*CONVERSATION)["messages"][1]
    assert json.dumps(message) == json.dumps({"role": "assistant", "content": ITEMS})


def test_agt_3_all_results_of_a_step_form_one_message_right_after_it() -> None:
    assert encoded(*CONVERSATION)["messages"][2] == {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "looked\n\na chair"},
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": "There is no such thing.", "is_error": True},
            {"type": "text", "text": "Be quick."},
        ],
    }


def test_agt_3_a_step_of_another_api_is_encoded_from_its_parts_without_thinking() -> None:
    assert encoded(*CONVERSATION)["messages"][5]["content"] == [
        {"type": "tool_use", "id": "call_1", "name": "files_read", "input": {"at": "x"}},
        {"type": "tool_use", "id": "call_1-2", "name": "look", "input": {"invalid_json": '{"at": '}},
    ]


def test_agt_3_a_step_with_duplicate_ids_is_re_encoded_and_earlier_messages_stay() -> None:
    """Some servers name the calls of every answer `call_0`; the API requires unique ids."""
    call = {"type": "tool_use", "id": "call_0", "name": "look", "input": {"at": "left"}}
    step = assistant("", Call("call_0", "look", {"at": "left"}), items=[call])
    once = [user("?"), step, result("call_0", "a chair"), assistant("A chair."), user("And now?")]
    before, after = encoded(*once), encoded(*once, step, result("call_0", "a table"))
    assert after["messages"][: len(before["messages"])] == before["messages"]
    assert after["messages"][-2:] == [
        {"role": "assistant", "content": [{**call, "id": "call_0-2"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_0-2", "content": "a table"}]},
    ]


@pytest.mark.parametrize("status", ["error", "denied", "cancelled", "outcome_unknown"])
def test_agt_4_results_that_are_not_ok_are_marked_as_errors(status: str) -> None:
    body = encoded(user("?"), assistant("", Call("a", "look")), result("a", "", status))
    assert body["messages"][2]["content"] == [{"type": "tool_result", "tool_use_id": "a", "is_error": True}]


def test_agt_4_the_first_and_last_messages_are_from_the_user() -> None:
    body = encoded(assistant("[Conversation Summary] So far."), assistant("More."))
    assert [(role, block["text"]) for role, block in flat(body)] == [
        ("user", OPENING),
        ("assistant", "[Conversation Summary] So far."),
        ("assistant", "More."),
        ("user", GO_ON),
    ]


def test_agt_4_empty_texts_are_omitted_even_from_the_vendors_own_blocks() -> None:
    blank: dict[str, Any] = {"type": "text", "text": " \n"}
    body = encoded(user("?"), assistant(" "), user("  "), assistant("x", items=[ITEMS[0], blank]), user("!"))
    assert flat(body) == [
        ("user", {"type": "text", "text": "?"}),
        ("assistant", ITEMS[0]),
        ("user", {"type": "text", "text": "!"}),
    ]
    assert "system" not in encode(ModelRequest(head=RequestHead(), messages=[]), name=MODEL)


def test_agt_4_a_tool_schema_is_an_object_without_alternatives_at_the_top() -> None:
    assert encoded(user("?"))["tools"] == [
        {"name": "look", "description": "Look at a thing.", "input_schema": HEAD.tools[0].input_schema},
        {"name": "pay", "input_schema": {"additionalProperties": False, "type": "object"}},
    ]


def known_models() -> list[str]:
    from anthropic.types import Model  # slow to load, and collected by every process

    return sorted(get_args(get_args(Model)[0]))


def test_agt_4_every_known_model_uses_its_supported_thinking_mode() -> None:
    for name in known_models():
        body = encoded(user("?"), name=name)
        by_budget = "-4-5" in name
        assert body["thinking"]["type"] == ("enabled" if by_budget else "adaptive"), name
        assert body["thinking"].get("budget_tokens", 0) < body["max_tokens"] == ANSWER_TOKENS, name
        assert "temperature" not in body, name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("claude-opus-9", "adaptive"),
        ("us.anthropic.claude-opus-4-6-v1:0", "adaptive"),
        ("anthropic/claude-sonnet-4.6", "adaptive"),
        ("anthropic/claude-sonnet-4.5", "enabled"),
        ("claude-opus-4-5@20251101", "enabled"),
        ("claude-opus-4-1-20250805", "enabled"),
        ("claude-sonnet-4-20250514", "enabled"),
        ("claude-3-7-sonnet-latest", "enabled"),
        ("claude-4-sonnet", "enabled"),
        ("anthropic/claude-4.5-sonnet-20250929", "enabled"),
        ("claude-4-opus-20250514", "enabled"),
        ("anthropic/claude-4.1-opus", "enabled"),
        ("claude-4.5-haiku", "enabled"),
        ("claude-4.6-sonnet", "adaptive"),
        ("claude-3-5-haiku-latest", None),
        ("claude-3-opus-20240229", None),
        ("claude-2.1", None),
        ("kimi-k3", None),
    ],
)
def test_agt_4_the_thinking_mode_of_unknown_models_follows_from_their_name(name: str, kind: str | None) -> None:
    assert encoded(user("?"), name=name).get("thinking", {}).get("type") == kind


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("claude-2.1", 4_096),
        ("claude-instant-1.2", 4_096),
        ("claude-3-opus-20240229", 4_096),
        ("anthropic.claude-3-haiku-20240307-v1:0", 4_096),
        ("claude-3-5-haiku-latest", 8_192),
        ("anthropic/claude-3.5-sonnet", 8_192),
        ("kimi-k3", 8_192),
        ("claude-3-7-sonnet-latest", ANSWER_TOKENS),
        ("claude-opus-4-20250514", ANSWER_TOKENS),
        ("claude-4-sonnet", ANSWER_TOKENS),
        ("anthropic/claude-4.5-haiku", ANSWER_TOKENS),
        ("claude-of-next-year", ANSWER_TOKENS),
    ],
)
def test_agt_4_max_tokens_stays_within_the_models_output_limit(name: str, most: int) -> None:
    assert encoded(user("?"), name=name)["max_tokens"] == most
    asked_for = encoded(user("?"), head=RequestHead(max_tokens=50_000), name=name)["max_tokens"]
    assert asked_for == (50_000 + 8_000 if name == "claude-of-next-year" else most)


THOUGHT, ANEW = STEP, assistant("I look.", Call("a", "look"))
UNTHINKING = assistant("", Call("b", "look"), items=[{"type": "tool_use", "id": "b", "name": "look", "input": {}}])
RESULTS = {id(THOUGHT): CONVERSATION[2:4], id(ANEW): [result("a", "?")], id(UNTHINKING): [result("b", "?")]}


@pytest.mark.parametrize(
    ("steps", "thinks"),
    [
        ([], True),
        ([THOUGHT], True),
        ([THOUGHT, UNTHINKING], True),
        ([ANEW], False),
        ([UNTHINKING], False),
        ([ANEW, THOUGHT], False),
        ([ANEW, UNTHINKING], False),
        ([ANEW, user("Quick.")], False),
        ([ANEW, user("Quick."), THOUGHT], True),
        ([THOUGHT, user("Quick."), UNTHINKING], False),
        ([ANEW, assistant("A chair."), user("And?")], True),
        ([ANEW, assistant("A chair."), user("And?"), THOUGHT], True),
    ],
)
def test_agt_3_a_budget_model_continues_without_thinking_if_its_thinking_is_missing(
    steps: list[ModelMessage], thinks: bool
) -> None:
    messages = [message for step in steps for message in [step, *RESULTS.get(id(step), [])]]
    # `encoded` checks these requests against the vendor's rules.
    assert ("thinking" in encoded(user("?"), *messages, name="claude-sonnet-4-5")) is thinks
    assert encoded(user("?"), *messages)["thinking"]["type"] == "adaptive"


def test_agt_4_a_limited_answer_leaves_room_for_thinking() -> None:
    for name in [*known_models(), "kimi-k3"]:
        body = encoded(user("?"), head=RequestHead(max_tokens=1024), name=name)
        thinks = body.get("thinking", {}).get("type") == "adaptive"
        assert body["max_tokens"] == (1024 + 8_000 if thinks else 1024), name
        assert thinks is ("thinking" in body), name


# ---- answers


def folded(*events: dict[str, Any], request_id: str | None = "req_1") -> tuple[list[Delta], ModelResponse]:
    answer = AnthropicAccumulator(MODEL)
    deltas = [delta for event in events for delta in answer.add(event)]
    assert answer.is_complete
    return deltas, answer.response(request_id=request_id)


def from_blocks(*blocks: Block, stop: str = "end_turn") -> tuple[list[Delta], ModelResponse]:
    events = [event for index, (start, deltas) in enumerate(blocks) for event in block_events(index, start, deltas)]
    return folded(message_start(), *events, *message_end(stop))


def test_agt_3_an_answer_keeps_its_parts_in_order_and_its_original_blocks() -> None:
    redacted: Block = ({"type": "redacted_thinking", "data": "EmwK"}, [])
    deltas, response = from_blocks(
        thinking("left first", "sig1"),
        text("I look."),
        tool_use(Call("toolu_1", "look", {"at": "left"})),
        redacted,
        thinking("then right", "sig2"),
        tool_use(Call("toolu_2", "look", {"at": [1.5, None]})),
        stop="tool_use",
    )
    assert "".join(delta.text for delta in deltas if delta.kind == "think") == "left firstthen right"
    assert [delta.text for delta in deltas if delta.kind == "call"] == ["look", "look"]
    assert response.model_dump(exclude={"usage"}) == {
        "parts": [
            {"kind": "think", "text": "left first"},
            {"kind": "respond", "text": "I look."},
            {"kind": "call", "id": "toolu_1", "name": "look", "args": {"at": "left"}},
            {"kind": "think", "text": "then right"},
            {"kind": "call", "id": "toolu_2", "name": "look", "args": {"at": [1.5, None]}},
        ],
        "stop": "tool_calls",
        "model": MODEL,
        "request_id": "req_1",
        "state": {
            "api": "anthropic.messages",
            "model": MODEL,
            "items": [
                {"type": "thinking", "thinking": "left first", "signature": "sig1"},
                {"type": "text", "text": "I look.", "citations": None},
                {
                    "type": "tool_use",
                    "id": "toolu_1",
                    "name": "look",
                    "input": {"at": "left"},
                    "caller": {"type": "direct"},
                },
                {"type": "redacted_thinking", "data": "EmwK"},
                {"type": "thinking", "thinking": "then right", "signature": "sig2"},
                {
                    "type": "tool_use",
                    "id": "toolu_2",
                    "name": "look",
                    "input": {"at": [1.5, None]},
                    "caller": {"type": "direct"},
                },
            ],
        },
    }


def test_agt_3_unknown_blocks_and_deltas_are_sent_back_unchanged() -> None:
    deltas, response = from_blocks(
        ({"type": "dream", "content": None, "scenes": [1], "depth": 1}, [
            {"type": "dream_delta", "content": "a "},
            {"type": "dream_delta", "content": "boat", "scenes": [2]},
            {"type": "dream_delta", "depth": {"x": 2}, "progress": 7},
        ]),
        ({"type": "text", "text": "", "citations": None}, [
            {"type": "text_delta", "text": "Hi"},
            {"type": "citations_delta", "citation": {"cited_text": "Hi"}},
        ]),
    )  # fmt: skip
    assert [delta.text for delta in deltas] == ["Hi"]
    assert response.text == "Hi"
    assert response.state is not None
    assert response.state.items == [
        {"type": "dream", "content": "a boat", "scenes": [1, 2], "depth": {"x": 2}},
        {"type": "text", "text": "Hi", "citations": [{"cited_text": "Hi"}]},
    ]


@pytest.mark.parametrize("arguments", ['{"at": ', "[1]", '{"at": NaN}', '{"a":' * 2_000, "left"])
def test_agt_3_arguments_that_are_not_a_json_object_stay_text_and_can_be_sent_back(arguments: str) -> None:
    _, response = from_blocks(tool_use(Call("toolu_1", "look", arguments)), stop="tool_use")
    assert [call.args for call in response.calls] == [arguments]
    assert response.state is not None
    body = encoded(
        user("?"),
        ModelMessage(role="assistant", tool_calls=response.calls, state=response.state),
        result("toolu_1", "no JSON", "error"),
    )
    assert body["messages"][1]["content"][0]["input"] == {"invalid_json": arguments}
    ModelResponse.model_validate_json(response.model_dump_json())


def test_agt_3_arguments_may_arrive_all_at_once_or_be_missing() -> None:
    at_once: Block = ({"type": "tool_use", "id": "a", "name": "look", "input": {"at": "left"}}, [])
    _, response = from_blocks(at_once, tool_use(Call("b", "look", "")), stop="tool_use")
    assert [call.args for call in response.calls] == [{"at": "left"}, {}]


@given(st.lists(st.characters(codec="utf-8"), max_size=20), st.integers(min_value=1, max_value=7))
def test_agt_3_an_answer_is_sent_back_unchanged_however_its_stream_was_split(chars: list[str], size: int) -> None:
    thought = "x" + "".join(chars)
    pieces = [thought[at : at + size] for at in range(0, len(thought), size)]
    start = {"type": "thinking", "thinking": "", "signature": ""}
    deltas: list[dict[str, Any]] = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
    _, response = from_blocks((start, [*deltas, {"type": "signature_delta", "signature": "s"}]))
    restored = ModelResponse.model_validate_json(response.model_dump_json())
    assert restored.state is not None
    assert restored.state.items == [
        {"type": "thinking", "thinking": thought.replace("\x00", "\ufffd"), "signature": "s"}
    ]


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("end_turn", "end_turn"),
        ("stop_sequence", "end_turn"),
        ("max_tokens", "max_tokens"),
        ("tool_use", "end_turn"),
        ("stop", "end_turn"),
        ("length", "max_tokens"),
    ],
)
def test_agt_3_every_stop_reason_is_mapped(stop: str, expected: str) -> None:
    _, response = from_blocks(text("Well."), stop=stop)
    assert (response.stop, response.text) == (expected, "Well.")
    assert (response.state is None) is (stop in ("max_tokens", "tool_use", "length"))


def test_agt_3_a_truncated_answer_has_no_calls() -> None:
    _, response = from_blocks(text("Well."), tool_use(Call("a", "pay", '{"sum": 1')), stop="max_tokens")
    assert response.calls == []
    assert response.text == "Well."
    assert response.state is None


@pytest.mark.parametrize("stop", ["tool_use", "end_turn", "stop_sequence", "stop", "tool_calls"])
def test_agt_9_tool_calls_run_whatever_regular_stop_reason_is_reported(stop: str) -> None:
    _, response = from_blocks(text("Well."), tool_use(Call("a", "pay", {"sum": 1})), stop=stop)
    assert (response.stop, [call.args for call in response.calls]) == ("tool_calls", [{"sum": 1}])
    assert response.state is not None


CODE = {"type": "server_tool_use", "id": "srv_1", "name": "code", "input": {}}
RAN: Block = ({"type": "code_execution_tool_result", "tool_use_id": "srv_1", "content": []}, [])


@pytest.mark.parametrize(
    ("blocks", "stop", "is_kept"),
    [
        ([text("Well."), (CODE, []), RAN], "end_turn", True),
        ([(CODE, []), RAN, tool_use(Call("a", "look"))], "tool_use", True),
        ([(CODE, []), tool_use(Call("a", "look"))], "tool_use", False),
        ([text("Well."), ({**CODE, "type": "dream_use"}, [])], "tool_use", False),
        ([text("Well."), ({"type": "dream", "id": "d_1"}, [])], "tool_use", False),
        ([text("Well."), ({"type": "dream", "id": "d_1"}, [])], "end_turn", True),
    ],
)
def test_agt_3_calls_without_a_result_are_not_sent_back(blocks: list[Block], stop: str, is_kept: bool) -> None:
    _, response = from_blocks(*blocks, stop=stop)
    assert (response.state is not None) is is_kept


@pytest.mark.parametrize(
    ("stop", "details", "error_type", "expected_message"),
    [
        ("refusal", {"type": "refusal", "category": "bio", "explanation": "Not\nthis."}, "refusal", "“Not this.”"),
        ("refusal", {"type": "refusal", "category": "bio", "explanation": None}, "refusal", "“bio”"),
        ("refusal", None, "refusal", "no reason"),
        ("model_context_window_exceeded", None, "context_too_long", "the model's context"),
        ("pause_turn", None, "bad_request", "paused"),
        ("content_filter", None, "refusal", "“content_filter”"),
        ("sensitive", None, "refusal", "“sensitive”"),
        ("network_error", None, "provider_error", "“network_error”"),
        ("of_next_year", None, "provider_error", "not known to end a complete answer"),
    ],
)
def test_agt_9_a_stop_reason_without_an_answer_is_an_error(
    stop: str, details: dict[str, Any] | None, error_type: str, expected_message: str
) -> None:
    events = [message_start(), *block_events(0, *text("Half")), *message_end(stop, details=details)]
    with pytest.raises(ModelError) as raised:
        folded(*events)
    assert raised.value.error_type == error_type
    assert expected_message in raised.value.message


def test_agt_9_a_message_without_a_stop_reason_is_not_an_answer() -> None:
    with pytest.raises(ModelError, match="without a reason"):
        folded(message_start(), *block_events(0, *text("Half")), *message_end(None))


def test_agt_10_usage_includes_cached_tokens() -> None:
    answer = Answer(text="Hi", input=1000, cached=800, cache_write=150, output=70, reasoning=40)
    _, response = folded(*answer_events(answer))
    assert response.usage == Usage(
        input_tokens=1000, cached_tokens=800, cache_write_tokens=150, output_tokens=70, reasoning_tokens=40
    )


def test_agt_10_later_counts_replace_earlier_ones_and_null_counts_are_ignored() -> None:
    start = message_start({"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 1})
    end_usage = {"output_tokens": 9, "input_tokens": 12, "cache_read_input_tokens": None, "output_tokens_details": None}
    _, response = folded(start, *block_events(0, *text("Hi")), *message_end("end_turn", end_usage))
    assert response.usage == Usage(input_tokens=17, cached_tokens=5, output_tokens=9)


@pytest.mark.parametrize(
    ("start_usage", "end_usage"),
    [
        ({"input_tokens": 10, "output_tokens": 1}, {"service_tier": "standard"}),
        ({"input_tokens": 10, "output_tokens": 1}, {"output_tokens": None}),
        ({"output_tokens": 1}, {"output_tokens": 9}),
        ({"input_tokens": None, "output_tokens": 1}, {"output_tokens": 9}),
        ({"input_tokens": 10}, {"output_tokens": -1}),
        ({"input_tokens": -1}, {"output_tokens": 9}),
        ({"input_tokens": True}, {"output_tokens": 9}),
        ({"input_tokens": 10}, "abc"),
        (1.5, {"output_tokens": 9}),
        ([7], [7]),
    ],
)
def test_agt_10_usage_without_input_or_output_tokens_is_not_reported(start_usage: Any, end_usage: Any) -> None:
    _, response = folded(message_start(start_usage), *block_events(0, *text("Hi")), *message_end("end_turn", end_usage))
    assert (response.text, response.usage) == ("Hi", None)


def test_agt_10_a_usage_of_zero_tokens_is_reported() -> None:
    _, response = folded(message_start({"input_tokens": 0}), *message_end("end_turn", {"output_tokens": 0}))
    assert response.usage == Usage()


@pytest.mark.parametrize("odd", [[], [7], "none", 7])
def test_agt_10_malformed_usage_details_are_ignored(odd: Any) -> None:
    end_usage = {"output_tokens": 9, "output_tokens_details": odd}
    assert folded(message_start(), *message_end("end_turn", end_usage))[1].usage == Usage(
        input_tokens=100, output_tokens=9
    )


@pytest.mark.parametrize("odd", [7, ["m"], {}, None])
def test_agt_3_a_malformed_model_name_or_id_does_not_fail_the_answer(odd: Any) -> None:
    start = message_start()
    start["message"] |= {"model": odd, "id": odd}
    _, response = folded(start, *block_events(0, *text("So.")), *message_end("end_turn"), request_id=None)
    assert (response.text, response.model, response.request_id) == ("So.", MODEL, None)


def test_agt_3_a_name_that_cannot_be_stored_is_cleaned() -> None:
    start = message_start()
    start["message"] |= {"model": "m\ud83d\x00", "id": "i\ud83d\x00"}
    call = tool_use(Call("c\ud83d\x00", "look\ud83d\x00", {"at": "\x00"}))
    _, response = folded(start, *block_events(0, *call), *message_end("tool_use"), request_id=None)
    assert (response.model, response.request_id) == ("m\ufffd\ufffd", "i\ufffd\ufffd")
    assert ModelResponse.model_validate_json(response.model_dump_json()) == response
    message = ModelMessage(role="assistant", tool_calls=response.calls, state=response.state)
    answered = result(response.calls[0].id, "ok")
    assert encoded(user("?"), message, answered)["messages"][1]["content"][0]["name"] == "look__"


def test_agt_3_without_a_header_the_request_id_is_the_message_id() -> None:
    _, response = folded(*answer_events(Answer(text="Hi")), request_id=None)
    assert response.request_id == "msg_1"


def test_agt_3_unknown_events_are_ignored() -> None:
    events: Iterable[dict[str, Any]] = answer_events(Answer(text="Hi"))
    first, *rest = events
    _, response = folded(first, {"type": "weather", "index": 7}, *rest)
    assert response.text == "Hi"


# ---- the SDK


async def test_agt_4_a_vendors_sdk_is_loaded_only_when_one_of_its_models_is_called() -> None:
    script = """if True:
        import sys, worker
        from turnkeeper.activities.providers.provider import ProviderRegistry
        from turnkeeper.models.settings.settings import Settings
        providers = ProviderRegistry.from_settings(Settings(openai_chat={"base_url": "http://127.0.0.1:1/v1"}))
        for vendor in ("anthropic", "openai", "openai-chat"):
            provider, name = providers.resolve(f"{vendor}:m")
            print(type(provider).__name__, name)
        print([sdk for sdk in ("anthropic", "openai", "genai_prices") if sdk in sys.modules])
    """
    process = await fork("tests.processes.script", script, env=os.environ, cwd=ROOT, stdout=PIPE)
    loaded, _ = await process.communicate()
    lines = ["AnthropicProvider m", "OpenAIProvider m", "OpenAIChatProvider m", "[]"]
    assert loaded.decode().splitlines() == lines
