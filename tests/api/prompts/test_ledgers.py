"""How full a queue is, as a gateway counts it: SES-6."""

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest

from turnkeeper.api.temporal.queue_estimates import (
    FRESH_SECONDS,
    TAIL_SECONDS,
    UNSETTLED_SECONDS,
    HistoryTail,
    QueueEstimate,
    QueueEstimates,
    QueueRead,
)
from turnkeeper.api.temporal.receipts import are_accepted, early_receipt_of
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.session.queue.prompts import Fate, QueueView


def view_of(
    *fates: Fate, positions: Mapping[str, int] = MappingProxyType({}), refusing: Any = None, **fields: Any
) -> QueueView:
    return QueueView(waiting=[], fates=list(fates), revision=1, positions=dict(positions), refusing=refusing, **fields)


def fate_of(message_id: str, fate: Any, *, turn_id: str | None = None) -> Fate:
    return Fate(id=message_id, fate=fate, at=datetime(2026, 1, 1, tzinfo=UTC), turn_id=turn_id)


def read(
    asked_at: float, *, length: int = 0, max_prompts: int = 3, rejection: RejectedError | None = None
) -> QueueRead:
    return QueueRead(asked_at, length=length, bytes=length, max_prompts=max_prompts, max_bytes=10, rejection=rejection)


def is_full(estimate: QueueEstimate, *, now: float, size: int = 1) -> bool:
    rejection = estimate.rejection("new", size, now=now)
    return rejection is not None and rejection.reason == "queue_full"


def test_ses_6_room_is_reserved_before_the_signal_and_counted_until_a_later_read_has_it() -> None:
    estimate = QueueEstimate()
    estimate.note_read(read(0.0))
    for name in "abc":
        assert not is_full(estimate, now=1.0)
        estimate.reserve(name, 1)
    assert is_full(estimate, now=1.0)
    estimate.release("a")
    assert not is_full(estimate, now=1.0)
    estimate.settle("b", now=1.5)
    estimate.note_read(read(1.4, length=1))
    assert is_full(estimate, now=1.6)  # b may be in it, or not yet
    estimate.note_read(read(1.6, length=1))
    assert not is_full(estimate, now=1.6)  # b is in it; c is still under way
    estimate.note_read(read(1.0, length=3))
    assert not is_full(estimate, now=1.6)  # an answer that was overtaken


def test_ses_6_the_same_id_counts_once_and_a_second_try_does_not_take_back_the_first() -> None:
    estimate = QueueEstimate()
    estimate.note_read(read(0.0, max_prompts=1))
    estimate.reserve("a", 1)
    estimate.settle("a", now=0.1)
    assert is_full(estimate, now=0.2)
    assert estimate.rejection("a", 1, now=0.2) is None
    estimate.reserve("a", 1)
    estimate.release("a")
    assert is_full(estimate, now=0.2)


def test_ses_6_a_signal_of_unknown_outcome_counts_until_the_history_is_known_to_lack_it() -> None:
    estimate = QueueEstimate()
    estimate.note_read(read(0.0, max_prompts=1))
    estimate.reserve("a", 1)
    estimate.leave_open("a", now=1.0)
    estimate.note_tail(HistoryTail(2.0))
    assert is_full(estimate, now=2.0)
    estimate.note_tail(HistoryTail(1.0 + UNSETTLED_SECONDS + 0.1))
    assert not is_full(estimate, now=6.0)


def test_ses_6_the_tail_counts_what_other_gateways_have_sent_and_what_was_sent_since() -> None:
    estimate = QueueEstimate()
    estimate.note_read(read(0.0))
    estimate.reserve("a", 1)
    estimate.settle("a", now=1.0)
    estimate.note_tail(HistoryTail(5.0, {"a": 1, "b": 1}))
    assert not is_full(estimate, now=5.0)
    estimate.reserve("c", 1)
    assert is_full(estimate, now=5.0)
    assert estimate.is_in_tail("b", now=5.0 + TAIL_SECONDS)
    assert not estimate.is_in_tail("b", now=5.1 + TAIL_SECONDS)
    estimate.note_read(read(6.0))
    assert not is_full(estimate, now=6.0)


def test_ses_6_the_tail_is_due_only_where_nobody_answers_and_once_a_second() -> None:
    estimate = QueueEstimate()
    assert estimate.is_tail_due(now=0.0)
    estimate.note_read(read(0.0))
    assert not estimate.is_tail_due(now=FRESH_SECONDS)
    assert not estimate.is_tail_due(now=1_000.0)  # the last question was answered, and nothing was sent since
    estimate.reserve("a", 1)
    estimate.settle("a", now=1_000.0)
    estimate.note_silence(now=1_000.7)
    assert estimate.is_silent(now=1_001.0)
    assert estimate.is_tail_due(now=1_001.0)
    estimate.note_tail(HistoryTail(1_001.0, {"a": 1}))
    assert not estimate.is_tail_due(now=1_001.9)
    assert estimate.is_tail_due(now=1_002.1)


def test_ses_6_the_tail_is_not_read_while_half_of_the_queue_is_free_even_if_nothing_was_processed() -> None:
    estimate = QueueEstimate()
    estimate.note_read(read(0.0, max_prompts=4))
    estimate.reserve("a", 1)
    estimate.settle("a", now=10.0)
    assert not estimate.is_tail_due(now=1_000.0)
    estimate.reserve("b", 1)
    assert estimate.is_tail_due(now=1_000.0)
    estimate.note_read(read(1_000.0, max_prompts=4))
    assert not estimate.is_tail_due(now=2_000.0)


