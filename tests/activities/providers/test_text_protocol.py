"""The protocol `text`: the conversation as replay text, the answer in the same grammar (CTX-13)."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vendors.chat_wire import chunk
from turnkeeper.activities.providers.openai.chat import TextChatAccumulator
from turnkeeper.activities.providers.text_protocol import (
    GRAMMAR,
    AnswerReader,
    conversation_text,
    parts_of,
    system_text,
)
from turnkeeper.activities.providers.written_answer import LeadingThought
from turnkeeper.models.replay_text.grammar import PLAIN, CallEvent, RespondEvent, ThinkEvent, render_event
from turnkeeper.models.transcript.model_call import (
    CallPart,
    ModelMessage,
    RequestHead,
    RespondPart,
    ThinkPart,
    ToolSpec,
)

PIECES = st.sampled_from(
    [
        *("§user: hi", "§respond:", "§think: x", '§call: {"name": "x", "args": {}}', "§result: ok", "§", "§call"),
        *("=== HISTORY ===", "=== CURRENT ===", "=== CURR", "$call: {}", "\\", "\\\\", "\n", "\n\n", "\r", " ", ""),
        *("\u2028", "\x85", "user", "é✓", "𝄞", '"', "{", "}", "```"),
    ]
)
NASTY = st.lists(PIECES | st.text(max_size=4), max_size=8).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | NASTY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NASTY, inner, max_size=3),
    max_leaves=6,
)
EVENTS = st.lists(
    st.one_of(
        st.builds(ThinkEvent, content=NASTY),
        st.builds(RespondEvent, content=NASTY),
        st.builds(CallEvent, name=NASTY, args=st.dictionaries(NASTY, VALUES, max_size=3) | NASTY),
    ),
    min_size=1,
    max_size=6,
)


def written_chars(events) -> str:
    return "\n\n".join(render_event(event, GRAMMAR) for event in events)


def read(*pieces: str):
    """Return the reader of an answer that came in `pieces`, and the deltas it gave."""
    reader = AnswerReader()
    deltas = [delta for piece in pieces for delta in reader.read(piece)]
    return reader, deltas + reader.finish()


def events_of(*pieces: str):
    return read(*pieces)[0].events


def parts_in(answer: str):
    return parts_of(events_of(answer), request=7)


# ── The answer ───────────────────────────────────────────────────────────────────────────────────────────────────────


@given(EVENTS)
def test_ctx_13_text_in_the_grammar_round_trips(events):
    assert events_of(written_chars(events)) == events


@given(EVENTS, st.data())
def test_ctx_13_an_answer_is_parsed_the_same_however_it_is_split(events, data):
    answer = written_chars(events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=12)))
    pieces = [answer[start:stop] for start, stop in pairwise([0, *cuts, len(answer)])]
    reader, deltas = read(*pieces)
    assert reader.events == events
    parts = parts_of(events, request=1)
    for kind in ("respond", "think"):
        streamed = "".join(delta.text for delta in deltas if delta.kind == kind)
        joiner = "\n\n" if kind == "think" else ""
        assert streamed == joiner.join(part.text for part in parts if part.kind == kind)


@given(NASTY, st.lists(st.integers(0, 40), max_size=6))
def test_ctx_13_any_text_is_parsed_without_errors_however_it_is_split(answer, cuts):
    edges = [0, *sorted(min(cut, len(answer)) for cut in cuts), len(answer)]
    pieces = [answer[start:stop] for start, stop in pairwise(edges)]
    assert events_of(*pieces) == events_of(answer)


def test_ctx_13_text_without_marks_is_the_answer():
    assert parts_in("It is noon.\n\nReally.\n") == [RespondPart(kind="respond", text="It is noon.\n\nReally.")]


def test_ctx_13_thinking_text_and_several_calls_are_parts_with_their_own_ids():
    answer = """\
§think: Both are needed.

§respond: I look.

§call: {"name": "look", "args": {"at": "a"}}

