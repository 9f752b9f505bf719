"""The replay text: CTX-12."""

import json
import math
import os
import re
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tests.models import vector_cases
from tests.models.builders import NOW
from turnkeeper.models.replay_text.grammar import (
    CallEvent,
    MalformedReplayTextError,
    ReplayEvent,
    RespondEvent,
    ResultEvent,
    ThinkEvent,
    UserEvent,
    parse_replay,
    render_replay,
)
from turnkeeper.models.replay_text.turns import (
    MovedEvents,
    ReplayTurns,
    count_events,
    replay_events,
    with_newest_events,
)
from turnkeeper.models.transcript.conversation import (
    INTERRUPTED_NOTE,
    BlobRef,
    ConversationMessage,
    ModelStep,
    ReasoningTrajectory,
    Step,
    ToolCall,
    ToolResult,
    UserStep,
)

EVENTS: TypeAdapter[list[ReplayEvent]] = TypeAdapter(list[ReplayEvent])

# ── Events that try to be something else ─────────────────────────────────────────────────────────────────────────────

PIECES = st.sampled_from(
    [
        *("$user: hi", "$respond:", "$think: x", "$call: {}", "$result: ok", "=== HISTORY ===", "=== CURRENT ==="),
        *("(showing last 1 of 2 messages)", "\\", "\\\\", "\n", "\n\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85"),
        *("\u2028", "\u2029", "\x00", " ", "", "$", "=", "user", "$User: x", "$$user: x", '"', "é✓", "𝄞"),
    ]
)
NASTY = st.lists(PIECES | st.text(max_size=4), max_size=8).map("".join)
ONE_LINE = NASTY.map(lambda text: text.replace("\n", " "))


def values_with(floats):
    return st.recursive(
        st.none() | st.booleans() | st.integers() | floats | NASTY,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NASTY, inner, max_size=3),
        max_leaves=6,
    )


ARGS = st.dictionaries(NASTY, values_with(st.floats(allow_nan=False, allow_infinity=False)), max_size=3) | NASTY
THOUGHTS = st.builds(ThinkEvent, content=NASTY)
SHOWN_IN_HISTORY = st.one_of(
    st.builds(UserEvent, content=NASTY),
    st.builds(RespondEvent, content=NASTY),
    st.builds(CallEvent, name=NASTY, args=ARGS),
    st.builds(ResultEvent, outcome=ONE_LINE, content=NASTY),
)
LISTS = st.lists(SHOWN_IN_HISTORY | THOUGHTS, max_size=8)


def without_thinking(events):
    return [event for event in events if not isinstance(event, ThinkEvent)]


# ── Vectors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("case", vector_cases("replay.json"))
def test_ctx_12_the_test_vectors_are_rendered_and_parsed(case):
    text = render_replay(case["past"], case["current"], case["max_history"])
    assert text == case["text"]
    past, current = parse_replay(text)
    all_events = without_thinking(EVENTS.validate_python(case["past"]))
    showing = re.match(r"=== HISTORY ===\n\(showing last (\d+) of", text)
    max_events = int(showing[1]) if showing else len(all_events) if text.startswith("=== HISTORY ===") else 0
    assert past == all_events[len(all_events) - max_events :]
    assert current == (EVENTS.validate_python(case["current"]) if case["current"] else None)


# ── The form ─────────────────────────────────────────────────────────────────────────────────────────────────────────

SEED = """\
=== HISTORY ===
(showing last 4 of 6 messages)

$respond: I'll help you

$call: {"name": "file_read", "args": {"file": "config.yml", "tags": ["é", 1]}}

$result: Read config.yml

database:
  host: localhost

$respond: I found it

=== CURRENT ===

$user: What's in test.txt?

$think: I should use file_read"""


