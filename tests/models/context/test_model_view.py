"""The model view over a session's life: CTX-3, CTX-4, CTX-6, and the digests of AGT-2."""

from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from tests.models.builders import NOW, answer_turn, asks, complete_turn, evict, fail_turn, says, send, session
from turnkeeper.models.context.model_view import digest_of
from turnkeeper.models.ids import call_id
from turnkeeper.models.session.session import Session
from turnkeeper.models.transcript.conversation import INTERRUPTED_NOTE, ToolCall, ToolResult
from turnkeeper.models.transcript.large_texts import resolve_request
from turnkeeper.models.transcript.model_call import ModelMessage, ProviderState


def run_step(target: Session, *, calls: int = 1, state: ProviderState | None = None) -> None:
    turn = target.turn_slot.running().message
    tool_calls = [
        ToolCall(id=call_id(target.transcript.count, len(turn.steps) + 1, index), name="look", args={})
        for index in range(calls)
    ]
    target.turn_slot.add_response(asks(*["look"] * calls), tool_calls, now=NOW)
    for call in tool_calls:
        target.add_result(call.id, ToolResult(outcome="Looked", content=f"saw {call.id}"))
    target.turn_slot.append_step_to_view(state=state)


def orphans(messages: list[ModelMessage]) -> list[ModelMessage]:
    call_ids: set[str | None] = set()
    answered: set[str | None] = set()
    for message in messages:
        call_ids |= {call.id for call in message.tool_calls}
        answered |= {message.call_id} if message.role == "tool" else set()
    return [m for m in messages if (m.role == "tool" and m.call_id not in call_ids)] + [
        m for m in messages if any(call.id not in answered for call in m.tool_calls)
    ]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(4, 30), st.integers(0, 12))
def test_ctx_4_between_two_evictions_the_view_only_grows_at_its_end(steps: list[int], cap: int, block: int) -> None:
    target = session(history={"max_messages": cap, "preserve_last_n": 2, "evict_block": block})
    send(target, "first", id="m1")
    turn = target.begin_turn(now=NOW)
    before: list[ModelMessage] = []
    for calls in steps:
        segment = target.context.view.segment
        evict(target)
        messages = target.context.view.request(target.head).messages
        if target.context.view.segment == segment:
            assert messages[: len(before)] == before
        assert not orphans(messages)
        assert ModelMessage(role="user", content=turn.user_message) in messages
        before = messages
        if calls:
            run_step(target, calls=calls)
        else:
            send(target, "steered", mode="steer")
            target.steer_turn(now=NOW)


def test_ctx_4_sixty_tool_calls_exceed_thirty_messages_by_at_most_one_step() -> None:
    target = session(history={"max_messages": 30, "preserve_last_n": 10})
    for number in range(5):
        send(target, f"earlier {number}", id=f"e{number}")
        answer_turn(target)
    send(target, "the long one", id="m1")
    target.begin_turn(now=NOW)
    for _ in range(60):
        evict(target)
        assert target.context.view.message_count <= 30
        assert "the long one" in [message.content for message in target.context.view.messages]
        assert target.context.view.messages[0].content == "earlier 0"
        run_step(target)
    assert target.context.view.segment > 3


def test_ctx_4_an_eviction_drops_the_opaque_state_of_earlier_steps() -> None:
    target = session(history={"max_messages": 6, "preserve_last_n": 2, "evict_block": 2})
    send(target, "go", id="m1")
    target.begin_turn(now=NOW)
    state = ProviderState(api="test", model="m", items=[{"signature": "s"}])
    run_step(target, state=state)
    assert any(message.state for message in target.context.view.messages)
    for _ in range(3):
        run_step(target, state=state)
    evict(target)
    assert not any(message.state for message in target.context.view.messages)
    run_step(target, state=state)
    assert target.context.view.messages[-2].state == state


def test_ctx_4_the_state_of_a_step_is_shown_only_in_the_segment_it_was_requested_in() -> None:
    target = session()
    send(target, "go", id="m1")
    target.begin_turn(now=NOW)
    target.turn_slot.add_response(says("thinking"), [], now=NOW)
    asked_in = target.context.view.segment
    target.context.view.open_segment()  # as an eviction does that is due to the archive, while tools run
    target.turn_slot.append_step_to_view(state=ProviderState(api="test", model="m", items=["signed"]), segment=asked_in)
    assert target.context.view.messages[-1].content == "thinking"
    assert not any(message.state for message in target.context.view.messages)


