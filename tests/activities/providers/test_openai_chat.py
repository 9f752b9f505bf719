"""Requests to a Chat Completions endpoint, and responses built from its stream: AGT-3, AGT-4, AGT-10, CTX-13."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vendors.chat_wire import MODEL, ChatWire, answer_chunks, chunk
from tests.vendors.golden_files import assert_golden
from turnkeeper.activities.providers.answer_fields import UNCLEAR_ANSWER
from turnkeeper.activities.providers.openai.chat import ChatAccumulator, TextChatAccumulator
from turnkeeper.activities.providers.openai.chat_request import (
    REASONING_TOKENS,
    encode,
    encode_text,
    fields_in,
    missing_in,
)
from turnkeeper.activities.providers.protocol import Delta, ModelError
from turnkeeper.activities.providers.request_encoding import OPENING, short_id
from turnkeeper.models.transcript.conversation import Usage
from turnkeeper.models.transcript.model_call import (
    CallPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ProviderState,
    RequestHead,
    RespondPart,
    ThinkPart,
    ToolSpec,
)
from turnkeeper.testing.vendor_server import Answer, Call

HEAD = RequestHead(
    system="Be brief.",
    tools=[ToolSpec(name="look", description="Look at a thing.", input_schema={"properties": {"at": {}}})],
)
SUMMARY = RequestHead(system="Summarise.", max_tokens=1024)


def user(content: str) -> ModelMessage:
    return ModelMessage(role="user", content=content)


def assistant(content: str = "", *calls: Call, items: list[Any] | None = None, model: str = MODEL) -> ModelMessage:
    state = None if items is None else ProviderState(api="openai.chat", model=model, items=items)
    parts = [CallPart(kind="call", id=call.id, name=call.name, args=call.args) for call in calls]
    return ModelMessage(role="assistant", content=content, tool_calls=parts, state=state)


def result(call_id: str, content: str, status: Any = "ok") -> ModelMessage:
    return ModelMessage(role="tool", content=content, call_id=call_id, tool_name="look", status=status)


def encoded(*messages: ModelMessage, head: RequestHead = HEAD, by: Any = encode, **fields: Any) -> Any:
    """Return the body, checked against OpenAI's types and the rules of strict templates."""
    body = by(ModelRequest(head=head, messages=list(messages)), name=MODEL, **fields)
    ChatWire().check(json.loads(json.dumps(body)))
    return body


BEYOND: list[Any] = [
    {"reasoning_content": "First the\nleft…"},
    {"type": "function", "id": "call_1", "extra_content": {"google": {"thought_signature": "c2ln"}}},
    {"type": "function", "id": "call_2"},
]
STEP = assistant("I look.", Call("call_1", "look", {"at": "left"}), Call("call_2", "look", {"at": "Ü"}), items=BEYOND)
CONVERSATION = [
    user("What is there?"),
    STEP,
    result("call_1", "looked\n\na chair"),
    result("call_2", "There is no such thing.", "error"),
    user("Be quick."),
    assistant("A chair."),
    user("Thanks. And now?"),
    assistant("", Call("call_1", "files.read", {"at": "x"}), Call("call_1", "look", '{"at": ')),
    result("call_1", "read"),
    result("call_1", "The arguments are no JSON object.", "error"),
    assistant("Done."),
]


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_agt_3_a_conversation_is_encoded_to_the_recorded_bytes():
    assert_golden("chat_conversation", encoded(*CONVERSATION, user("Go home.")))


def test_agt_3_a_summary_request_is_encoded_to_the_recorded_bytes():
    assert_golden("chat_summary", encoded(user("The record"), head=SUMMARY))


def test_ctx_13_a_conversation_in_the_text_protocol_is_encoded_to_the_recorded_bytes():
    assert_golden("chat_text_conversation", encoded(*CONVERSATION, user("Go home."), by=encode_text))


@pytest.mark.parametrize("length", range(1, len(CONVERSATION)))
def test_agt_3_appending_messages_keeps_the_encoded_prefix_unchanged(length):
    if CONVERSATION[length].role == "tool":
        return  # a step goes with its results
    whole, part = encoded(*CONVERSATION), encoded(*CONVERSATION[:length])
    assert json.dumps(whole["messages"][: len(part["messages"])]) == json.dumps(part["messages"])
    assert {**whole, "messages": []} == {**part, "messages": []}