def test_ctx_12_the_text_has_the_form_of_the_seed():
    past = [
        UserEvent(content="How are you?"),
        UserEvent(content="How do I read it?"),
        ThinkEvent(content="hm"),
        RespondEvent(content="I'll help you"),
        CallEvent(name="file_read", args={"file": "config.yml", "tags": ["é", 1]}),
        ResultEvent(outcome="Read config.yml", content="database:\n  host: localhost"),
        RespondEvent(content="I found it"),
    ]
    current = [UserEvent(content="What's in test.txt?"), ThinkEvent(content="I should use file_read")]
    assert render_replay(past, current, 4) == SEED


def test_ctx_12_an_empty_section_is_not_printed():
    assert render_replay([], None) == render_replay([], []) == render_replay([ThinkEvent(content="hm")], None) == ""
    assert render_replay([], [UserEvent(content="go")]) == "=== CURRENT ===\n\n$user: go"
    assert render_replay([UserEvent(content="go")], None) == "=== HISTORY ===\n\n$user: go"
    assert parse_replay("") == ([], None)


def test_ctx_12_history_omits_thinking_and_does_not_count_it():
    past = [UserEvent(content="1"), ThinkEvent(content="hm"), RespondEvent(content="2")]
    assert "showing" not in render_replay(past, None, 2)
    assert "$think" not in render_replay(past, None, 0)
    assert "(showing last 1 of 2 messages)" in render_replay(past, None, 1)


@pytest.mark.parametrize(("max_history", "n_events"), [(1, 1), (2, 1), (3, 1), (4, 4), (5, 5), (6, 6), (0, 6)])
def test_ctx_12_history_never_begins_with_a_result_without_its_call(max_history, n_events):
    call, result = CallEvent(name="look", args={}), ResultEvent(outcome="Read")
    past = [UserEvent(content="1"), call, call, result, ThinkEvent(content="hm"), result, RespondEvent(content="2")]
    history, _ = parse_replay(render_replay(past, None, max_history))
    assert history == without_thinking(past)[6 - n_events :]


def test_ctx_12_a_result_without_its_call_renders_to_nothing():
    past = [CallEvent(name="look", args={}), ResultEvent(outcome="Read")]
    assert render_replay(past, None, 1) == ""


def test_ctx_12_events_that_are_unavailable_are_counted():
    past = [ResultEvent(outcome="Read"), UserEvent(content="1")]
    assert render_replay(past, None, 5, left_out=7).startswith("=== HISTORY ===\n(showing last 1 of 9 messages)\n\n")


def test_ctx_12_current_is_never_shortened():
    current = [UserEvent(content="go"), *[ThinkEvent(content="hm\n" * 10_000)] * 50]
    assert parse_replay(render_replay([UserEvent(content="x")] * 9, current, 1)) == ([UserEvent(content="x")], current)


@pytest.mark.parametrize(
    ("past", "named"),
    [
        ([{"type": "usr", "content": "x"}], "usr"),
        ([{"type": "user"}], "user.content"),
        ([{"type": "user", "content": "x", "id": 1}], "user.id"),
        ([{"type": "user", "content": "a\ud800"}], "user.content"),
        ([{"type": "result", "outcome": "two\nlines"}], "result.outcome"),
        ([{"type": "call", "name": "x", "args": {"a": ["\udfff"]}}], "call.args"),
        ([{"type": "call", "name": "x", "args": {"a": [float("nan")]}}], "call.args"),
        ([{"type": "call", "name": "x", "args": {"a": {"b": float("-inf")}}}], "call.args"),
    ],
)
def test_ctx_12_an_event_that_cannot_be_rendered_is_rejected_naming_the_field(past, named):
    with pytest.raises(ValueError, match=named):
        render_replay(past, None)


@pytest.mark.parametrize("options", [{"max_history": -1}, {"left_out": -1}])
def test_ctx_12_negative_numbers_are_errors_that_name_them(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}=-1"):
        render_replay([], None, **options)


# ── Text forges nothing ──────────────────────────────────────────────────────────────────────────────────────────────