def test_ses_15_a_view_can_shrink_to_its_head_the_summary_and_the_running_prompt() -> None:
    for first in (0, 1, 3):
        target = session(history={"max_messages": 0, "preserve_first_n": first})
        for number in range(100):
            send(target, f"turn {number}", id=f"m{number}")
            answer_turn(target)
        send(target, "now", id="now")
        target.begin_turn(now=NOW)
        target.context.view.evict_over_bytes(2_000, running_turn="now", first_n=first)
        contents = [message.content for message in target.context.view.messages]
        assert contents[:first] == ["turn 0", "ok", "turn 1"][:first]
        assert "turn 10" not in contents
        assert contents[-1] == "now"
        assert target.context.view.carried_bytes <= 1_100


def test_ctx_4_max_messages_zero_never_evicts() -> None:
    target = session(history={"max_messages": 0})
    for number in range(150):
        send(target, "hi", id=f"m{number}")
        answer_turn(target)
    send(target, "last", id="last")
    target.begin_turn(now=NOW)
    evict(target)
    assert target.context.evicted.pop_counts().evicted == 0
    assert target.context.view.message_count == 301


def test_ctx_6_a_warning_is_logged_once_per_segment_above_eighty_percent() -> None:
    target = session(history={"max_messages": 10, "preserve_last_n": 2})
    warned = []
    for number in range(8):
        send(target, "hi", id=f"m{number}")
        target.begin_turn(now=NOW)
        evict(target)
        warned.append((target.context.view.message_count, target.context.pop_limit_warning(target.config.history)))
        target.turn_slot.add_response(says("ok"), [], now=NOW)
        target.turn_slot.append_step_to_view(state=None)
        complete_turn(target, "ok", now=NOW)
    assert [count for count, warning in warned if warning] == [9, 9]


def test_ctx_6_each_turn_has_the_size_of_the_context_that_the_model_saw() -> None:
    target = session()
    send(target, "12345678", id="m1")
    target.begin_turn(now=NOW)
    target.turn_slot.note_request()
    assert target.count_request() == 1
    metrics = target.transcript.get("m1").conversation_metrics
    assert metrics is not None
    assert (metrics.message_count, metrics.estimated_tokens) == (1, 2)


def test_agt_2_the_digest_identifies_exactly_one_context() -> None:
    target = session()
    send(target, "hi", id="m1")
    target.begin_turn(now=NOW)
    first = target.context.view.request(target.head)
    digest = target.context.view.digest(target.head)
    assert digest == digest_of(first)
    run_step(target)
    assert digest == digest_of(first), "an open request is never changed"
    assert target.context.view.digest(target.head) == digest_of(target.context.view.request(target.head)) != digest


def test_agt_3_a_step_without_text_and_calls_is_not_shown_to_the_model() -> None:
    target = session()
    send(target, "hi", id="m1")
    target.begin_turn(now=NOW)
    target.turn_slot.add_response(says(""), [], now=NOW)
    target.turn_slot.append_step_to_view(state=None)
    assert target.context.view.message_count == 1


@given(st.integers(0, 2_000))
def test_ses_9_an_interrupted_answer_reads_the_same_everywhere(words: int) -> None:
    text = "It was a dark" + " night" * words
    target = session()
    send(target, "tell me a story")
    target.begin_turn(now=NOW)
    unfinished_call = ToolCall(id="1.1.0", name="pay", args={}, result=ToolResult(outcome="no", status="cancelled"))
    target.turn_slot.add_response(says(text), [unfinished_call], now=NOW, interrupted=True)
    target.turn_slot.append_step_to_view(state=None)
    fail_turn(target, "cancelled", "Cancelled: enough", now=NOW)
    turn = target.transcript.turns[0]
    seen = target.context.view.request(target.head)
    assert [(message.role, message.content) for message in seen.messages] == [
        ("user", "tell me a story"),
        ("assistant", INTERRUPTED_NOTE + text),
        ("assistant", "[Stopped. Nothing was done.]"),
    ]
    assert turn.tools_used is None

    carried = Session("s", target.carry(), now=NOW)
    assert carried.context.view.request(carried.head) == seen
    texts = {
        sha256(content.encode()).hexdigest(): content for content in carried.context.texts_of([turn], inline_bytes=512)
    }
    carried.context.detach(turn, inline_bytes=512)
    assert resolve_request(carried.context.view.request(carried.head), texts) == seen