def test_agt_3_extra_fields_of_an_answer_are_sent_back_to_the_same_model_only():
    assert encoded(*CONVERSATION)["messages"][2] == {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "First the\nleft…",
        "tool_calls": [
            {
                "id": short_id("call_1", 1),
                "type": "function",
                "function": {"name": "look", "arguments": '{"at": "left"}'},
                "extra_content": {"google": {"thought_signature": "c2ln"}},
            },
            {
                "id": short_id("call_2", 1),
                "type": "function",
                "function": {"name": "look", "arguments": '{"at": "Ü"}'},
            },
        ],
    }
    other = assistant("I look.", Call("call_1", "look"), Call("call_2", "look"), items=BEYOND, model="other")
    messages = encode(ModelRequest(head=HEAD, messages=[user("?"), other]), name=MODEL)["messages"]
    assert "reasoning_content" not in json.dumps(messages)


def test_agt_4_fields_that_an_endpoint_rejects_are_omitted_from_messages():
    whole = encoded(*CONVERSATION)
    assert fields_in(whole) == {"reasoning_content", "extra_content"}
    assert missing_in(whole) == {"reasoning_content", "content"}
    assert fields_in(encoded(user("?"))) == missing_in(encoded(*CONVERSATION[:4])) == frozenset()
    body = encoded(*CONVERSATION, without=["reasoning_content", "extra_content"])
    assert set(body["messages"][2]) == {"role", "content", "tool_calls"}


def test_agt_4_a_required_field_is_added_to_every_answer_that_lacks_it():
    messages = [*CONVERSATION, user("Go home.")]
    request = ModelRequest(head=HEAD, messages=messages)
    body = encode(request, name=MODEL, required=["reasoning_content"])
    answers = [message for message in body["messages"] if message["role"] == "assistant"]
    assert [message["reasoning_content"] for message in answers] == ["First the\nleft…", " ", " ", " ", " "]
    others = [message for message in body["messages"] if message["role"] != "assistant"]
    assert not [message for message in others if "reasoning_content" in message]


@pytest.mark.parametrize("by", [encode, encode_text])
def test_agt_4_a_limited_answer_leaves_room_for_reasoning(by):
    assert encoded(user("?"), head=SUMMARY, by=by)["max_tokens"] == 1024 + REASONING_TOKENS
    assert "max_tokens" not in encoded(user("?"), by=by)


@pytest.mark.parametrize("vendor_id", ["toolu_01A09q90qw90lq917835lq9", "functions.look:0", "D681PevKs", "", "ü"])
def test_agt_3_call_ids_have_nine_alphanumeric_characters_and_are_unique(vendor_id):
    calls = [Call(vendor_id, "look"), Call(vendor_id, "look"), Call("D681PevKs", "look")]
    body = encoded(user("?"), assistant("", *calls), *(result(call.id, "a chair") for call in calls))
    ids = [call["id"] for call in body["messages"][2]["tool_calls"]]
    assert all(re.fullmatch("[A-Za-z0-9]{9}", call_id) for call_id in ids)
    assert len(set(ids)) == 3
    assert [message["tool_call_id"] for message in body["messages"][3:]] == ids


@pytest.mark.parametrize("vendor_id", ["functions.look:0", f"call_1__thought__{'c2ln' * 20}"])
def test_agt_3_meaningful_call_ids_are_sent_back_to_the_same_model(vendor_id):
    piece = {"index": 0, "id": vendor_id, "function": {"name": "look", "arguments": "{}"}}
    response = from_deltas({"tool_calls": [piece]})
    step = ModelMessage(role="assistant", tool_calls=response.calls, state=response.state)
    body = encoded(user("?"), step, result(vendor_id, "a chair"))
    assert [call["id"] for call in body["messages"][2]["tool_calls"]] == [vendor_id]
    other = encode(ModelRequest(head=HEAD, messages=[user("?"), step, result(vendor_id, "a")]), name="other")
    assert vendor_id not in json.dumps(other["messages"])


def test_agt_3_random_call_ids_are_shortened_and_meaningful_ones_are_unchanged():
    pieces = [
        {"index": n, "id": vendor_id, "function": {"name": "look", "arguments": "{}"}}
        for n, vendor_id in enumerate(["functions.look:0", "toolu_01A"])
    ]
    response = from_deltas({"tool_calls": pieces})
    step = ModelMessage(role="assistant", tool_calls=response.calls, state=response.state)
    body = encoded(user("?"), step, result("functions.look:0", "a chair"), result("toolu_01A", "a door"))
    ids = [call["id"] for call in body["messages"][2]["tool_calls"]]
    assert ids == ["functions.look:0", short_id("toolu_01A", 1)]
    assert [message["tool_call_id"] for message in body["messages"][3:]] == ids


