"""Requests to OpenAI's Responses API, and responses built from its stream: AGT-3, AGT-4, AGT-10."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vendors.golden_files import assert_golden
from tests.vendors.responses_wire import (
    MODEL,
    Item,
    ResponsesWire,
    answer_events,
    events_of,
    function_call,
    incomplete,
    message,
    reasoning,
    refusal,
)
from turnkeeper.activities.providers.answer_fields import UNCLEAR_ANSWER
from turnkeeper.activities.providers.openai.responses import ResponsesAccumulator, encode
from turnkeeper.activities.providers.protocol import Delta, ModelError
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
    tools=[
        ToolSpec(
            name="look",
            description="Look at a thing.",
            input_schema={"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
        ),
        ToolSpec(name="pay", input_schema={"anyOf": [{"type": "object"}], "additionalProperties": False}),
    ],
)
SUMMARY = RequestHead(system="Summarise.", max_tokens=1024)


def user(content: str) -> ModelMessage:
    return ModelMessage(role="user", content=content)


def assistant(content: str = "", *calls: Call, items: list[Any] | None = None, api: str = "openai.responses") -> Any:
    state = None if items is None else ProviderState(api=api, model=MODEL, items=items)
    parts = [CallPart(kind="call", id=call.id, name=call.name, args=call.args) for call in calls]
    return ModelMessage(role="assistant", content=content, tool_calls=parts, state=state)


def result(call_id: str, content: str, status: Any = "ok") -> ModelMessage:
    return ModelMessage(role="tool", content=content, call_id=call_id, tool_name="look", status=status)


def encoded(*messages: ModelMessage, head: RequestHead = HEAD, session_id: str = "s-1") -> Any:
    """Return the body, checked against the vendor's types and rules."""
    request = ModelRequest(head=head, messages=list(messages))
    body = encode(request, name=MODEL, session_id=session_id)
    ResponsesWire().check(json.loads(json.dumps(body)))
    return body


ITEMS: list[Any] = [
    reasoning("First the\nleft, one…"),
    message("I look.", "commentary"),
    {"type": "dream", "id": "dr_1", "scenes": [1.5, None], "status": "completed"},
    function_call(Call("call_1", "look", '{"at":  "left"}')),
    reasoning("", id="rs_2"),
    function_call(Call("call_2", "look", {"at": "1.0"})),
]
CONVERSATION = [
    user("What is there? “Ü”"),
    assistant(
        "I look.",
        Call("call_1", "look", {"at": "left"}),
        Call("call_2", "look", {"at": "1.0"}),
        items=ITEMS[:2] + ITEMS[3:],
    ),
    result("call_1", "looked\n\na chair"),
    result("call_2", "There is no such thing.", "error"),
    user("Be quick."),
    assistant("A chair.", items=[message("A chair.")]),
    user("Thanks. And now?"),
    assistant(
        "",
        Call("call:1", "files.read", {"at": "x"}),
        Call("call:1", "look", '{"at": '),
        api="anthropic.messages",
        items=[{}],
    ),
    result("call:1", "read"),
    result("call:1", "The arguments are no JSON object.", "error"),
    assistant("Done."),
]


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_agt_3_a_conversation_is_encoded_to_the_recorded_bytes():
    assert_golden("responses_conversation", encoded(*CONVERSATION, user("Go home.")))


def test_agt_3_a_summary_request_is_encoded_to_the_recorded_bytes():
    assert_golden("responses_summary", encoded(user("The record"), head=SUMMARY))


@pytest.mark.parametrize("length", range(1, len(CONVERSATION)))
def test_agt_3_appending_messages_keeps_the_encoded_prefix_unchanged(length):
    if CONVERSATION[length].role == "tool":
        return  # a step goes with its results
    whole, part = encoded(*CONVERSATION), encoded(*CONVERSATION[:length])
    assert json.dumps(whole["input"][: len(part["input"])]) == json.dumps(part["input"])
    assert {**whole, "input": []} == {**part, "input": []}


def test_agt_3_a_steps_own_items_are_sent_back_without_output_only_fields():
    step = assistant(
        "I look.", Call("call_1", "look"), Call("call_2", "look"), items=[{**item, "created_by": "x"} for item in ITEMS]
    )
    input_items = encode(ModelRequest(head=HEAD, messages=[step]), name=MODEL, session_id="s")["input"]
    without_status = [{key: value for key, value in item.items() if key != "status"} for item in ITEMS]
    assert json.dumps(input_items) == json.dumps(
        [without_status[0], ITEMS[1], ITEMS[2], without_status[3], without_status[4], without_status[5]]
    )