@pytest.mark.parametrize(
    ("view", "is_accepted"),
    [
        (view_of(positions={"a": 2}), True),
        (view_of(fate_of("a", "started", turn_id="a")), True),
        (view_of(fate_of("a", "rejected")), False),
        (view_of(fate_of("a", "withdrawn")), False),
        (view_of(), False),
        (view_of(positions={"a": 2}, refusing="ending"), False),
        (view_of(next_position=0), True),
        (view_of(next_position=0, refusing="ending"), False),
    ],
    ids=["waits", "in a turn", "rejected", "withdrawn", "unknown", "others are rejected", "next", "next is rejected"],
)
def test_ses_12_only_the_receipt_of_an_accepted_prompt_needs_no_committed_state(
    view: QueueView, is_accepted: bool
) -> None:
    assert are_accepted(view, ["a"]) is is_accepted


@pytest.mark.parametrize(
    ("view", "position"),
    [
        (view_of(next_position=3), 3),
        (view_of(next_position=0), 0),
        (view_of(positions={"a": 2}), 2),
        (view_of(fate_of("a", "started", turn_id="a")), 0),
        (view_of(fate_of("a", "rejected")), None),
        (view_of(fate_of("a", "rejected"), next_position=1), 1),
        (view_of(), None),
    ],
    ids=[
        "waits behind others",
        "starts at once",
        "waits",
        "has started",
        "rejected: before or after the signal?",
        "sent again after a rejection",
        "of an earlier worker",
    ],
)
def test_api_1_a_view_from_before_the_signal_says_where_a_prompt_will_be_or_leaves_it_open(
    view: QueueView, position: int | None
) -> None:
    receipt = early_receipt_of(view, "a")
    assert (receipt and receipt.position) == position
    assert receipt is None or receipt.is_known


def test_ses_6_while_workers_answer_only_the_first_prompt_of_an_unknown_session_goes_without_the_tail() -> None:
    estimates = QueueEstimates()
    assert estimates.of("s").is_tail_due(now=0.0, answered_at=estimates.answered_at)
    estimates.note_answer(now=0.0)
    estimate = estimates.of("s")
    assert not estimate.is_tail_due(now=FRESH_SECONDS, answered_at=estimates.answered_at)
    assert estimate.is_tail_due(now=FRESH_SECONDS + 0.1, answered_at=estimates.answered_at)
    estimate.reserve("a", 1)
    assert estimate.is_tail_due(now=1.0, answered_at=estimates.answered_at)
    estimate.release("a")
    assert estimate.is_tail_due(now=1.0)
    estimate.note_tail(HistoryTail(1.0))
    assert estimate.is_tail_due(now=1.1 + TAIL_SECONDS, answered_at=estimates.answered_at)
    estimates.note_answer(now=1.1)
    assert not estimate.is_tail_due(now=1.1 + TAIL_SECONDS, answered_at=estimates.answered_at)


def test_ses_6_a_session_that_does_not_answer_is_busy_if_a_worker_has_answered_for_another_one_since() -> None:
    estimate = QueueEstimate()
    estimate.note_read(read(0.0, max_prompts=4))
    estimate.reserve("a", 1)
    estimate.settle("a", now=10.0)
    estimate.note_silence(now=10.7)
    assert estimate.is_tail_due(now=100.0)
    assert estimate.is_tail_due(now=100.0, answered_at=10.0)
    assert not estimate.is_tail_due(now=100.0, answered_at=11.0)
    estimate.reserve("b", 1)
    assert estimate.is_tail_due(now=100.0, answered_at=11.0)  # now it matters what other gateways have sent


def test_ses_6_what_no_workflow_task_of_a_closed_session_will_take_is_left_to_temporal_to_refuse() -> None:
    estimate = QueueEstimate()
    estimate.note_read(read(0.0, length=3))
    assert is_full(estimate, now=5.0)
    estimate.note_tail(HistoryTail(5.0, {"a": 1}, is_closed=True))
    assert not is_full(estimate, now=5.0)
    assert not estimate.is_in_tail("a", now=5.0)


def test_ses_6_a_prompt_over_the_limit_of_bytes_has_room_in_an_empty_queue() -> None:
    estimate = QueueEstimate()
    estimate.note_read(read(0.0))
    assert not is_full(estimate, now=1.0, size=11)
    estimate.reserve("a", 11)
    assert is_full(estimate, now=1.0)


def test_ses_6_only_a_fresh_answer_says_that_a_text_is_too_long() -> None:
    estimate = QueueEstimate()
    assert estimate.length_rejection("hello", now=0.0) is None
    estimate.note_read(QueueRead(0.0, length=0, bytes=0, max_prompts=3, max_bytes=10, max_prompt_chars=4))
    rejection = estimate.length_rejection("hello", now=FRESH_SECONDS)
    assert rejection
    assert rejection.reason == "too_long"
    assert estimate.length_rejection("hell", now=FRESH_SECONDS) is None
    assert estimate.length_rejection("hello", now=FRESH_SECONDS + 0.1) is None


def test_ses_6_what_the_session_refuses_is_refused_for_two_seconds() -> None:
    estimate = QueueEstimate()
    estimate.note_read(read(0.0, rejection=RejectedError("state_full", "It is full.")))
    rejection = estimate.rejection("a", 1, now=FRESH_SECONDS)
    assert rejection is not None
    assert rejection.reason == "state_full"
    assert estimate.rejection("a", 1, now=FRESH_SECONDS + 0.1) is None


def test_ses_6_accepted_ids_are_remembered_until_they_are_rejected_or_the_session_is_deleted() -> None:
    estimates = QueueEstimates()
    for name in "ab":
        estimates.note_accepted("s", name)
    estimates.note_rejected("s", "a")
    assert [estimates.has_accepted("s", name) for name in "ab"] == [False, True]
    estimates.forget("s")
    assert not estimates.has_accepted("s", "b")
