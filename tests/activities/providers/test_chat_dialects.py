"""Answers as servers and models in the wild write them: calls, thinking, text (AGT-3, AGT-4, CTX-13)."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vendors.chat_wire import MODEL, chunk
from turnkeeper.activities.providers.anthropic.provider import AnthropicAccumulator
from turnkeeper.activities.providers.openai.chat import ChatAccumulator, TextChatAccumulator
from turnkeeper.models.transcript.model_call import CallPart, ModelResponse

TOOLS = ["now", "echo", "look", "file_read", "file_read_lines"]


def folded(*chunks: dict[str, Any], tools: Any = TOOLS, by: type[ChatAccumulator] = ChatAccumulator) -> ModelResponse:
    answer = by(MODEL, request=7, tools=tools)
    for event in chunks:
        answer.add(event)
    assert answer.is_complete
    return answer.response(request_id="req_1")


def answer_of(*deltas: dict[str, Any], **options: Any) -> ModelResponse:
    return folded(*map(chunk, deltas), chunk({}, "stop"), **options)


def answer_in_pieces(text: str, size: int = 3, **options: Any) -> ModelResponse:
    return answer_of(*({"content": text[at : at + size]} for at in range(0, len(text), size)), **options)


def calls_of(response: ModelResponse) -> list[tuple[str, Any]]:
    assert len({call.id for call in response.calls}) == len(response.calls)
    return [(call.name, call.args) for call in response.calls]


# ── Calls ────────────────────────────────────────────────────────────────────────────────────────────────────────────

NAMES = st.sampled_from(TOOLS)
ARGUMENTS = st.dictionaries(st.text(max_size=4), st.text(max_size=6) | st.integers() | st.none(), max_size=3)


@st.composite
def honest_pieces(draw: st.DrawFn) -> tuple[list[tuple[str, Any]], list[dict[str, Any]]]:
    """Calls, and the pieces of an honest server: by index, each with an id and a name, its arguments split anywhere."""
    calls = draw(st.lists(st.tuples(NAMES, ARGUMENTS), min_size=1, max_size=4))
    repeats_name = draw(st.booleans())
    pieces: list[dict[str, Any]] = []
    for index, (name, args) in enumerate(calls):
        text = json.dumps(args, ensure_ascii=draw(st.booleans()))
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=5)))
        function = {"name": name, "arguments": draw(st.sampled_from(["", None]))}
        pieces.append({"index": index, "id": f"call_{index}", "type": "function", "function": function})
        for start, stop in pairwise([0, *cuts, len(text)]):
            named = {"name": name} if repeats_name else {}
            pieces.append({"index": index, "function": {**named, "arguments": text[start:stop]}})
    return calls, pieces


@given(honest_pieces(), st.data())
def test_agt_4_valid_calls_are_the_same_however_their_stream_is_split(honest, data):
    calls, pieces = honest
    cuts = sorted(data.draw(st.lists(st.integers(0, len(pieces)), max_size=6)))
    chunks = [{"tool_calls": pieces[start:stop]} for start, stop in pairwise([0, *cuts, len(pieces)])]
    one_by_one = [{"tool_calls": [piece]} for piece in pieces]
    assert calls_of(answer_of(*one_by_one)) == calls
    assert calls_of(answer_of(*chunks)) == calls


def piece(name: str | None = None, arguments: Any = None, **fields: Any) -> dict[str, Any]:
    return {**fields, "function": {key: value for key, value in (("name", name), ("arguments", arguments)) if value}}


NOW_AND_ECHO = [("now", {}), ("echo", {"text": "b"})]
ECHO = '{"text": "b"}'


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        pytest.param([[piece("now", "{}", index=0, id="")], [piece("echo", ECHO, index=0, id="")]], NOW_AND_ECHO,
                     id="all numbered 0 without ids"),
        pytest.param([[piece("now", "{}", index=0)], [piece("echo", ECHO, index=0)]], NOW_AND_ECHO, id="no ids"),
        pytest.param([[piece("now", "{}", index=0, id=None)], [piece("echo", ECHO, index=0, id=None)]], NOW_AND_ECHO,
                     id="ids of null"),
        pytest.param([[piece("now", "{}", index=0), piece("echo", ECHO, index=0)]], NOW_AND_ECHO, id="in one chunk"),
        pytest.param([[None, piece("echo", ECHO, index=0)], [None]], [("echo", {"text": "b"})], id="null beside"),
        pytest.param([[piece("now", index=0), piece("now", index=0)]], [("now", {}), ("now", {})],
                     id="twice the same without arguments in one chunk"),
        pytest.param([[piece("now")], [piece("echo", ECHO)]], NOW_AND_ECHO, id="no index, no arguments"),
        pytest.param([[piece("now", index=0)], [piece("echo", index=0)], [piece("look", index=0)]],
                     [("now", {}), ("echo", {}), ("look", {})], id="three without arguments, ids, numbers"),
        pytest.param([[piece("echo", '{"text": "a"}', index=0)], [piece("echo", ECHO, index=0)]],
                     [("echo", {"text": "a"}), ("echo", {"text": "b"})], id="twice the same tool"),
        pytest.param([[piece("echo", '{"text": "a"}{"text": "b"}', index=0, id="c")]],
                     [("echo", {"text": "a"}), ("echo", {"text": "b"})], id="glued"),
        pytest.param([[piece("now", "{}", index="0", id=17)], [piece("echo", ECHO, index="1", id=18)]], NOW_AND_ECHO,
                     id="numbers as text, ids as numbers"),
        pytest.param([[piece("file_", index=0, id="c")], [piece("read", index=0)], [piece(None, "{}", index=0)]],
                     [("file_read", {})], id="a name in pieces"),
        pytest.param([[piece("file", index=0, id="c")], [piece("file_read", index=0)], [piece(None, "{}", index=0)]],
                     [("file_read", {})], id="all of a name so far"),
        pytest.param([[piece("file_read", index=0)], [piece("_lines", "{}", index=0)]], [("file_read_lines", {})],
                     id="a name that begins with another"),
        pytest.param([[piece("echo", '{"te', index=0)], [piece(None, '{"text": "a', index=0)],
                      [piece(None, '{"text": "ab"}', index=0)]], [("echo", {"text": "ab"})], id="all so far each time"),
        pytest.param([[piece("echo", '{"te', index=0)], [piece(None, 'xt": "b"}', index=0)],
                      [piece(None, ECHO, index=0)]], [("echo", {"text": "b"})], id="all again at the end"),
        pytest.param([[piece("echo", ECHO, index=0)], [piece("echo", ECHO, index=0)]], [("echo", {"text": "b"})],
                     id="the whole call twice"),
        pytest.param([[piece("echo", ECHO, index=0, id="c")], [piece("echo", "", index=0, id="c")]],
                     [("echo", {"text": "b"})], id="named again at its end"),
    ],
)  # fmt: skip
def test_agt_4_calls_are_read_in_every_servers_dialect(chunks, expected):
    assert calls_of(answer_of(*({"tool_calls": pieces} for pieces in chunks))) == expected


def test_agt_4_arguments_that_are_not_json_stay_unchanged():
    response = answer_of({"tool_calls": [piece("echo", '{"text": ', index=0)]}, {"tool_calls": [piece(None, "b}")]})
    assert calls_of(response) == [("echo", '{"text": b}')]


@pytest.mark.parametrize("pieces", [['{"te', '{"text": "b"}'], ['{"te', 'xt": "b"}', ECHO], [ECHO, ECHO], [ECHO]])
def test_agt_4_arguments_sent_twice_are_one_call_on_the_anthropic_wire(pieces):
    answer = AnthropicAccumulator("claude")
    start = {"type": "tool_use", "id": "toolu_1", "name": "echo", "input": {}}
    answer.add({"type": "content_block_start", "index": 0, "content_block": start})
    for text in pieces:
        delta = {"type": "input_json_delta", "partial_json": text}
        answer.add({"type": "content_block_delta", "index": 0, "delta": delta})
    answer.add({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}})
    response = answer.response(request_id=None)
    assert response.calls == [CallPart(kind="call", id="toolu_1", name="echo", args={"text": "b"})]
    assert response.state is not None
    assert response.state.items == [{**start, "input": {"text": "b"}}]


HERMES = '<tool_call>\n{"name": "echo", "arguments": {"text": "b"}}\n</tool_call>'
QWEN = "<function=echo>\n<parameter=text>\nb\n</parameter>\n</function>"


@pytest.mark.parametrize(
    ("as_text", "expected"),
    [
        (HERMES, [("echo", {"text": "b"})]),
        (f"{HERMES}\n{HERMES}", [("echo", {"text": "b"})] * 2),
        (HERMES.removesuffix("</tool_call>"), [("echo", {"text": "b"})]),
        (QWEN, [("echo", {"text": "b"})]),
        (f"<tool_call>\n{QWEN}\n</tool_call>", [("echo", {"text": "b"})]),
        ('[TOOL_CALLS][{"name": "echo", "arguments": {"text": "b"}}]', [("echo", {"text": "b"})]),
        ('[TOOL_CALLS]echo[ARGS]{"text": "b"}', [("echo", {"text": "b"})]),
    ],
)
@pytest.mark.parametrize("before", ["", "I look.\n\n"])
@pytest.mark.parametrize("by", [ChatAccumulator, TextChatAccumulator])
def test_agt_4_calls_written_as_text_are_calls(as_text, expected, before, by):
    response = answer_in_pieces(before + as_text, by=by)
    assert (calls_of(response), response.stop, response.text) == (expected, "tool_calls", before.strip())
    assert answer_in_pieces(before + as_text, tools=()).text == before + as_text


@pytest.mark.parametrize(
    "text",
    [
        f"Write it so:\n```\n{HERMES}\n```",
        f"Write it so:\n```\n{HERMES}",
        f"{HERMES}\n\nThat is how it is written.",
        f"One writes {HERMES}",
        "`<tool_call>` begins a call.",
        HERMES.replace("echo", "unknown"),
        "<tool_call>now</tool_call>",
        "Use </think> to end it.",
        "It ends with `</think>`\n\nThen it answers.",
        "```\nHm.\n</think>\n```\nSo.",
        "    </think>\n\nis indented code.",
        "Of <think> and </think> tags",
        "<think> is a tag.",
        "<thinking>",
        "[THINK",
        "[THINK] is how it begins.",
        "<|channel|> is a token.",
        "<|start|>",
    ],
)
@pytest.mark.parametrize("size", [1, 1_000])
def test_ctx_13_text_that_only_mentions_tags_is_unchanged(text, size):
    response = answer_in_pieces(text, size)
    assert (response.text, response.thinking, response.calls, response.state) == (text, "", [], None)


# ── Thinking and text ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        "<think>Hm.</think>\n\nSo.",
        "<thinking>Hm.</thinking>So.",
        "[THINK]Hm.[/THINK]So.",
        "\n<thought>\nHm.\n</thought>\nSo.",
        "◁think▷Hm.◁/think▷So.",
        "<seed:think>Hm.</seed:think>So.",
        "Hm.\n</think>\n\nSo.",
        "Hm.</think>\n\nSo.",
        "Hm.\n[/THINK]\nSo.",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>So.<|return|>",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>So.",
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_ctx_13_thinking_in_any_kind_of_tags_is_thinking(text, size):
    response = answer_in_pieces(text, size)
    assert (response.thinking, response.text, response.stop) == ("Hm.", "So.", "end_turn")


def test_agt_4_calls_in_the_special_tokens_of_open_models_are_calls():
    response = answer_in_pieces(
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.echo "
        f"<|constrain|>json<|message|>{ECHO}<|call|>"
    )
    assert (response.thinking, response.text, calls_of(response)) == ("Hm.", "", [("echo", {"text": "b"})])


def test_agt_4_thinking_parts_of_mistral_are_thinking():
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    response = answer_of({"content": [thinking]}, {"content": [{"type": "text", "text": "So."}]}, {"content": "!"})
    assert (response.thinking, response.text) == ("Hm.", "So.!")


@pytest.mark.parametrize("index", [0, "0", None])
@pytest.mark.parametrize("fields", [{"delta": {"content": "So."}}, {"message": {"content": "So."}}, {"text": "So."}])
def test_agt_4_a_choice_is_read_in_every_form(index, fields):
    choice = {"index": index, "finish_reason": "stop", **fields}
    assert folded({**chunk({}), "choices": [choice]}).text == "So."


def test_agt_3_reasoning_fragments_are_sent_back_as_one_block():
    fragments = [
        {"type": "reasoning.text", "index": 0, "text": "First ", "format": "anthropic-claude-v1"},
        {"type": "reasoning.text", "index": 0, "text": "left.", "format": "anthropic-claude-v1"},
        {"type": "reasoning.text", "index": 0, "signature": "c2ln", "format": "anthropic-claude-v1"},
        {"type": "reasoning.encrypted", "index": 1, "data": "eA=="},
        {"type": "reasoning.encrypted", "index": 1, "data": "eQ=="},
    ]
    response = answer_of(*({"reasoning_details": [fragment]} for fragment in fragments), {"content": "So."})
    assert response.state is not None
    whole = {**fragments[0], "text": "First left.", "signature": "c2ln"}
    assert response.state.items == [{"reasoning_details": [whole, *fragments[3:]]}]
