"""Requests after a context overflow or a rejected turn: CTX-7, CTX-8."""

from hypothesis import given
from hypothesis import strategies as st

from tests.models.builders import NOW, answer_turn, asks, complete_turn, evict, fail_turn, send, session
from tests.models.context.test_model_view import orphans
from turnkeeper.models.context.model_view import head_tokens
from turnkeeper.models.ids import call_id
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.session.session import Session
from turnkeeper.models.session.views import context_of
from turnkeeper.models.transcript.conversation import BlobRef, ConversationMessage, ToolCall, ToolResult
from turnkeeper.models.transcript.model_call import ModelMessage, ProviderState
from turnkeeper.models.transcript.notes import REFUSED_PROMPT

MODEL = "offline:"
REFUSED_ANSWER = "[Failed: the provider refused to answer. Tools were called before: look.]"


def look(target: Session, *results: str, state: ProviderState | None = None, blob: BlobRef | None = None) -> None:
    """Add a step of parallel calls with these results to the running turn."""
    turn = target.turn_slot.running().message
    calls = [
        ToolCall(id=call_id(target.transcript.count, len(turn.steps) + 1, index), name="look", args={})
        for index in range(len(results))
    ]
    target.turn_slot.add_response(asks(*["look"] * len(results)), calls, now=NOW)
    for call, result in zip(calls, results, strict=True):
        target.add_result(call.id, ToolResult(outcome="Looked", content=result, blob=blob))
    target.turn_slot.append_step_to_view(state=state)


def overflow(target: Session) -> None:
    target.context.learn_limit(target.config.history, model=MODEL, head=target.head)


def contents(target: Session) -> list[str]:
    return [message.content for message in target.context.view.messages]


def begin(target: Session, text: str) -> None:
    send(target, text, id=f"m{target.transcript.count + 1}")
    target.begin_turn(now=NOW)
    evict(target)


def turns(target: Session, count: int, *, size: int = 400) -> None:
    for _ in range(count):
        begin(target, f"turn {target.transcript.count + 1} ".ljust(size, "."))
        look(target, "x" * size)
        end(target)


def end(target: Session) -> None:
    complete_turn(target, "ok", now=NOW)


def test_ctx_7_a_context_overflow_halves_the_context_by_size_not_by_message_count() -> None:
    target = session()
    turns(target, 5, size=100)
    begin(target, "read the long file")
    look(target, "y" * 40_000)
    look(target, "z" * 40_000)
    before = target.context.view.estimated_tokens
    overflow(target)
    assert before / 4 < target.context.view.estimated_tokens <= before / 2
    assert contents(target)[0].startswith("turn 1 "), "the head stays"
    assert "read the long file" in contents(target)
    assert not orphans(target.context.view.messages)


def test_ctx_7_after_a_turn_with_large_results_as_many_messages_as_fit_remain() -> None:
    target = session()
    begin(target, "read the three files")
    look(target, *["y" * 30_000] * 3)
    overflow(target)
    limit = target.context.max_tokens(target.config.history, model=MODEL)
    assert limit is not None
    assert limit > 10_000
    end(target)
    for number in range(40):
        begin(target, f"a small turn {number}")
        end(target)
        assert head_tokens(target.head) + target.context.view.estimated_tokens <= limit
    assert target.context.view.message_count > 30


def test_ctx_7_results_of_the_newest_step_are_shortened_if_they_alone_are_too_long() -> None:
    target = session()
    begin(target, "earlier")
    end(target)
    begin(target, "not so long ago")
    end(target)
    begin(target, "read the three files")
    look(target, "a" * 30_000, "short", "c" * 30_000)
    overflow(target)
    assert target.context.view.chars <= 30_500
    *earlier, _, _, first, second, third = contents(target)
    assert earlier == ["earlier", "ok", "not so long ago", "ok"], "memory is worth more than the middle of a result"
    assert first.startswith("Looked\n\naaa")
    assert "characters left out" in first
    assert second == "Looked\n\nshort"
    assert len(first) == len(third)
    turn = context_of(target).turns[-1]
    assert turn.seen == "truncated"
    assert turn.characters_cut > 29_000
    newest = target.turn_slot.running().newest_step.tool_calls[0].result
    assert newest is not None
    assert newest.content == "a" * 30_000, "the transcript is never altered"
    carried = Session("s", target.carry(), now=NOW)
    assert carried.context.view.digest(carried.head) == target.context.view.digest(target.head)


def test_ctx_7_a_result_by_reference_is_sent_as_an_excerpt_after_an_overflow() -> None:
    target = session()
    begin(target, "read")
    look(target, "the excerpt", blob=BlobRef(hash="0" * 64, chars=60_000, bytes=60_000))
    overflow(target)
    assert target.context.view.messages[-1].blob is None
    assert contents(target)[-1] == "Looked\n\nthe excerpt"