def test_agt_4_the_user_speaks_first_and_roles_alternate():
    body = encoded(
        assistant("[Conversation Summary] So far."),
        assistant("I look.", Call("c", "look")),
        result("c", "a chair"),
        user("Hurry."),
        head=RequestHead(),
    )
    assert body["messages"] == [
        {"role": "user", "content": OPENING},
        {
            "role": "assistant",
            "content": "[Conversation Summary] So far.\n\nI look.",
            "tool_calls": [
                {"id": short_id("c", 1), "type": "function", "function": {"name": "look", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": short_id("c", 1), "content": "a chair"},
        {"role": "assistant", "content": "(I have the results.)"},
        {"role": "user", "content": "Hurry."},
    ]


def test_agt_4_a_message_with_calls_only_has_null_content_and_json_arguments():
    step = encoded(*CONVERSATION)["messages"][9]
    assert step["content"] is None
    assert [call["function"] for call in step["tool_calls"]] == [
        {"name": "files_read", "arguments": '{"at": "x"}'},
        {"name": "look", "arguments": '{"invalid_json": "{\\"at\\": "}'},
    ]


ODD_COUNT = {"prompt_tokens": 9, "completion_tokens": -(10**9)}
DETAILS = ("prompt_tokens_details", "completion_tokens_details")


# ── Answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def folded(*chunks: dict[str, Any], fold: type[ChatAccumulator] = ChatAccumulator) -> tuple[list[Delta], ModelResponse]:
    answer = fold(MODEL, request=7)
    deltas = [delta for each in chunks for delta in answer.add(each)]
    assert answer.is_complete
    assert answer.failure is None
    return deltas, answer.response(request_id="req_1")


def from_deltas(
    *deltas: dict[str, Any], finish: str = "stop", fold: type[ChatAccumulator] = ChatAccumulator
) -> ModelResponse:
    return folded(*map(chunk, deltas), chunk({}, finish), fold=fold)[1]


def call(id: str, name: str, args: Any) -> CallPart:
    return CallPart(kind="call", id=id, name=name, args=args)


def test_agt_3_an_answer_keeps_its_parts_and_the_state_that_the_server_needs_back():
    calls = [Call("c1", "look", {"at": "left"}), Call("c2", "look", {"at": [1.5, None]})]
    deltas, response = folded(
        *answer_chunks(Answer(text="I look.", think="left first", calls=calls, cached=60, reasoning=7))
    )
    assert response == ModelResponse(
        parts=[
            ThinkPart(kind="think", text="left first"),
            RespondPart(kind="respond", text="I look."),
            call("c1", "look", {"at": "left"}),
            call("c2", "look", {"at": [1.5, None]}),
        ],
        stop="tool_calls",
        usage=Usage(input_tokens=100, output_tokens=20, cached_tokens=60, reasoning_tokens=7),
        model=MODEL,
        request_id="req_1",
        state=ProviderState(
            api="openai.chat",
            model=MODEL,
            items=[
                {"reasoning_content": "left first"},
                {"type": "function", "id": "c1"},
                {"type": "function", "id": "c2"},
            ],
        ),
    )
    streamed = [(delta.kind, delta.text) for delta in deltas]
    assert "".join(text for kind, text in streamed if kind == "think") == "left first"
    assert "".join(text for kind, text in streamed if kind == "respond") == "I look."
    assert [text for kind, text in streamed if kind == "call"] == ["look", "look"]


def test_agt_3_an_answer_without_extra_fields_has_no_state():
    response = from_deltas({"role": "assistant", "content": "So.", "refusal": None, "annotations": [], "audio": None})
    assert (response.text, response.state, response.usage) == ("So.", None, None)


def choice(index: Any, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": finish}


def test_agt_3_the_first_of_several_choices_is_the_answer():
    other = choice(1, {"content": "No."}, "stop")
    together = {**chunk({}), "choices": [other, choice(0, {"content": "s."}, "stop")]}
    answer = ChatAccumulator(MODEL, request=1)
    for event in (chunk({"content": "Ye"}), {**chunk({}), "choices": [other]}):
        answer.add(event)
    assert not answer.is_complete
    answer.add(together)
    assert answer.is_complete
    assert answer.response(request_id=None).text == "Yes."


@pytest.mark.parametrize("unnumbered", [{"index": None}, {}])
def test_agt_3_a_choice_without_an_index_is_the_first(unnumbered):
    choice = {"delta": {"content": "So."}, "finish_reason": "stop"} | unnumbered
    assert folded({**chunk({}), "choices": [choice]})[1].text == "So."


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_agt_4_thinking_is_shown_whichever_field_it_arrives_in(field):
    response = from_deltas({field: "left "}, {field: "first", "content": None}, {"content": "So."})
    assert (response.thinking, response.text) == ("left first", "So.")
    both = from_deltas({"reasoning": "once", "reasoning_content": "once"}, {"content": "So."})
    assert both.thinking == "once"


def test_agt_3_unknown_fields_are_concatenated_and_sent_back():
    response = from_deltas(
        {"content": "So.", "signature": "a", "steps": [1], "mood": {"x": 1}},
        {"signature": "b", "steps": [2], "mood": {"x": 2}},
    )
    assert response.state is not None
    assert response.state.items == [{"signature": "ab", "steps": [1, 2], "mood": {"x": 2}}]
    again = encoded(user("?"), ModelMessage(role="assistant", content="So.", state=response.state), user("!"))
    assert again["messages"][2] == {
        "role": "assistant",
        "content": "So.",
        "steps": [1, 2],
        "mood": {"x": 2},
        "signature": "ab",
    }


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        pytest.param(
            [
                {"index": 0, "id": "a", "function": {"name": "lo", "arguments": ""}},
                {"index": 0, "function": {"name": "ok"}},
                {"index": 0, "function": {"arguments": '{"at"'}},
                {"index": 0, "function": {"arguments": ": 1}"}},
            ],
            [call("a", "look", {"at": 1})],
            id="a name in pieces",
        ),
        pytest.param(
            [
                {"index": 0, "id": "a", "function": {"name": "look", "arguments": '{"at"'}},
                {"index": 0, "id": "a", "function": {"name": "look", "arguments": ": 1}"}},
            ],
            [call("a", "look", {"at": 1})],
            id="name and id in every chunk",
        ),
        pytest.param(
            [
                {"index": 0, "id": "a", "function": {"name": "look", "arguments": '{"at"'}},
                {"index": 0, "id": "b", "function": {"arguments": ": 1}"}},
            ],
            [call("a", "look", {"at": 1})],
            id="a new id in every chunk",
        ),
        pytest.param(
            [
                {"index": 0, "id": "a", "function": {"name": "look", "arguments": "{}"}},
                {"index": 0, "id": "b", "function": {"name": "look", "arguments": '{"at": 1}'}},
            ],
            [call("a", "look", {}), call("b", "look", {"at": 1})],
            id="all calls are number 0",
        ),
        pytest.param(
            [
                {"id": "a", "function": {"name": "look", "arguments": '{"at"'}},
                {"function": {"arguments": ": 1}"}},
                {"id": "b", "function": {"name": "look", "arguments": "{}"}},
            ],
            [call("a", "look", {"at": 1}), call("b", "look", {})],
            id="no index",
        ),
        pytest.param(
            [
                {"function": {"name": "look", "arguments": '{"at": 1}'}},
                {"function": {"name": "look", "arguments": '{"at": 2}'}},
            ],
            [call("call_7_0", "look", {"at": 1}), call("call_7_1", "look", {"at": 2})],
            id="neither index nor id",
        ),
        pytest.param(
            [
                {"index": 0, "id": "same", "function": {"name": "look", "arguments": "{}"}},
                {"index": 1, "id": "same", "function": {"name": "look", "arguments": "{}"}},
            ],
            [call("same", "look", {}), call("call_7_1", "look", {})],
            id="ids that repeat",
        ),
        pytest.param(
            [{"index": 0, "id": "a", "function": {"name": "look", "arguments": {"at": "é"}}}],
            [call("a", "look", {"at": "é"})],
            id="arguments as an object",
        ),
        pytest.param(
            [{"index": 0, "id": "a", "function": {"name": "look", "arguments": None}}],
            [call("a", "look", {})],
            id="no arguments",
        ),
        pytest.param(
            [
                {"index": 1, "id": "b", "function": {"name": "two", "arguments": "{"}},
                {"index": 0, "id": "a", "function": {"name": "one", "arguments": "{"}},
                {"index": 1, "function": {"arguments": "}"}},
                {"index": 0, "function": {"arguments": "}"}},
            ],
            [call("b", "two", {}), call("a", "one", {})],
            id="pieces of two calls by turns",
        ),
        pytest.param(
            [{"index": 0, "id": "a", "function": {"name": "look", "arguments": '{"at": '}}],
            [call("a", "look", '{"at": ')],
            id="no JSON",
        ),
    ],
)
@pytest.mark.parametrize("finish", ["tool_calls", "stop", "function_call"])
def test_agt_4_calls_are_assembled_from_any_form_of_deltas(deltas, expected, finish):
    response = from_deltas(*({"tool_calls": [delta]} for delta in deltas), finish=finish)
    assert response.calls == expected
    assert response.stop == "tool_calls"


def test_agt_4_a_legacy_function_call_is_a_call():
    response = from_deltas(
        {"function_call": {"name": "look", "arguments": '{"at"'}},
        {"function_call": {"arguments": ": 1}"}},
        finish="function_call",
    )
    assert response.calls == [call("call_7_0", "look", {"at": 1})]


def test_agt_4_an_unstreamed_answer_is_read():
    whole = {**chunk({}), "choices": [{"index": 0, "message": {"content": "So."}, "finish_reason": "stop"}]}
    assert folded(whole)[1].text == "So."
    assert (
        from_deltas({"content": [{"type": "text", "text": "So."}, {"type": "thinking", "thinking": []}]}).text == "So."
    )


def test_agt_3_a_truncated_answer_has_no_calls_and_no_state():
    half = {"index": 0, "id": "a", "function": {"name": "look", "arguments": "{"}}
    response = from_deltas({"reasoning": "hm", "content": "Half"}, {"tool_calls": [half]}, finish="length")
    assert (response.stop, response.text, response.calls, response.state) == ("max_tokens", "Half", [], None)


@pytest.mark.parametrize(
    ("delta", "finish", "error_type"),
    [
        ({"content": "I wi"}, "content_filter", "refusal"),
        ({"refusal": "I will not."}, "stop", "refusal"),
        ({"content": "I wi"}, "error", "provider_error"),
        ({"content": "I wi"}, "insufficient_system_resource", "overloaded"),
        ({"content": "I wi"}, "network_error", "provider_error"),
        ({"content": "I wi"}, "abort", "provider_error"),
        ({"content": "I wi"}, "time_limit", "timeout"),
        ({"content": "I wi"}, "sensitive", "refusal"),
        ({"content": "I wi"}, "content_filter: SAFETY", "refusal"),
        ({}, "content_filter: PROHIBITED_CONTENT", "refusal"),
        ({}, "function_call_filter: MALFORMED_FUNCTION_CALL", "provider_error"),
        ({}, "MALFORMED_FUNCTION_CALL", "provider_error"),
        ({}, "function_call_filter: UNEXPECTED_TOOL_CALL", "provider_error"),
        ({"content": "I wi"}, "SAFETY", "refusal"),
        ({"content": "I wi"}, "PROHIBITED_CONTENT", "refusal"),
        ({"content": "I wi"}, "guardrail_intervened", "refusal"),
        ({"content": "I wi"}, "recitation", "refusal"),
        ({"content": "I wi"}, "model_context_window_exceeded", "context_too_long"),
        ({"content": "I wi"}, "repetition", "provider_error"),
        ({"content": "I wi"}, "cancelled", "provider_error"),
        ({"content": "I wi"}, "of next year", "provider_error"),
    ],
)
@pytest.mark.parametrize("fold", [ChatAccumulator, TextChatAccumulator])
def test_agt_9_refusals_and_failures_are_not_answers(delta, finish, error_type, fold):
    with pytest.raises(ModelError) as failed:
        from_deltas(delta, finish=finish, fold=fold)
    assert failed.value.error_type == error_type


@pytest.mark.parametrize("finish", ["stop", "STOP", "tool_calls", "function_call", "eos", "eos_token", "end_turn",
                                    "stop_sequence", "stop-sequence", "COMPLETE", " stop "])  # fmt: skip
def test_agt_9_every_regular_finish_reason_completes_the_answer(finish):
    assert (from_deltas({"content": "So."}, finish=finish).text, from_deltas({}, finish=finish).stop) == (
        "So.",
        "end_turn",
    )


@pytest.mark.parametrize("finish", ["length", "max_tokens", "MAX_TOKENS", "model_length", "max_output_tokens"])
def test_agt_9_a_finish_reason_that_means_a_length_limit_truncates_the_answer(finish):
    half = {"index": 0, "id": "a", "function": {"name": "look", "arguments": "{}"}}
    response = from_deltas({"content": "Half"}, {"tool_calls": [half]}, finish=finish)
    assert (response.stop, response.calls, response.state) == ("max_tokens", [], None)


def test_agt_9_unknown_finish_reasons_are_retried_a_few_times():
    botched = ("function_call_filter: MALFORMED_FUNCTION_CALL", UNCLEAR_ANSWER)
    for finish, lasting in (("of next year", UNCLEAR_ANSWER), botched, ("network_error", "")):
        with pytest.raises(ModelError) as failed:
            from_deltas({"content": "I wi"}, finish=finish)
        assert failed.value.lasting == lasting


def test_agt_3_an_answer_without_a_finish_reason_is_incomplete():
    answer = ChatAccumulator(MODEL, request=1)
    for each in (chunk({"content": "So."}), {**chunk({}), "choices": [], "usage": {"prompt_tokens": 1}}, chunk({}, "")):
        answer.add(each)
    assert not answer.is_complete


def test_agt_3_split_characters_are_joined_or_replaced():
    response = from_deltas({"content": "a \ud83d"}, {"content": "\ude00 b \ud83d", "mood": "\ud83d"})
    assert response.text == "a \U0001f600 b \ufffd"
    ModelResponse.model_validate_json(response.model_dump_json())


KEYS = st.sampled_from(
    [
        "choices",
        "delta",
        "message",
        "content",
        "reasoning",
        "refusal",
        "tool_calls",
        "function_call",
        "function",
        "index",
        "id",
        "name",
        "arguments",
        "finish_reason",
        "usage",
        "model",
        "prompt_tokens",
        "mood",
        "object",
        "error",
    ]
)
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "stop", "length", "look", "{}", "\ud83d"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
UNDERSTOOD = (KeyError, IndexError, TypeError, AttributeError, ValueError, ModelError)
"""The errors that `Transport.understanding` treats as an unreadable answer."""


@given(st.lists(st.dictionaries(KEYS, ODD, max_size=4) | st.builds(chunk, st.dictionaries(KEYS, ODD)), max_size=4))
@pytest.mark.parametrize("fold", [ChatAccumulator, TextChatAccumulator])
def test_agt_11_any_stream_yields_a_storable_answer_or_a_provider_error(fold, events):
    answer = fold(MODEL, request=1)
    try:
        for event in [*events, chunk({}, "stop")]:
            answer.add(event)
        response = answer.response(request_id=None)
    except UNDERSTOOD:
        return
    assert ModelResponse.model_validate_json(response.model_dump_json()) == response


@pytest.mark.parametrize("fold", [ChatAccumulator, TextChatAccumulator])
@pytest.mark.parametrize("size", [1, 3, 1_000])
def test_ctx_13_leading_thinking_is_thinking_and_is_sent_back_in_its_place(fold, size):
    mark = "§respond: " if fold is TextChatAccumulator else ""
    text = f"<think>\nIs a < b?\n</think>\n\n{mark}Hi </think> there"
    pieces = [chunk({"content": text[at : at + size]}) for at in range(0, len(text), size)]
    deltas, response = folded(*pieces, chunk({}, "stop"), fold=fold)
    assert response.parts == [
        ThinkPart(kind="think", text="Is a < b?"),
        RespondPart(kind="respond", text="Hi </think> there"),
    ]
    assert "".join(delta.text for delta in deltas if delta.kind == "think").strip() == "Is a < b?"
    assert "".join(delta.text for delta in deltas if delta.kind == "respond") == "Hi </think> there"
    if fold is ChatAccumulator:
        again = encoded(user("?"), ModelMessage(role="assistant", content=response.text, state=response.state))
        assert again["messages"][2] == {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    "text", ["<thi", "<think>", "<think> is a tag.", " <think\n", "a <think>b</think>", "<thinking>", "\n\nSo.", "<"]
)
def test_ctx_13_text_that_resembles_thinking_tags_is_text(text):
    pieces = [chunk({"content": char}) for char in text]
    response = folded(*pieces, chunk({}, "stop"))[1]
    assert (response.parts, response.state) == ([RespondPart(kind="respond", text=text)], None)


def test_ctx_13_unfinished_thinking_is_not_an_answer():
    response = from_deltas({"content": "<think>Is a <"}, {"content": " b?"}, finish="length")
    assert response.parts == [ThinkPart(kind="think", text="Is a < b?")]


@pytest.mark.parametrize(
    "used",
    [
        "none", 7, 1.5, [], [{}], {}, {"prompt_tokens": 12.5, "completion_tokens": 1}, ODD_COUNT,
        {"prompt_tokens": "n/a", "completion_tokens": 1}, {"prompt_tokens": -1, "completion_tokens": 1},
        {"prompt_tokens": 1, "completion_tokens": -1}, {"prompt_tokens": 1}, {"completion_tokens": 1},
        {"prompt_tokens": None, "completion_tokens": None}, {"prompt_tokens": 1, "completion_tokens": True},
    ],
)  # fmt: skip
def test_agt_10_a_malformed_usage_does_not_fail_the_answer(used):
    response = folded({**chunk({"content": "So."}, "stop"), "usage": used})[1]
    assert (response.text, response.usage) == ("So.", None)


@pytest.mark.parametrize("odd", [[], [7], "none", 7, {}])
def test_agt_10_malformed_usage_details_are_ignored(odd):
    used = {"prompt_tokens": 9, "completion_tokens": 2} | dict.fromkeys(DETAILS, odd)
    assert folded({**chunk({"content": "So."}, "stop"), "usage": used})[1].usage == Usage(
        input_tokens=9, output_tokens=2
    )


@pytest.mark.parametrize("odd", [7, ["m"], {}, None])
def test_agt_3_a_malformed_model_name_or_id_does_not_fail_the_answer(odd):
    answer = ChatAccumulator(MODEL, request=1)
    answer.add({**chunk({"content": "So."}, "stop"), "model": odd, "id": odd})
    response = answer.response(request_id=None)
    assert (response.text, response.model, response.request_id) == ("So.", MODEL, None)


# ── The protocol text ────────────────────────────────────────────────────────────────────────────────────────────────


def test_ctx_13_an_answer_in_the_text_protocol_is_parsed_and_shown_without_marks():
    text = '§think: The clock.\n\n§respond: I look.\n\n§call: {"name": "now", "args": {"at": "é"}}\n§result: noon'
    pieces = [chunk({"content": text[at : at + 5]}) for at in range(0, len(text), 5)]
    deltas, response = folded(*pieces, chunk({}, "stop"), fold=TextChatAccumulator)
    assert response.parts == [
        ThinkPart(kind="think", text="The clock."),
        RespondPart(kind="respond", text="I look."),
        call("call_7_0", "now", {"at": "é"}),
    ]
    state = ProviderState(api="openai.chat.text", model=MODEL, items=[{"thinking": "The clock."}])
    assert (response.stop, response.state) == ("tool_calls", state)
    assert "".join(delta.text for delta in deltas if delta.kind == "respond") == "I look."
    assert [delta.text for delta in deltas if delta.kind == "call"] == ["now"]


def test_ctx_13_native_thinking_comes_before_the_written_parts():
    response = from_deltas(
        {"reasoning_content": "hm"},
        {"content": "§respond: So. \ud83d"},
        {"content": "\ude00"},
        fold=TextChatAccumulator,
    )
    assert response.parts == [ThinkPart(kind="think", text="hm"), RespondPart(kind="respond", text="So. \U0001f600")]
    assert (response.stop, response.state) == ("end_turn", None)


def test_ctx_13_a_call_in_a_truncated_answer_is_discarded():
    response = from_deltas(
        {"content": 'So.\n§call: {"name": "pay", "args": {}}'}, finish="length", fold=TextChatAccumulator
    )
    assert (response.stop, response.text, response.calls) == ("max_tokens", "So.", [])


def test_ctx_13_the_text_protocol_sends_neither_tools_nor_earlier_state():
    body = encoded(*CONVERSATION, user("Go on."), by=encode_text)
    assert "tools" not in body
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert "left…" not in json.dumps(body, ensure_ascii=False)
    assert body["stop"] == ["\n§result:", "\n§user:"]
