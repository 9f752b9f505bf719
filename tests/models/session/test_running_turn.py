"""The rules of a running turn, without Temporal: AGT-1, AGT-8, SES-14, SES-15."""

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.builders import NOW, asks, at, says
from turnkeeper.models.context.window import ConversationHistoryConfig
from turnkeeper.models.errors import TurnFailedError
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.approvals import APPROVAL_BYTES, ask_for_approval, record_decision
from turnkeeper.models.session.archive_moves import oldest_steps
from turnkeeper.models.session.prompts import Prompt
from turnkeeper.models.session.running_turn import RESULT_BYTES, CarriedTurn, RunningTurn, number_calls
from turnkeeper.models.transcript.conversation import ConversationMessage, ToolCall, ToolResult, Usage
from turnkeeper.models.transcript.model_call import ProviderState
from turnkeeper.models.transcript.transcript import carried_size


def running_turn(**limits: Any) -> RunningTurn:
    message = ConversationMessage(id="p1", timestamp=NOW, user_message="look", user_timestamp=NOW, revision=1)
    return RunningTurn.begin(
        message,
        model="offline:",
        limits=Limits.model_validate(limits),
        history=ConversationHistoryConfig(),
        tool_policy={"pay": "ask"},
        now=NOW,
    )


def asking(*names: str, **limits: Any) -> RunningTurn:
    """Return a turn whose newest step asks for calls 1.1.0, 1.1.1, ..."""
    turn, response = running_turn(**limits).with_more(steps=1), asks(*names)
    calls = number_calls(response.calls, turn_number=1, step=turn.steps)
    turn = turn.with_more(calls=len(calls)).with_response(response, calls, now=at(1))
    return turn.with_unsettled_step(ProviderState(api="test", model="m", items=["signed"]), segment=3)


# ---- what is carried


def test_ses_14_the_serialised_fields_of_a_carried_turn_are_fixed() -> None:
    turn = asking("look").with_approvals_asked(["1.1.0"], now=at(2))
    fields = json.loads(turn.carried.model_dump_json())
    assert fields.pop("limits") == Limits().model_dump(mode="json")
    assert fields.pop("history") == ConversationHistoryConfig().model_dump(mode="json")
    assert fields == {
        "deadline": "2026-01-01T01:00:00Z",
        "model": "offline:",
        "tool_policy": {"pay": "ask"},
        "awaiting_since": "2026-01-01T00:00:02Z",
        "steps": 1,
        "calls": 1,
        "unsettled": True,
        "state": {"api": "test", "model": "m", "items": ["signed"]},
        "segment": 3,
    }


def test_ses_14_missing_fields_of_a_carried_turn_have_their_defaults() -> None:
    read = CarriedTurn.model_validate({"deadline": at(60), "model": "m", "limits": {}, "history": {}})
    assert read == CarriedTurn(deadline=at(60), model="m", limits=Limits(), history=ConversationHistoryConfig())
    turn = read.resume(running_turn().message)
    assert (turn.steps, turn.calls, turn.unsettled, turn.awaiting_since) == (0, 0, False, None)


def test_ses_14_a_turn_continues_in_the_next_run_unchanged() -> None:
    turn = asking("look", "pay").with_approvals_asked(["1.1.1"], now=at(2))
    turn = turn.with_result("1.1.0", ToolResult(outcome="saw it"))
    again = CarriedTurn.model_validate_json(turn.carried.model_dump_json()).resume(turn.message)
    assert again == turn.model_copy(update={"carried_bytes": carried_size(turn.message)})
    assert [call.id for call in again.pending_calls] == ["1.1.1"]


def test_ses_14_a_turn_serialises_neither_its_message_nor_its_size() -> None:
    turn = asking("look")
    assert turn.model_dump_json() == turn.carried.model_dump_json()


# ---- a value


def test_a_change_leaves_the_previous_version_unchanged() -> None:
    before = asking("look")
    copy = before.model_copy(deep=True)
    after = before.with_approvals_asked(["1.1.0"], now=at(2)).with_approvals_expired(at(100_000))
    after = (
        after.with_result("1.1.0", ToolResult(outcome="saw it"))
        .model_copy(update={"unsettled": False, "state": None, "segment": None})
        .with_usage(Usage(cost=1.0))
    )
    assert before == copy
    assert after != before


# ---- the clock