def test_agt_3_a_step_with_duplicate_ids_is_re_encoded_and_earlier_messages_stay():
    """Some servers name the calls of every answer `call_0`; the API requires unique ids."""
    call = Call("call_0", "look", {"at": "left"})
    step = assistant("", call, items=[function_call(call)])
    once = [user("?"), step, result("call_0", "a chair"), assistant("A chair."), user("And now?")]
    before, after = encoded(*once), encoded(*once, step, result("call_0", "a table"))
    assert after["input"][: len(before["input"])] == before["input"]
    assert after["input"][-2:] == [
        {"type": "function_call", "call_id": "call_0-2", "name": "look", "arguments": '{"at": "left"}'},
        {"type": "function_call_output", "call_id": "call_0-2", "output": "a table"},
    ]


def test_agt_3_a_step_of_another_api_is_encoded_from_its_parts_without_thinking():
    assert encoded(*CONVERSATION)["input"][-5:] == [
        {"type": "function_call", "call_id": "call_1-2", "name": "files_read", "arguments": '{"at": "x"}'},
        {
            "type": "function_call",
            "call_id": "call_1-3",
            "name": "look",
            "arguments": '{"invalid_json": "{\\"at\\": "}',
        },
        {"type": "function_call_output", "call_id": "call_1-2", "output": "read"},
        {"type": "function_call_output", "call_id": "call_1-3", "output": "[error] The arguments are no JSON object."},
        {"role": "assistant", "content": "Done."},
    ]


@pytest.mark.parametrize(
    ("status", "expected_output"),
    [("ok", "so"), ("error", "[error] so"), ("denied", "[denied] so"), ("outcome_unknown", "[outcome unknown] so")],
)
def test_agt_7_the_model_sees_how_a_call_ended(status, expected_output):
    body = encoded(user("?"), assistant("", Call("a", "look")), result("a", "so", status))
    assert body["input"][-1] == {"type": "function_call_output", "call_id": "a", "output": expected_output}


def test_agt_4_tools_are_non_strict_functions_with_object_parameters():
    assert encoded(user("?"))["tools"] == [
        {
            "type": "function",
            "name": "look",
            "description": "Look at a thing.",
            "parameters": HEAD.tools[0].input_schema,
            "strict": False,
        },
        {
            "type": "function",
            "name": "pay",
            "description": "",
            "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
            "strict": False,
        },
    ]
    assert not {"tools", "parallel_tool_calls", "instructions"} & set(encoded(user("?"), head=RequestHead()))


MANY = [ToolSpec(name=f"look_{number}") for number in range(200)]


def test_agt_6_tools_beyond_the_apis_limit_are_left_out_but_never_built_in_ones():
    head = RequestHead(tools=[*MANY, ToolSpec(name="now", built_in=True)])
    offered = [tool["name"] for tool in encoded(user("?"), head=head)["tools"]]
    assert offered == [*(tool.name for tool in MANY[:127]), "now"]


def test_agt_6_a_description_of_4_000_characters_is_sent_whole():
    head = RequestHead(tools=[ToolSpec(name="look", description="Looks. " * 571)])
    assert encoded(user("?"), head=head)["tools"][0]["description"] == "Looks. " * 571


def test_agt_4_requests_of_a_session_share_a_key_of_at_most_64_characters():
    keys = [encoded(user("?"), session_id=own)["prompt_cache_key"] for own in ("s" * 64, "s" * 65, "s" * 66)]
    assert keys[0] == "s" * 64
    assert [len(key) for key in keys] == [64, 64, 64]
    assert len(set(keys)) == 3


def test_agt_4_an_answer_limit_is_at_least_the_apis_minimum():
    assert encoded(user("?"), head=RequestHead(max_tokens=1))["max_output_tokens"] == 16 + 8_000


# ── Answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def folded(*events: dict[str, Any], request_id: str | None = "req_1") -> tuple[list[Delta], ModelResponse]:
    answer = ResponsesAccumulator(MODEL)
    deltas = [delta for event in events for delta in answer.add(event)]
    assert answer.is_complete
    assert answer.failure is None
    return deltas, answer.response(request_id=request_id)


def from_items(*items: Item, end: dict[str, Any] | None = None) -> tuple[list[Delta], ModelResponse]:
    return folded(*events_of(items, end))