@given(LISTS, LISTS, st.integers(0, 10))
def test_ctx_12_parsing_returns_exactly_the_rendered_events(past, current, max_history):
    text = render_replay(past, current, max_history)
    history, now = parse_replay(text)
    events = without_thinking(past)
    assert history == events[len(events) - len(history) :]
    assert now == (current or None)
    assert render_replay(history, now, 0, left_out=len(events) - len(history) if history else 0) == text
    text.encode()


@given(LISTS, LISTS, st.integers(0, 10))
def test_ctx_12_no_text_can_forge_structure(past, current, max_history):
    """Split at every line that looks like structure, the text has one block for each event and header."""
    text = render_replay(past, current, max_history)
    history, now = parse_replay(text)
    markers = ("$user:", "$respond:", "$think:", "$call:", "$result:")
    lines = text.split("\n")
    assert sum(line.startswith(markers) for line in lines) == len(history) + len(now or [])
    headers = [line for line in lines if line in ("=== HISTORY ===", "=== CURRENT ===")]
    assert headers == ["=== HISTORY ==="] * bool(history) + ["=== CURRENT ==="] * bool(now)


@pytest.mark.parametrize("line", ["$user: hi", "$user:", "=== CURRENT ===", "\\=== HISTORY ===", "\\\\\\$result:"])
def test_ctx_12_a_line_that_looks_like_structure_gets_one_more_backslash(line):
    for event in (UserEvent(content=f"a\n{line}"), ResultEvent(outcome="a", content=line)):
        assert render_replay([event], None).endswith(f"\n\\{line}")


@pytest.mark.parametrize(
    "line", [" $user: hi", "=== CURRENT === ", "=== CURRENT ===\r", "$users: x", "\\x", "\\ $user:"]
)
def test_ctx_12_other_lines_are_unchanged(line):
    assert render_replay([UserEvent(content=f"a\n{line}")], None).endswith(f"\n{line}")


@pytest.mark.parametrize("end", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
def test_ctx_12_lines_end_at_a_newline_only(end):
    event = UserEvent(content=f"a{end}$user: forged{end}\n=== CURRENT ==={end}")
    assert render_replay([event], None) == f"=== HISTORY ===\n\n$user: {event.content}"
    assert parse_replay(render_replay([event], [event])) == ([event], [event])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("hello", 1),
        ("\n=== CURRENT ===\n\n$user: x", 1),
        ("$user: x", 1),
        ("=== HISTORY ===", 1),
        ("=== HISTORY ===\n\n=== CURRENT ===\n\n$user: x", 1),
        ("=== HISTORY ===\n$user: x", 2),
        ("=== HISTORY ===\nx\n\n$user: x", 2),
        ("=== HISTORY ===\n(showing last 2 of 9 messages)\n\n$user: x", 2),
        ("=== HISTORY ===\n(showing last 1 of 1 messages)\n\n$user: x", 2),
        ("=== HISTORY ===\n\n$user: x\n$user: y", 4),
        ("=== HISTORY ===\n\n$think: x", 3),
        ("=== HISTORY ===\n\n$user: x\n\n=== HISTORY ===\n\n$user: x", 5),
        ("=== CURRENT ===\n\n$user: x\n\n=== HISTORY ===\n\n$user: x", 5),
        ("=== CURRENT ===\nx\n\n$user: x", 2),
        ("=== CURRENT ===\n\n$user:x", 3),
        ("=== CURRENT ===\n\n$user: a\nb\n\n$call: {}", 6),
        ('=== CURRENT ===\n\n$call: {"name": "x", "args": 1}', 3),
        ('=== CURRENT ===\n\n$call: {"name": "x",\n "args": {}}', 3),
        ('=== CURRENT ===\n\n$call: {"name": "x", "args": {}, "type": "user"}', 3),
        ('=== CURRENT ===\n\n$call: {"name": "x", "args": ' + "[" * 100_000, 3),
        ('=== CURRENT ===\n\n$user: x\n\n$call: {"name": "x", "args": {"a": [NaN]}}', 5),
        ('=== CURRENT ===\n\n$call: {"name": "x", "args": {"a": -Infinity}}', 3),
        ('=== CURRENT ===\n\n$call: {"name": "x", "args": {"a": 1e999}}', 3),
        ("=== CURRENT ===\n\n$result: a\nb", 3),
        ("=== CURRENT ===\n\n$result: a\n\n", 3),
        ("=== CURRENT ===\n\n$user: \ud800", 3),
    ],
)
def test_ctx_12_a_text_that_is_not_replay_text_is_rejected_naming_the_line(text, line):
    with pytest.raises(MalformedReplayTextError, match=rf"^line {line}: \S") as refused:
        parse_replay(text)
    assert refused.value.line == line