def test_agt_1_the_remaining_time_is_counted_in_whole_seconds_and_ends_at_the_limit() -> None:
    turn = running_turn(turn_timeout=60)
    assert turn.time_left(at(0.5)) == timedelta(seconds=60)
    assert turn.time_left(at(59.9)) == timedelta(seconds=1)
    with pytest.raises(
        TurnFailedError, match=r"The turn ran out of time and is not done, and limits.turn_timeout is 60 s"
    ):
        turn.time_left(at(60))


def test_agt_1_the_clock_stops_from_the_first_approval_request_to_the_last_decision() -> None:
    turn = asking("pay", "pay", turn_timeout=60).with_approvals_asked(["1.1.0", "1.1.1"], now=at(10))
    assert turn.deadline_at(at(1_000)) == at(1_050)
    turn = turn.with_decision(turn.call("1.1.0"), "approve", now=at(100))
    assert turn.awaits_approval
    assert turn.deadline_at(at(1_000)) == at(1_050)
    turn = turn.with_decision(turn.call("1.1.1"), "reject", reason="no", now=at(200))
    assert not turn.awaits_approval
    assert turn.deadline_at(at(1_000)) == turn.deadline == at(250)


def test_agt_1_a_second_approval_request_does_not_reset_the_clock() -> None:
    turn = asking("pay", "pay", turn_timeout=60).with_approvals_asked(["1.1.0"], now=at(10))
    turn = turn.with_approvals_asked(["1.1.1"], now=at(30))
    assert turn.awaiting_since == at(10)
    assert turn.deadline_at(at(30)) == at(80)


def test_agt_8_undecided_approvals_expire_and_the_clock_continues() -> None:
    turn = asking("pay", turn_timeout=60, approval_timeout=5).with_approvals_asked(["1.1.0"], now=at(10))
    assert turn.with_approvals_expired(at(14)).awaits_approval
    turn = turn.with_approvals_expired(at(15))
    assert not turn.awaits_approval
    approval = turn.call("1.1.0").approval
    assert approval is not None
    assert approval.decision == "expired"
    assert turn.deadline == at(65)


def test_agt_8_a_decision_for_the_session_applies_to_all_waiting_calls_of_the_tool() -> None:
    turn = asking("pay", "mail", "pay").with_approvals_asked(["1.1.0", "1.1.1", "1.1.2"], now=at(2))
    turn = turn.with_decision(turn.call("1.1.2"), "allow_for_session", now=at(3))
    assert [call.awaits_approval for call in turn.newest_step.tool_calls] == [False, True, False]


# ---- steps and calls


def test_agt_1_calls_are_pending_until_they_have_a_result() -> None:
    turn = asking("look", "pay")
    assert [call.id for call in turn.pending_calls] == ["1.1.0", "1.1.1"]
    turn = turn.with_result("1.1.1", ToolResult(outcome="paid"))
    assert [call.id for call in turn.pending_calls] == ["1.1.0"]
    assert turn.message.tools_used == ["look", "pay"]


def test_agt_1_a_turn_that_used_all_its_steps_takes_no_further_one() -> None:
    turn = running_turn(max_steps=1)
    turn.budgets.check_next_step(turn.steps)
    turn = turn.with_more(steps=1)
    with pytest.raises(TurnFailedError) as failed:
        turn.budgets.check_next_step(turn.steps)
    assert failed.value.error_type == "max_steps"


def test_agt_9_usage_is_counted_for_the_turn_and_shown_with_its_step() -> None:
    spent, usage = Usage(input_tokens=5), Usage(input_tokens=2, output_tokens=1)
    turn = running_turn().with_usage(spent)
    turn = turn.with_response(says("ok").model_copy(update={"usage": usage}), [], now=at(1), spent=spent)
    assert turn.budgets.spent == turn.newest_step.usage == spent + usage


def test_ses_9_an_interrupted_answer_uses_no_tools() -> None:
    turn, response = running_turn(), asks("look")
    calls = number_calls(response.calls, turn_number=1, step=turn.steps)
    turn = turn.with_response(response, calls, now=at(1), interrupted=True)
    assert turn.newest_step.interrupted
    assert turn.message.tools_used is None


def test_a_steered_prompt_is_not_a_step_of_the_model() -> None:
    turn = running_turn().with_prompt(Prompt(id="p2", text="only the red ones", received_at=at(1)), now=at(1))
    assert [step.kind for step in turn.message.steps] == ["user"]
    with pytest.raises(TypeError):
        _ = turn.newest_step


# ---- bytes