def other_call(kind: str, **fields: Any) -> Item:
    return {"type": kind, "id": f"{kind}_1", "status": "completed", **fields}


def streamed_text(deltas: list[Delta], kind: str) -> str:
    return "".join(delta.text for delta in deltas if delta.kind == kind)


def test_agt_3_an_answer_keeps_its_parts_in_order_and_its_original_items():
    items = [item for item in ITEMS if item["type"] != "dream"]
    deltas, response = from_items(*items)
    assert response == ModelResponse(
        parts=[
            ThinkPart(kind="think", text="First the\nleft, one…"),
            RespondPart(kind="respond", text="I look."),
            CallPart(kind="call", id="call_1", name="look", args={"at": "left"}),
            CallPart(kind="call", id="call_2", name="look", args={"at": "1.0"}),
        ],
        stop="tool_calls",
        model="gpt-5.5-2026-04-23",
        request_id="req_1",
        state=ProviderState(api="openai.responses", model=MODEL, items=items),
    )
    assert streamed_text(deltas, "think") == "First the\nleft, one…"
    assert streamed_text(deltas, "respond") == "I look."
    assert [delta.text for delta in deltas if delta.kind == "call"] == ["look", "look"]


def test_agt_3_unknown_items_are_sent_back_unchanged_and_in_order():
    *events, end = events_of([reasoning("hm"), message("So.")])
    dream = {"type": "response.output_item.done", "output_index": 2, "item": ITEMS[2], "sequence_number": 99}
    deltas, response = folded(dream, {"type": "response.dream.delta", "delta": "zzz"}, *events, end)
    assert response.state is not None
    assert response.state.items == [reasoning("hm"), message("So."), ITEMS[2]]
    assert (response.text, streamed_text(deltas, "respond")) == ("So.", "So.")


def test_agt_3_reasoning_without_encrypted_content_leaves_no_state():
    assert from_items(reasoning("hm", encrypted=None), message("So."))[1].state is None


def test_agt_3_several_messages_and_thoughts_are_separated_by_blank_lines():
    thoughts = {**reasoning(""), "summary": [{"type": "summary_text", "text": text} for text in ("One.", "Two.")]}
    deltas, response = from_items(thoughts, message("I look.", "commentary"), message("A chair.", id="msg_2"))
    assert response.text == streamed_text(deltas, "respond") == "I look.\n\nA chair."
    assert response.thinking == streamed_text(deltas, "think") == "One.\n\nTwo."


@pytest.mark.parametrize("arguments", ['{"at": ', "[1]", "look", '{"at": NaN}', "1e999"])
def test_agt_3_arguments_that_are_not_a_json_object_stay_text(arguments):
    _, response = from_items(function_call(Call("call_1", "look", arguments)))
    assert response.calls == [CallPart(kind="call", id="call_1", name="look", args=arguments)]


def test_agt_3_a_truncated_answer_has_no_calls_and_no_state():
    _, response = from_items(
        message("Half"), function_call(Call("c", "look", '{"a"')), end=incomplete("max_output_tokens")
    )
    assert (response.stop, response.text, response.calls, response.state) == ("max_tokens", "Half", [], None)


def test_agt_3_items_that_arrive_only_in_the_final_event_form_an_answer():
    events = [event for event in events_of([message("So.")]) if event["type"] != "response.output_item.done"]
    assert folded(*events)[1].text == "So."


def without_done(events: Iterable[dict[str, Any]], *indexes: int) -> list[dict[str, Any]]:
    """The events without those that say that these items are done."""
    return [
        event
        for event in events
        if event["type"] != "response.output_item.done" or event["output_index"] not in indexes
    ]


def test_agt_3_an_item_that_arrives_only_at_the_end_is_part_of_the_answer():
    items = [message("Part one.", "commentary"), message("Part two.", id="msg_2"), function_call(Call("c", "look"))]
    response = folded(*without_done(events_of(items), 1))[1]
    assert (response.text, response.stop) == ("Part one.\n\nPart two.", "tool_calls")
    assert response.state is not None
    assert response.state.items == items


def test_agt_3_a_server_that_gives_all_items_index_0_is_supported():
    items = [message("Part one.", "commentary"), message("Part two.", id="msg_2")]
    events = [event | ({"output_index": 0} if "output_index" in event else {}) for event in events_of(items)]
    assert folded(*events)[1].text == "Part one.\n\nPart two."