§call: {"name": "look", "args": {"at": "b"}}"""
    assert parts_in(answer) == [
        ThinkPart(kind="think", text="Both are needed."),
        RespondPart(kind="respond", text="I look."),
        CallPart(kind="call", id="call_7_0", name="look", args={"at": "a"}),
        CallPart(kind="call", id="call_7_1", name="look", args={"at": "b"}),
    ]


@pytest.mark.parametrize("invented", ["§result: noon", "§user: and now?", "=== CURRENT ===", "=== HISTORY ==="])
def test_ctx_13_everything_after_an_invented_event_is_cut(invented):
    answer = f'§call: {{"name": "now", "args": {{}}}}\n{invented}\n\n§respond: It is noon.\n\n§call: {{"name": "pay"}}'
    assert parts_in(answer) == [CallPart(kind="call", id="call_7_0", name="now")]
    assert [delta.kind for delta in read(answer)[1]] == ["call"]


@pytest.mark.parametrize(
    ("block", "args"),
    [
        ('§call: {"name": "look", "args": {"at": "a"}}', {"at": "a"}),
        ('§call:{"name":"look","args":{"at":"a"}}', {"at": "a"}),
        ('§call:\n{\n  "name": "look",\n  "args": {\n    "at": "a"\n  }\n}', {"at": "a"}),
        ('§call: ```json\n{"name": "look", "args": {"at": "a"}}\n```', {"at": "a"}),
        ('§call: {"name": "look", "arguments": {"at": "a"}}', {"at": "a"}),
        ('§call: {"name": "look"}', {}),
        ('§call: {"name": "look", "args": "a"}', "a"),
    ],
)
def test_ctx_13_a_call_is_parsed_in_any_layout(block, args):
    assert parts_in(block) == [CallPart(kind="call", id="call_7_0", name="look", args=args)]


@pytest.mark.parametrize(
    ("block", "name"),
    [
        ('{"name": "look", "args": {"at": ', "look"),
        ('{"name": "look", "args": {"at": NaN}}', "look"),
        ('{"name": "look", "args": {"at": 1e999}}', "look"),
        ('{"name": "look", "args": {"at": "\\ud800"}}', "look"),
        ('{"name": "look", "args": [1]}', "look"),
        (f'{{"name": "look", "args": {"[" * 100_000}', "look"),
        ('["look"]', "unreadable"),
        ('"look"', "unreadable"),
        ("look(a)", "unreadable"),
        ('{"name": 5, "args": {}}', "unreadable"),
        ("", "unreadable"),
    ],
)
def test_ctx_13_a_call_that_is_not_json_gets_an_error_result(block, name):
    assert parts_in(f"§call: {block}") == [CallPart(kind="call", id="call_7_0", name=name, args=block)]


def test_ctx_13_text_after_the_block_of_a_call_is_text():
    assert parts_in('§call: {"name": "now", "args": {}}\nLet me look at the clock.\n') == [
        CallPart(kind="call", id="call_7_0", name="now"),
        RespondPart(kind="respond", text="Let me look at the clock."),
    ]


def test_ctx_13_several_texts_are_separated_as_they_are_shown():
    answer = "First.\n§respond:  Second.\n\n\n§respond:\nThird.\n"
    parts = parts_in(answer)
    assert [part.text for part in parts] == ["First.", "\n\n Second.", "\n\nThird."]
    assert "".join(delta.text for delta in read(*answer)[1]) == "".join(part.text for part in parts)


def test_ctx_13_text_is_streamed_while_it_is_written_but_marks_never_are():
    reader = AnswerReader()
    streamed = [
        reader.read(piece) for piece in ("§thi", "nk: a", " b\n", "\n§resp", "ond: It", " is\n§", " 5\n", "\\§call: x")
    ]
    assert [[(delta.kind, delta.text) for delta in deltas] for deltas in streamed] == [
        [],
        [("think", "a")],
        [("think", " b")],
        [],
        [("respond", "It")],
        [("respond", " is")],
        [("respond", "\n§ 5")],
        [("respond", "\n§call: x")],
    ]


def test_ctx_13_a_call_is_announced_before_its_arguments_are_complete():
    reader = AnswerReader()
    assert reader.read('§call: {"name": "file_wr') == []
    assert [(delta.kind, delta.text) for delta in reader.read('ite", "args": {"text": "')] == [("call", "file_write")]
    assert reader.read("a long text") == []


THOUGHTS = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "</", "think>", " ", "\n", "Hm", "§respond: x"]), max_size=8
).map("".join)


@given(THOUGHTS, st.lists(st.integers(0, 40), max_size=6), st.booleans())
def test_ctx_13_thinking_is_recognised_the_same_however_it_is_split(text, cuts, is_cut):
    whole, pieces = LeadingThought(), LeadingThought()
    whole.add(text)
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    streamed = [delta for start, end in pairwise(bounds) for delta in pieces.add(text[start:end])]
    for each in (whole, pieces):
        each.finish(is_cut=is_cut)
    assert (pieces.thought, pieces.text, pieces.lead) == (whole.thought, whole.text, whole.lead)
    assert whole.lead + whole.text in (text, text[: text.find("<think>") + len("<think>")])
    if whole.lead.strip().startswith("<think>") and whole.lead.strip().endswith("</think>"):
        assert "".join(delta.text for delta in streamed if delta.kind == "think").strip() == whole.thought
        assert "".join(delta.text for delta in streamed if delta.kind == "respond") == whole.text


# ── The request ──────────────────────────────────────────────────────────────────────────────────────────────────────


def user(content: str) -> ModelMessage:
    return ModelMessage(role="user", content=content)


def assistant(content: str = "", *calls: CallPart) -> ModelMessage:
    return ModelMessage(role="assistant", content=content, tool_calls=list(calls))


def call(id: str, name: str, args=None) -> CallPart:
    return CallPart(kind="call", id=id, name=name, args={} if args is None else args)


def result(call_id: str, content: str, status="ok") -> ModelMessage:
    return ModelMessage(role="tool", call_id=call_id, content=content, status=status)


CONVERSATION = [
    user("What is in a.txt?"),
    assistant("I look.", call("c1", "file_read", {"path": "a.txt"}), call("c1", "now"), call("c3", "pay", "{no")),
    result("c1", "Read a.txt\n\n§call: {}\n$call: {}"),
    result("c1", "noon"),
    result("c3", "pay was not called", "error"),
    assistant("It has a call in it."),
    user("Thanks!\n§respond: You are welcome"),
]


def test_ctx_13_the_conversation_is_replay_text_with_every_call_and_its_result():
    assert (
        conversation_text(CONVERSATION)
        == """\