@given(st.lists(st.lists(st.text(max_size=40), min_size=1, max_size=3), max_size=8))
def test_ses_15_bytes_are_counted_step_by_step_as_they_will_be_carried(steps: list[list[str]]) -> None:
    turn = running_turn()
    for contents in steps:
        response = asks(*["look"] * len(contents))
        turn = turn.with_more(steps=1)
        turn = turn.with_response(response, number_calls(response.calls, turn_number=1, step=turn.steps), now=at(1))
        for call, content in zip(turn.pending_calls, contents, strict=True):
            turn = turn.with_result(call.id, ToolResult(outcome="saw it", content=content))
    beside = 200 + 40 * sum(map(len, steps))  # names of fields, `tools_used`
    assert abs(turn.carried_bytes - carried_size(turn.message)) <= beside


def test_ses_15_the_oldest_steps_are_moved_and_the_newest_stays() -> None:
    turn = running_turn()
    for number in range(5):
        turn = turn.with_response(says("x" * 1_000), [], now=at(number))
    assert len(oldest_steps(turn, keep_bytes=3_000)) == 3
    assert len(oldest_steps(turn, keep_bytes=0)) == 4
    assert oldest_steps(turn, keep_bytes=turn.carried_bytes) == []
    shorter = turn.without_oldest_steps(3)
    assert (shorter.message.steps_omitted, len(shorter.message.steps)) == (3, 2)
    assert shorter.carried_bytes == carried_size(shorter.message)


def test_ses_15_a_turn_that_exceeds_its_size_fails_with_the_reason() -> None:
    turn = running_turn()
    turn.bytes.check(turn.carried_bytes, archive_error="disk full")
    with pytest.raises(TurnFailedError, match=r"leaves 10 for it, and the archive could not take .* steps: disk full$"):
        turn.bytes.check(10, archive_error="disk full")
    with pytest.raises(TurnFailedError, match=r"leaves 10 for it\.$"):
        turn.bytes.check(10, archive_error=None)


def test_ses_15_a_step_requests_only_as_many_results_as_there_is_room_for() -> None:
    turn = running_turn(max_state_bytes=40_000)
    a_result = turn.limits.small_text_bytes + RESULT_BYTES
    cap = turn.carried_bytes + 20 * a_result
    turn.bytes.check_room_for_results(20, asks=False, cap=cap)
    with pytest.raises(TurnFailedError, match="asked for 21 tool calls; the turn has room for 20 results"):
        turn.bytes.check_room_for_results(21, asks=False, cap=cap)
    max_results = 20 * a_result // (a_result + APPROVAL_BYTES)
    with pytest.raises(TurnFailedError, match=f"the turn has room for {max_results} results"):
        turn.bytes.check_room_for_results(20, asks=True, cap=cap)


def test_ses_15_an_approval_is_no_larger_than_the_space_reserved_for_it() -> None:
    pending = ask_for_approval(ToolCall(id="1.1.0", name="pay", args={}), now=NOW, timeout=1.000_001)
    decided = record_decision(pending, "allow_for_session", reason='"' * 500, by="名" * 64, now=NOW)
    assert len(decided.approval.model_dump_json().encode()) <= APPROVAL_BYTES
    named = record_decision(pending, "allow_for_session", reason=None, by="M" * 64, now=NOW)
    assert named.approval.decided_by == "M" * 64


def test_ses_15_a_small_turn_accepts_all_requested_calls() -> None:
    running_turn().bytes.check_room_for_results(10, asks=True, cap=0)


def test_ses_16_an_answer_leaves_enough_room_for_the_results_it_requests() -> None:
    turn = running_turn()
    assert turn.bytes.max_answer(turn.carried_bytes + 10_000) == 5_000
    assert turn.bytes.max_answer(10_000_000) == turn.limits.answer_bytes
    assert turn.bytes.max_answer(0) == 2_000


def test_ses_15_results_share_the_inline_limit_of_a_turn_fairly() -> None:
    turn = running_turn()
    assert turn.bytes.inline_result(1) == turn.bytes.inline == 8_192
    assert turn.bytes.inline_result(64) == (turn.limits.turn_inline_bytes - turn.carried_bytes) // 64
    assert turn.bytes.inline_result(5_000) == turn.limits.small_text_bytes


# ---- its end


def test_ses_1_an_ended_turn_shows_its_duration() -> None:
    ended = asking("look").completed("done", now=at(2.5))
    assert (ended.processing_time_ms, ended.agent_timestamp, ended.agent_message) == (2_500, at(2.5), "done")
    assert ended.is_complete