@pytest.mark.parametrize("output", [None, [], [message("Part one.", "commentary")]])
def test_agt_3_an_answer_with_an_item_that_is_never_done_is_an_error(output):
    items = [message("Part one.", "commentary"), message("Part two.", id="msg_2")]
    *events, end = without_done(events_of(items), 1)
    end["response"]["output"] = output
    assert_broken_off(*events, end)


@pytest.mark.parametrize("status", ["incomplete", "in_progress"])
@pytest.mark.parametrize("item", [message("Half an ans"), function_call(Call("c", "pay")), other_call("dream")])
def test_agt_3_an_answer_with_a_partial_item_is_an_error(item, status):
    assert_broken_off(*events_of([message("So."), {**item, "status": status}]))


@pytest.mark.parametrize("status", ["in_progress", "queued", "of next year"])
def test_agt_3_an_uncompleted_response_is_an_error(status):
    *events, end = events_of([message("So.")])
    assert_broken_off(*events, {**end, "response": {**end["response"], "status": status}})


def test_agt_3_a_truncated_response_is_recognised_under_any_final_event_name():
    *events, end = events_of([message("Half"), function_call(Call("c", "look"))], incomplete("max_output_tokens"))
    response = folded(*events, {**end, "type": "response.completed"})[1]
    assert (response.stop, response.text, response.calls, response.state) == ("max_tokens", "Half", [], None)


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_agt_9_a_failed_response_is_recognised_under_any_final_event_name(status):
    answer, error = ResponsesAccumulator(MODEL), {"code": "rate_limit_exceeded", "message": "?"}
    *_, end = events_of([message("So.")])
    for error_field, failure in ((error, error), (None, {"type": "server_error"})):
        answer.add({**end, "response": {**end["response"], "status": status, "error": error_field}})
        assert (answer.failure, answer.is_complete) == (failure, False)


def assert_broken_off(*events: dict[str, Any]) -> None:
    with pytest.raises(ModelError) as raised:
        folded(*events)
    assert raised.value.error_type == "connection"


@pytest.mark.parametrize(
    ("items", "end"),
    [
        ([refusal("I will not.")], None),
        ([reasoning("hm"), refusal("I will not.")], None),
        ([message("I wi")], incomplete("content_filter")),
    ],
)
def test_agt_9_a_refusal_is_not_an_answer(items, end):
    with pytest.raises(ModelError) as refused:
        from_items(*items, end=end)
    assert refused.value.error_type == "refusal"


@pytest.mark.parametrize(
    "end",
    [incomplete("steered"), incomplete("max_messages"), incomplete("of next year"), {"status": "incomplete"}],
)
def test_agt_9_a_response_incomplete_for_other_reasons_is_not_an_answer(end):
    with pytest.raises(ModelError) as failed:
        from_items(message("Half"), end=end)
    assert (failed.value.error_type, failed.value.lasting) == ("provider_error", UNCLEAR_ANSWER)


def test_agt_9_a_refusal_beside_an_answer_is_text():
    assert (
        from_items(message("The first, yes."), refusal("The second, no."))[1].text
        == "The first, yes.\n\nThe second, no."
    )


def test_agt_3_state_that_cannot_be_stored_is_dropped():
    _, response = from_items({**message("\ud83d"), "id": "\ud83d"})
    assert response.state is None
    assert response.text == "\ufffd"
    ModelResponse.model_validate_json(response.model_dump_json())