def test_ctx_7_an_overflow_opens_a_segment_without_the_state_of_earlier_steps() -> None:
    target = session()
    begin(target, "look")
    look(target, "a chair", state=ProviderState(api="test", model="m", items=["signed"]))
    segment = target.context.view.segment
    overflow(target)
    assert target.context.view.segment > segment
    assert not any(message.state for message in target.context.view.messages)


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=40), st.integers(0, 3))
def test_ctx_7_after_an_overflow_half_or_the_mandatory_messages_remain(sizes: list[int], first: int) -> None:
    target = session(history={"preserve_first_n": first, "max_messages": 0})
    for size in sizes[:-1]:
        turns(target, 1, size=size)
    begin(target, "now " + "!" * sizes[-1])
    before = target.context.view.chars
    head = [message.content for message in target.context.view.messages[:first]]
    overflow(target)
    assert not orphans(target.context.view.messages)
    assert contents(target)[-1].startswith("now !") or sizes[-1] == 0
    assert len(contents(target)) >= len(head)
    # A note of what is left out comes on top.
    allowed = max(before // 2, sizes[-1] + 4 + 210 * (first + 2)) + 100
    assert target.context.view.chars <= allowed


def test_ctx_7_the_learned_limit_is_enforced_by_evicting_a_third_at_once() -> None:
    """Between two evictions the view only grows at its end, as it does under a cap of messages (CTX-4)."""
    target = session(history={"max_messages": 0})
    turns(target, 20)
    begin(target, "too much")
    overflow(target)
    end(target)
    limit = target.context.max_tokens(target.config.history, model=MODEL)
    assert limit is not None
    segments: list[int] = []
    before: list[ModelMessage] = []
    for _ in range(40):
        turns(target, 1)
        begin(target, "and now?")
        assert head_tokens(target.head) + target.context.view.estimated_tokens <= limit
        if segments and target.context.view.segment == segments[-1]:
            assert target.context.view.messages[: len(before)] == before
        segments.append(target.context.view.segment)
        before = target.context.view.messages
        end(target)
    assert 3 < len(set(segments)) < 25


def test_ctx_7_an_answered_request_over_the_limit_raises_it() -> None:
    target = session()
    begin(target, "x" * 4_000)
    overflow(target)
    history = target.config.history
    assert target.context.max_tokens(history, model=MODEL) == head_tokens(target.head) + 500
    target.context.confirm_limit(history, model=MODEL, tokens=1_234)
    assert target.context.max_tokens(history, model=MODEL) == 1_234
    target.context.confirm_limit(history, model=MODEL, tokens=100)
    assert target.context.max_tokens(history, model=MODEL) == 1_234


def test_ctx_7_the_limit_applies_to_the_model_and_window_it_was_learned_with() -> None:
    target = session()
    turns(target, 5)
    begin(target, "now")
    overflow(target)
    history = target.config.history
    assert target.context.max_tokens(history, model="anthropic:claude-sonnet-5-5") is None
    assert target.context.max_tokens(history.model_copy(update={"max_messages": 50}), model=MODEL) is None


def test_ctx_7_the_limit_is_carried_to_the_next_run() -> None:
    target = session()
    turns(target, 5)
    begin(target, "now")
    overflow(target)
    end(target)
    carried = Session("s", SessionInput.model_validate_json(target.carry().model_dump_json()), now=NOW)
    history = carried.config.history
    assert carried.context.max_tokens(history, model=MODEL) == target.context.max_tokens(history, model=MODEL)


# ---- refused turns


def refused_turn(target: Session, text: str = "something bad") -> ConversationMessage:
    begin(target, text)
    look(target, "found something bad")
    send(target, "bad words, steered in", mode="steer", id="steered")
    target.steer_turn(now=NOW)
    fail_turn(target, "refusal", "The model refused to answer.", now=NOW)
    turn = target.transcript.newest
    assert turn is not None
    return turn


def test_ctx_7_a_rejected_turn_is_replaced_by_a_note() -> None:
    target = session()
    turns(target, 1)
    segment = target.context.view.segment
    refused = refused_turn(target)
    assert target.context.view.segment > segment
    begin(target, "an innocent question")
    assert contents(target)[-2:] == [REFUSED_ANSWER, "an innocent question"]
    assert not any("bad" in content for content in contents(target))
    assert not orphans(target.context.view.messages)
    view = context_of(target)
    assert [turn.seen for turn in view.turns] == ["verbatim", "refused", "verbatim"]
    assert view.turns[1].message_id == refused.id
    assert view.turns[1].characters_cut > 50
    assert refused.user_message == "something bad", "the transcript is never altered"


def test_ctx_7_a_rejected_turn_stays_left_out_in_later_runs_and_in_the_archive() -> None:
    target = session()
    turns(target, 1)
    refused = refused_turn(target)
    start = SessionInput.model_validate_json(target.carry().model_dump_json())
    carried = Session("s", start, now=NOW)
    carried.context.detach(refused, inline_bytes=10)
    assert carried.context.texts_of([refused], inline_bytes=10) == []
    assert contents(carried) == contents(target)
    assert context_of(carried).turns[1].seen == "refused"


def test_ctx_7_a_rejected_turn_is_in_no_summary() -> None:
    target = session(history={"max_messages": 6, "preserve_last_n": 1, "evict_block": 4, "summarize_on_trim": True})
    begin(target, "something bad")
    for _ in range(4):
        look(target, "something bad")
        evict(target)
    assert target.context.evicted.entries
    fail_turn(target, "refusal", "The model refused to answer.", now=NOW)
    assert not target.context.evicted.entries


def test_ctx_7_the_note_of_a_rejected_turn_is_evicted_like_other_messages() -> None:
    target = session(history={"max_messages": 6, "preserve_last_n": 1, "evict_block": 4})
    turns(target, 1)
    refused_turn(target)
    for _ in range(6):
        answer = f"m{target.transcript.count + 1}"
        send(target, answer, id=answer)
        answer_turn(target)
    begin(target, "now")
    assert REFUSED_PROMPT not in contents(target)