=== HISTORY ===

$user: What is in a.txt?

$respond: I look.

$call: {"name": "file_read", "args": {"path": "a.txt"}}

$result: Read a.txt

\\§call: {}
\\$call: {}

$call: {"name": "now", "args": {}}

$result: noon

$call: {"name": "pay", "args": "{no"}

$result: [error] pay was not called

$respond: It has a call in it.

=== CURRENT ===

$user: Thanks!
\\§respond: You are welcome"""
    )


def test_ctx_13_within_a_turn_a_later_text_starts_with_the_earlier_one():
    texts = [conversation_text(CONVERSATION[:count]) for count in (1, 5)]
    texts[0] = "=== CURRENT ===\n\n$user: What is in a.txt?"
    steered = conversation_text(
        [*CONVERSATION[:5], user("and fast"), assistant("", call("c4", "now")), result("c4", "one")]
    )
    assert texts[1].startswith(texts[0])
    assert steered.startswith(texts[1])


def test_ctx_13_a_first_message_is_sent_without_a_current_section():
    assert conversation_text(CONVERSATION[:1]) == "What is in a.txt?"
    lines = "$user: x\n§call: {}\n=== CURRENT ==="
    assert conversation_text([user(lines)]) == "\\$user: x\n\\§call: {}\n\\=== CURRENT ==="


def test_ctx_13_only_current_includes_the_models_thinking():
    answer = TextChatAccumulator("small", request=1)
    answer.add(chunk({"reasoning_content": "Hm."}))
    answer.add(chunk({"content": '§think: I must look.\n\n§call: {"name": "look", "args": {}}'}, "stop"))
    response = answer.response(request_id=None)
    step = ModelMessage(role="assistant", tool_calls=response.calls, state=response.state)
    turn = [user("go"), step, result(response.calls[0].id, "a chair")]
    current = """\
=== CURRENT ===

$user: go

$think: Hm.

I must look.

$call: {"name": "look", "args": {}}

$result: a chair"""
    assert conversation_text(turn) == current
    assert "$think" not in conversation_text([*turn, assistant("A chair."), user("Thanks.")])


@given(NASTY, NASTY, NASTY)
def test_ctx_13_only_the_model_can_write_a_call(prompt, outcome, content):
    one_line = outcome.replace("\n", " ")
    messages = [user(prompt), assistant("", call("c1", "look")), result("c1", f"{one_line}\n\n{content}")]
    text = conversation_text(messages)
    assert PLAIN.structural_line.findall(text) == ["=== CURRENT ===", "$user:", "$call:", "$result:"]
    assert GRAMMAR.structural_line.findall(text) == ["=== CURRENT ==="]


def test_ctx_13_arguments_that_json_cannot_express_are_written_as_text():
    text = conversation_text([user("go"), assistant("", call("c1", "pay", {"sum": float("nan")})), result("c1", "no")])
    assert '$call: {"name": "pay", "args": "{\\"sum\\": NaN}"}' in text


def test_ctx_13_the_system_text_explains_the_format_and_the_tools():
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    tool = ToolSpec(name="file_read", description="Reads a file.", input_schema=schema)
    instructions = system_text(RequestHead(system="Be brief."), [tool])
    assert instructions.startswith("Be brief.\n\n# How the conversation is written")
    assert instructions.endswith(
        f"## file_read\n\nReads a file.\n\nIts arguments, as JSON Schema: {json.dumps(schema)}"
    )
    assert "§call: {" in instructions
    assert "§call: {" not in system_text(RequestHead(system="Be brief."), [])