KEYS = st.sampled_from(
    [
        "type",
        "item",
        "output_index",
        "delta",
        "response",
        "output",
        "content",
        "summary",
        "text",
        "refusal",
        "id",
        "call_id",
        "name",
        "arguments",
        "usage",
        "input_tokens",
        "incomplete_details",
        "encrypted_content",
        "model",
    ]
)
TYPES = st.sampled_from(
    [
        "message",
        "reasoning",
        "function_call",
        "response.output_item.added",
        "response.output_item.done",
        "error",
        "response.output_text.delta",
        "response.reasoning_summary_text.delta",
        "response.incomplete",
        "response.failed",
    ]
)
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | TYPES | st.sampled_from(["", "look", "{}", "\ud83d"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)
UNDERSTOOD = (KeyError, IndexError, TypeError, AttributeError, ValueError, ModelError)
"""The errors that `Transport.understanding` treats as an unreadable answer."""
DONE = st.builds(
    lambda item: {"type": "response.output_item.done", "output_index": 0, "item": item},
    st.dictionaries(KEYS, ODD, max_size=6),
)


@given(st.lists(st.dictionaries(KEYS, ODD, max_size=5) | DONE, max_size=4), st.dictionaries(KEYS, ODD))
def test_agt_11_any_stream_yields_a_storable_answer_or_a_provider_error(events, end):
    answer = ResponsesAccumulator(MODEL)
    try:
        for event in [*events, {"type": "response.completed", "response": end}]:
            answer.add(event)
        response = answer.response(request_id=None)
    except UNDERSTOOD:
        return
    assert ModelResponse.model_validate_json(response.model_dump_json()) == response


def test_agt_10_usage_is_mapped_to_our_token_counts():
    _, response = folded(
        *answer_events(Answer(text="So.", input=100, cached=60, cache_write=5, output=20, reasoning=7))
    )
    assert response.usage == Usage(
        input_tokens=100, output_tokens=20, cached_tokens=60, reasoning_tokens=7, cache_write_tokens=5
    )
    assert from_items(message("So."))[1].usage is None


@pytest.mark.parametrize(
    "used",
    [
        "none", 7, 1.5, [], {}, {"input_tokens": 12.5, "output_tokens": 1}, {"input_tokens": -1, "output_tokens": 1},
        {"input_tokens": 1, "output_tokens": "n/a"}, {"input_tokens": 1, "output_tokens": -1}, {"input_tokens": 1},
        {"output_tokens": 1}, {"input_tokens": None, "output_tokens": None}, {"input_tokens": 1, "output_tokens": True},
    ],
)  # fmt: skip
def test_agt_10_a_malformed_usage_does_not_fail_the_answer(used):
    response = folded(*events_of([message("So.")], usage=used))[1]
    assert (response.text, response.usage) == ("So.", None)


@pytest.mark.parametrize("odd", [[], [7], "none", 7])
def test_agt_10_malformed_usage_details_are_ignored(odd):
    used = {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": odd, "output_tokens_details": odd}
    assert folded(*events_of([message("So.")], usage=used))[1].usage == Usage(input_tokens=9, output_tokens=2)


@pytest.mark.parametrize("odd", [7, ["m"], {}])
def test_agt_3_a_malformed_model_name_or_id_does_not_fail_the_answer(odd):
    response = folded(*events_of([message("So.")], {"status": "completed", "model": odd, "id": odd}), request_id=None)[
        1
    ]
    assert (response.text, response.model, response.request_id) == ("So.", MODEL, None)


ANSWERED_BY_US: dict[str, Item] = {
    "a custom tool": other_call("custom_tool_call", call_id="call_9", name="patch", input="x"),
    "a shell": other_call("local_shell_call", call_id="call_9", action={"type": "exec", "command": ["ls"], "env": {}}),
    "of next year": other_call("dream_call", call_id="call_9"),
    "an approval": other_call("mcp_approval_request", name="pay", arguments="{}", server_label="bank"),
    "without a name": {"type": "function_call", "call_id": "call_9", "name": None, "arguments": "{}"},
}


@pytest.mark.parametrize("what", ANSWERED_BY_US)
def test_agt_3_an_answer_with_a_call_without_output_is_not_sent_back(what):
    *events, end = events_of([message("So."), function_call(Call("call_1", "look"))])
    odd = {"type": "response.output_item.done", "output_index": 2, "item": ANSWERED_BY_US[what]}
    response = folded(*events, odd, end)[1]
    assert ([call.id for call in response.calls], response.state) == (["call_1"], None)


@pytest.mark.parametrize(
    "items",
    [
        [other_call("web_search_call", action={"type": "search", "query": "x"})],
        [
            other_call("shell_call", call_id="call_9", action={"commands": ["ls"]}),
            other_call("shell_call_output", call_id="call_9", output=[]),
        ],
        [other_call("local_shell_call", call_id="call_9"), {"type": "local_shell_call_output", "id": "call_9"}],
    ],
    ids=["without an output", "with its output", "with its output by another name"],
)
def test_agt_3_calls_that_the_vendor_ran_itself_are_sent_back(items):
    *events, end = events_of([message("So.")])
    done = [
        {"type": "response.output_item.done", "output_index": index, "item": item}
        for index, item in enumerate(items, 1)
    ]
    response = folded(*events, *done, end)[1]
    assert response.state is not None
    assert response.state.items == [message("So."), *items]


def test_agt_3_without_a_header_the_request_id_is_the_response_id():
    assert folded(*answer_events(Answer(text="So.")), request_id=None)[1].request_id == "resp_1"
