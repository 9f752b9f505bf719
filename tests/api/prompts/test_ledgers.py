"""How full a queue is, as a gateway counts it: SES-6."""

from turnkeeper.api.temporal.ledgers import (
    FRESH_SECONDS,
    TAIL_SECONDS,
    UNSETTLED_SECONDS,
    Ledger,
    Ledgers,
    QueueRead,
    Tail,
)
from turnkeeper.models.errors import RejectedError


def read(asked_at: float, *, length: int = 0, max_prompts: int = 3, refusal: RejectedError | None = None) -> QueueRead:
    return QueueRead(asked_at, length=length, bytes=length, max_prompts=max_prompts, max_bytes=10, refusal=refusal)


def is_full(ledger: Ledger, *, now: float, size: int = 1) -> bool:
    refusal = ledger.refusal("new", size, now=now)
    return refusal is not None and refusal.reason == "queue_full"


def test_ses_6_room_is_reserved_before_the_signal_and_counted_until_a_later_read_has_it() -> None:
    ledger = Ledger()
    ledger.note_read(read(0.0))
    for name in "abc":
        assert not is_full(ledger, now=1.0)
        ledger.reserve(name, 1)
    assert is_full(ledger, now=1.0)
    ledger.release("a")
    assert not is_full(ledger, now=1.0)
    ledger.settle("b", now=1.5)
    ledger.note_read(read(1.4, length=1))
    assert is_full(ledger, now=1.6)  # b may be in it, or not yet
    ledger.note_read(read(1.6, length=1))
    assert not is_full(ledger, now=1.6)  # b is in it; c is still under way
    ledger.note_read(read(1.0, length=3))
    assert not is_full(ledger, now=1.6)  # an answer that was overtaken


def test_ses_6_the_same_id_counts_once_and_a_second_try_does_not_take_back_the_first() -> None:
    ledger = Ledger()
    ledger.note_read(read(0.0, max_prompts=1))
    ledger.reserve("a", 1)
    ledger.settle("a", now=0.1)
    assert is_full(ledger, now=0.2)
    assert ledger.refusal("a", 1, now=0.2) is None
    ledger.reserve("a", 1)
    ledger.release("a")
    assert is_full(ledger, now=0.2)


def test_ses_6_a_signal_of_unknown_outcome_counts_until_the_history_is_known_to_lack_it() -> None:
    ledger = Ledger()
    ledger.note_read(read(0.0, max_prompts=1))
    ledger.reserve("a", 1)
    ledger.leave_open("a", now=1.0)
    ledger.note_tail(Tail(2.0))
    assert is_full(ledger, now=2.0)
    ledger.note_tail(Tail(1.0 + UNSETTLED_SECONDS + 0.1))
    assert not is_full(ledger, now=6.0)


def test_ses_6_the_tail_counts_what_other_gateways_have_sent_and_what_was_sent_since() -> None:
    ledger = Ledger()
    ledger.note_read(read(0.0))
    ledger.reserve("a", 1)
    ledger.settle("a", now=1.0)
    ledger.note_tail(Tail(5.0, {"a": 1, "b": 1}))
    assert not is_full(ledger, now=5.0)
    ledger.reserve("c", 1)
    assert is_full(ledger, now=5.0)
    assert ledger.is_in_tail("b", now=5.0 + TAIL_SECONDS)
    assert not ledger.is_in_tail("b", now=5.1 + TAIL_SECONDS)
    ledger.note_read(read(6.0))
    assert not is_full(ledger, now=6.0)


def test_ses_6_the_tail_is_due_only_where_nobody_answers_and_once_a_second() -> None:
    ledger = Ledger()
    assert ledger.is_tail_due(now=0.0)
    ledger.note_read(read(0.0))
    assert not ledger.is_tail_due(now=FRESH_SECONDS)
    assert not ledger.is_tail_due(now=1_000.0)  # the last question was answered, and nothing was sent since
    ledger.reserve("a", 1)
    ledger.settle("a", now=1_000.0)
    ledger.note_silence(now=1_000.7)
    assert ledger.is_silent(now=1_001.0)
    assert ledger.is_tail_due(now=1_001.0)
    ledger.note_tail(Tail(1_001.0, {"a": 1}))
    assert not ledger.is_tail_due(now=1_001.9)
    assert ledger.is_tail_due(now=1_002.1)


def test_ses_6_while_workers_answer_only_the_first_prompt_of_an_unknown_session_goes_without_the_tail() -> None:
    ledgers = Ledgers()
    assert not ledgers.workers_answer(now=0.0)
    ledgers.note_answer(now=0.0)
    assert ledgers.workers_answer(now=FRESH_SECONDS)
    assert not ledgers.workers_answer(now=FRESH_SECONDS + 0.1)
    ledger = ledgers.of("s")
    assert not ledger.is_tail_due(now=1.0, workers_answer=True)
    ledger.reserve("a", 1)
    assert ledger.is_tail_due(now=1.0, workers_answer=True)
    ledger.release("a")
    assert ledger.is_tail_due(now=1.0)
    ledger.note_tail(Tail(1.0))
    assert ledger.is_tail_due(now=1.1 + TAIL_SECONDS, workers_answer=True)


def test_ses_6_what_no_workflow_task_of_a_closed_session_will_take_is_left_to_temporal_to_refuse() -> None:
    ledger = Ledger()
    ledger.note_read(read(0.0, length=3))
    assert is_full(ledger, now=5.0)
    ledger.note_tail(Tail(5.0, {"a": 1}, is_closed=True))
    assert not is_full(ledger, now=5.0)
    assert not ledger.is_in_tail("a", now=5.0)


def test_ses_6_what_the_session_refuses_is_refused_for_two_seconds() -> None:
    ledger = Ledger()
    ledger.note_read(read(0.0, refusal=RejectedError("state_full", "It is full.")))
    refusal = ledger.refusal("a", 1, now=FRESH_SECONDS)
    assert refusal is not None
    assert refusal.reason == "state_full"
    assert ledger.refusal("a", 1, now=FRESH_SECONDS + 0.1) is None


def test_ses_6_accepted_ids_are_remembered_until_they_are_rejected_or_the_session_is_deleted() -> None:
    ledgers = Ledgers()
    for name in "ab":
        ledgers.note_accepted("s", name)
    ledgers.note_rejected("s", "a")
    assert [ledgers.has_accepted("s", name) for name in "ab"] == [False, True]
    ledgers.forget("s")
    assert not ledgers.has_accepted("s", "b")