@pytest.mark.parametrize(
    ("call_text", "args"),
    [
        ('{"args":{}, "name":"x"}', {}),
        ('{"name": "y", "name": "x", "args": {"a": 1, "a": 2}}', {"a": 2}),
        ('{"name": "\\u0078", "args": {"\\u00e9": "\\u0024user:"}}', {"é": "$user:"}),
        ('\t{ "name" : "x" , "args" : { "a" : 1E2 } } ', {"a": 100.0}),
    ],
)
def test_ctx_12_a_call_in_any_layout_is_parsed(call_text, args):
    assert parse_replay(f"=== CURRENT ===\n\n$call: {call_text}")[1] == [CallEvent(name="x", args=args)]


def test_ctx_12_a_history_that_starts_with_a_result_is_parsed():
    text = "=== HISTORY ===\n(showing last 1 of 2 messages)\n\n$result: Read"
    assert parse_replay(text) == ([ResultEvent(outcome="Read")], None)


def has_only_json(value) -> bool:
    if isinstance(value, dict | list):
        return all(map(has_only_json, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


@given(st.dictionaries(NASTY, values_with(st.floats() | st.just(float("nan"))), max_size=3))
def test_ctx_12_calls_with_json_arguments_round_trip_and_others_are_rejected(args):
    event = {"type": "call", "name": "look", "args": args}
    text = "=== CURRENT ===\n\n$call: " + json.dumps({"name": "look", "args": args}, ensure_ascii=False)
    if has_only_json(args):
        assert render_replay([], [event]) == text
        assert parse_replay(text) == ([], [CallEvent(name="look", args=args)])
        return
    with pytest.raises(ValueError, match=r"call\.args"):
        render_replay([], [event])
    with pytest.raises(MalformedReplayTextError, match=r"^line 3: .* args$"):
        parse_replay(text)


FORMS = st.sampled_from([{}, {"ensure_ascii": True}, {"separators": (",", ":")}, {"sort_keys": True}])


@given(LISTS, st.lists(st.builds(CallEvent, name=NASTY, args=ARGS), min_size=1, max_size=3), FORMS)
def test_ctx_12_calls_in_any_layout_are_rendered_in_one_form(past, calls, form):
    call_texts = [json.dumps({"args": call.args, "name": call.name}, **form) for call in calls]
    text = "\n\n".join(["=== CURRENT ===", *(f"$call: {call}" for call in call_texts)])
    history = render_replay(past, None, 0)
    read = parse_replay(f"{history}\n\n{text}" if history else text)
    assert read == (without_thinking(past), calls)
    assert parse_replay(render_replay(*read, 0)) == read


def test_ctx_12_the_same_conversation_gives_the_same_bytes_under_any_hash_seed():
    script = (
        "import json, sys\n"
        "from turnkeeper.models.replay_text.grammar import render_replay\n"
        "for case in json.load(sys.stdin):\n"
        "    sys.stdout.write(render_replay(case['past'], case['current'], case['max_history']))\n"
    )
    cases = vector_cases("replay.json")
    texts = {
        subprocess.run(
            [sys.executable, "-c", script],
            input=json.dumps(cases).encode(),
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            check=True,
        ).stdout.decode()
        for seed in ("0", "1", "4242")
    }
    assert texts == {"".join(case["text"] for case in cases)}


# ── A turn's events ──────────────────────────────────────────────────────────────────────────────────────────────────


def turn(*steps: Step, **fields) -> ConversationMessage:
    trajectory = ReasoningTrajectory(steps=list(steps)) if steps else None
    values = {"id": "m1", "timestamp": NOW, "user_timestamp": NOW, "user_message": "go", "revision": 1, **fields}
    return ConversationMessage(reasoning_trajectory=trajectory, **values)


def step(*calls: ToolCall, text="", thinking="", **fields) -> ModelStep:
    texts = {"text": text or None, "thinking": thinking or None}
    return ModelStep(kind="model", number=1, tool_calls=list(calls), timestamp=NOW, **texts, **fields)


def call(result: ToolResult | None = None, *, name="look", args=None, **fields) -> ToolCall:
    return ToolCall(id="1.1.0", name=name, args={} if args is None else args, result=result, **fields)


def steered(content: str) -> UserStep:
    return UserStep(kind="user", message_id="m2", content=content, timestamp=NOW)


DONE = ToolResult(outcome="Read", content="text")
GO = UserEvent(content="go")


def test_ctx_12_every_call_is_followed_by_its_result_even_parallel_ones():
    events = replay_events(
        turn(
            step(call(DONE, name="a"), call(name="b"), call(DONE, name="c"), text="Looking.", thinking="hm"),
            steered("and fast"),
            step(text="Done."),
            agent_message="Done.",
        )
    )
    assert events == [
        GO,
        ThinkEvent(content="hm"),
        RespondEvent(content="Looking."),
        CallEvent(name="a", args={}),
        ResultEvent(outcome="Read", content="text"),
        CallEvent(name="b", args={}),
        ResultEvent(outcome="Interrupted: outcome unknown"),
        CallEvent(name="c", args={}),
        ResultEvent(outcome="Read", content="text"),
        UserEvent(content="and fast"),
        RespondEvent(content="Done."),
    ]


def test_ctx_12_a_call_of_a_running_turn_is_running():
    assert replay_events(turn(step(call())))[-1] == ResultEvent(outcome="Running")
    assert replay_events(turn(step(call()), error="Cancelled", status="cancelled"))[-2:] == [
        ResultEvent(outcome="Interrupted: outcome unknown"),
        RespondEvent(content="[Stopped. Tools were called before: look.]"),
    ]


@pytest.mark.parametrize(
    ("result", "event"),
    [
        (
            ToolResult(outcome="No such file", content="a.txt", status="error"),
            ResultEvent(outcome="No such file", content="a.txt"),
        ),
        (ToolResult(outcome="pay is denied", status="denied"), ResultEvent(outcome="pay is denied")),
        (ToolResult(outcome="two\nlines"), ResultEvent(outcome="two lines")),
        (
            ToolResult(
                outcome="Outcome unknown: it broke", content="It may have had its effect.", status="outcome_unknown"
            ),
            ResultEvent(
                outcome="Interrupted: outcome unknown", content="Outcome unknown: it broke\nIt may have had its effect."
            ),
        ),
        (
            ToolResult(outcome="look was cancelled", status="cancelled"),
            ResultEvent(outcome="Interrupted: outcome unknown", content="look was cancelled"),
        ),
    ],
)
def test_ctx_12_a_result_shows_how_its_call_ended(result, event):
    assert replay_events(turn(step(call(result)), agent_message="ok"))[2] == event


def test_ctx_12_arguments_that_were_not_a_json_object_are_shown_as_text():
    assert replay_events(turn(step(call(DONE, args='{"a": '))))[1] == CallEvent(name="look", args='{"a": ')


def test_ctx_12_arguments_that_json_cannot_express_are_shown_as_text():
    tool_call = call(DONE, args={"a": float("nan"), "b": ["é", float("-inf")]})
    event = replay_events(turn(step(tool_call)))[1]
    assert event == CallEvent(name="look", args='{"a": NaN, "b": ["é", -Infinity]}')
    assert parse_replay(render_replay([event], None)) == ([event], None)


def test_ctx_12_unavailable_texts_are_marked():
    blob = BlobRef(hash="0" * 64, chars=12_000, bytes=12_000)
    cut = turn(step(call(DONE, args_blob=blob)), steps_omitted=3)
    assert replay_events(cut)[:3] == [
        GO,
        ThinkEvent(content="[... the first 3 steps of this turn are left out ...]"),
        CallEvent(name="look", args="[... 12,000 characters left out ...]"),
    ]


def test_ctx_12_the_answer_is_shown_once_wherever_it_is_stored():
    assert replay_events(turn(agent_message="Hi!")) == [GO, RespondEvent(content="Hi!")]
    assert replay_events(turn(step(text="Hi!"), agent_message="Hi!")) == [GO, RespondEvent(content="Hi!")]


RESULTS = st.builds(ToolResult, outcome=NASTY, content=NASTY, status=st.sampled_from(["ok", "error", "denied"]))
CALLS = st.builds(lambda result, args: call(result, args=args), RESULTS, ARGS)
STEPS = st.builds(steered, NASTY) | st.builds(
    lambda calls, text, thinking: step(*calls, text=text, thinking=thinking), st.lists(CALLS, max_size=3), NASTY, NASTY
)


@given(st.lists(STEPS, min_size=1, max_size=6), st.booleans())
def test_ctx_12_over_finished_steps_a_longer_current_extends_the_shorter_one(steps, ends):
    counts = [count for count, one in enumerate(steps, 1) if count == len(steps) or isinstance(one, ModelStep)]
    turns = [turn(*steps[:count]) for count in counts]
    if ends:
        turns.append(turn(*steps, error="Cancelled", status="cancelled"))
    texts = [render_replay([], replay_events(each)) for each in turns]
    for shorter, longer in pairwise(texts):
        assert longer == shorter or longer.startswith(f"{shorter}\n\n$")
    assert parse_replay(texts[-1])[1] == replay_events(turns[-1])


# ── Which turns are shown ────────────────────────────────────────────────────────────────────────────────────────────


def of(*turns: ConversationMessage, max_history: int = 0, **fields) -> ReplayTurns:
    values = {"archived": 0, "moved": MovedEvents(), **fields}
    return ReplayTurns.of(turns, max_history=max_history, **values)


ANSWERED = turn(step(call(DONE)), step(text="ok"), agent_message="ok", user_message="earlier", status="completed")
UNANSWERED = turn()
ASKING = turn(step(call()))
FINISHED_A_STEP = turn(step(call(DONE)), step(call()))
CUT = turn(error="Cancelled: stop", status="cancelled")
FAILED = turn(step(call(DONE)), error="no such model", status="failed")
HALF = turn(
    step(call(DONE)),
    step(text="It was", thinking="Hm.").model_copy(update={"interrupted": True}),
    error="Cancelled: stop",
    status="cancelled",
)


@pytest.mark.parametrize(
    ("newest", "is_current"),
    [
        (UNANSWERED, False),
        (ASKING, False),
        (turn(steered("and fast")), False),
        (FINISHED_A_STEP, True),
        (turn(step(call()), steps_omitted=4), True),
        (CUT, True),
        (FAILED, True),
    ],
)
def test_ctx_12_current_is_an_unfinished_turn_with_a_finished_step(newest, is_current):
    replay = of(ANSWERED, newest)
    assert parse_replay(replay.text(0)) == (replay_events(ANSWERED), replay_events(newest) if is_current else None)
    assert replay.total_events == 4


def test_ses_9_an_interrupted_answer_is_shown_and_marked_as_interrupted():
    current = parse_replay(of(ANSWERED, HALF).text(0))[1]
    assert current == replay_events(HALF)
    assert current[-2] == RespondEvent(content=f"{INTERRUPTED_NOTE}It was")
    assert current[-1].content.startswith("[Stopped. ")
    assert not any(isinstance(event, ThinkEvent) for event in current)


def test_ctx_12_earlier_turns_and_an_answered_one_are_history():
    assert parse_replay(of(CUT, FAILED, ANSWERED).text(0)) == (
        [*replay_events(CUT), *replay_events(FAILED), *replay_events(ANSWERED)],
        None,
    )
    assert of().text(0) == ""


def test_ctx_12_only_the_turns_of_the_requested_events_are_read():
    replay = of(*[ANSWERED] * 10, FINISHED_A_STEP, max_history=5)
    assert (len(replay.turns), replay.first_number, replay.total_events) == (3, 9, 40)
    assert "(showing last 5 of 40 messages)" in replay.text(5)


def test_ctx_12_archived_events_are_counted():
    moved = MovedEvents().with_turns([ANSWERED]).with_steps(ANSWERED.steps).at_new_turn()
    assert moved == MovedEvents(earlier=7)
    replay = of(ANSWERED, archived=1, moved=moved)
    assert (replay.first_number, replay.total_events) == (2, 11)
    assert "(showing last 4 of 11 messages)" in replay.text(0)


def test_ctx_12_moved_steps_count_once_when_their_turn_becomes_history():
    moved, long = MovedEvents().with_steps(ANSWERED.steps), ANSWERED.without_oldest_steps(1)
    unfinished = long.model_copy(update={"agent_message": None})
    assert of(unfinished, moved=moved).total_events == 0
    assert of(long, moved=moved).total_events == 3 + 2


def test_ctx_12_history_ends_where_steps_are_missing():
    replay = of(ANSWERED, ANSWERED.without_oldest_steps(1), moved=MovedEvents(newest=2))
    assert replay.text(0) == "=== HISTORY ===\n(showing last 1 of 8 messages)\n\n$respond: ok"


def test_ses_19_turns_archived_without_an_event_count_count_as_one_event_each():
    assert "(showing last 4 of 9 messages)" in of(ANSWERED, archived=5).text(20)


def test_ses_11_history_is_shortened_to_limit_the_size_of_the_response():
    long = turn(agent_message="x" * 1_000, user_message="y" * 1_000)
    text = of(*[long] * 100, FINISHED_A_STEP).text(0, max_bytes=20_000)
    assert 15_000 < len(json.dumps(text)) <= 20_000
    assert "(showing last 19 of 200 messages)" in text


def test_ses_11_current_is_whole_and_leaves_history_a_quarter():
    long = turn(step(call(ToolResult(outcome="Read", content="x" * 50_000))), error="stop")
    history, current = parse_replay(of(*[ANSWERED] * 1_000, long).text(0, max_bytes=20_000))
    assert current == replay_events(long)
    assert 10 < len(history) < 1_000


@given(st.lists(STEPS, max_size=6), st.integers(1, 12))
def test_ctx_12_a_turn_without_its_early_steps_has_the_same_last_events(steps, count):
    whole = turn(*steps, agent_message="ok")
    part = with_newest_events(whole, count)
    expected = without_thinking(replay_events(whole))[-count:]
    assert of(part).history[-len(expected) :] == expected
    assert count_events(part) <= count_events(whole)


def test_ses_9_the_running_turn_of_a_terminated_session_is_cut_off():
    _, current = parse_replay(of(ANSWERED, ASKING).cut_off("terminated").text(0))
    assert current == [
        GO,
        CallEvent(name="look", args={}),
        ResultEvent(outcome="Interrupted: outcome unknown"),
        RespondEvent(content="[Stopped. Tools were called before: look.]"),
    ]
    assert of(ANSWERED).cut_off("terminated") == of(ANSWERED)
