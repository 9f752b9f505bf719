"""Prompts on their way in: SES-5, SES-6, SES-7."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.builders import NOW, answer_turn, complete_turn, fail_turn, send, session
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.archive_moves import next_move
from turnkeeper.models.session.messages import (
    Configure,
    SessionInput,
    configured,
    make_title,
)
from turnkeeper.models.session.prompt_queue import PromptQueue, QueueState
from turnkeeper.models.session.prompts import REMEMBERED_IDS, read_prompt
from turnkeeper.models.session.start import check_outside_start, read_start
from turnkeeper.models.session.views import queue_of, state_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(alphabet=st.characters(codec=None)) | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet=st.characters(codec=None)), inner, max_size=4)
    ),
    max_leaves=8,
)


def fates(target) -> list[tuple[str, str]]:
    return [(fate.id, fate.fate) for fate in target.queue.fate_book.recent]


@given(text=st.text(min_size=1, max_size=40), max_chars=st.integers(1, 20))
def test_ses_5_a_text_over_the_sessions_own_limit_is_rejected_with_the_reason(text: str, max_chars: int) -> None:
    target, raw = session(), {"id": "new", "text": text}
    accepted = target.receive(raw, extra_arguments=0, new_id="?", now=NOW, max_chars=max_chars)
    is_valid = text.strip() and "\0" not in text
    assert (accepted is not None) == bool(is_valid and len(text) <= max_chars)
    if is_valid and accepted is None:
        assert target.queue.fate_book.recent[-1].refusal == "too_long"


@given(raw=JSON, extra=st.integers(0, 2))
def test_ses_5_any_signal_has_a_fate_that_can_be_stored(raw: object, extra: int) -> None:
    target = session()
    accepted = target.receive(raw, extra_arguments=extra, new_id="new", now=NOW)
    view = queue_of(target)
    assert len(view.waiting) + len(view.fates) == 1
    assert (accepted is not None) == (len(view.waiting) == 1)
    view.model_dump_json().encode()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("", "blank"),
        (" \n\t", "blank"),
        ({"text": ""}, "blank"),
        ("x" * 100_001, "too_long"),
        ("\u4e2d" * 50_000, "too_long"),
        ("a\0b", "invalid"),
        ("a\ud800b", "invalid"),
        ({"text": "hi", "id": "a/b"}, "invalid"),
        ({"text": "hi", "id": "x" * 129}, "invalid"),
        ({"text": "hi", "mode": "later"}, "invalid"),
        ({"text": "hi", "sent_at": "yesterday"}, "invalid"),
        ({"text": "hi", "sent_at": "9999-12-31T23:59:59-14:00"}, "invalid"),
        ({"text": "hi", "attachments": [{"kind": "code"}]}, "invalid"),
        ({"text": "hi", "colour": "red"}, "invalid"),
        (None, "invalid"),
        (17, "invalid"),
        (["hi"], "invalid"),
        (b"hi", "invalid"),
    ],
)
def test_ses_5_an_invalid_prompt_is_rejected_with_a_reason(raw: object, reason: str) -> None:
    with pytest.raises(RejectedError) as refusal:
        read_prompt(raw, extra_arguments=0, new_id="n", now=NOW)
    assert refusal.value.reason == reason
    refusal.value.message.encode()


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"text": ["a"]}, "text"),
        ({"text": "a", "é\n": 1}, "\\xe9\\n"),
        ({"text": "a", "x" * 5_000: 1}, "x" * 64),
        ({"text": "a", "": 1}, "value"),
    ],
)
def test_ses_5_a_wrong_field_is_named_whatever_its_name_is(raw: object, field: str) -> None:
    with pytest.raises(RejectedError) as refusal:
        read_prompt(raw, extra_arguments=0, new_id="n", now=NOW)
    assert refusal.value.field == field
    assert refusal.value.message.startswith(f"{field}: ")
    assert refusal.value.message.isascii()


def test_ses_5_two_arguments_are_rejected_with_their_number() -> None:
    target = session()
    target.receive("a", extra_arguments=1, new_id="n", now=NOW)
    assert [fate.reason for fate in target.queue.fate_book.recent] == ["A prompt is one JSON value; this signal has 2."]


def test_ses_6_prompts_start_first_in_first_out() -> None:
    target = session()
    for number in range(5):
        send(target, "hi", id=f"m{number}")
    for _ in range(5):
        answer_turn(target)
    assert fates(target) == [(f"m{number}", "started") for number in range(5)]


def test_ses_6_the_same_id_twice_is_one_turn_even_after_a_new_run() -> None:
    target = session()
    send(target, "hi", id="m1")
    answer_turn(target)
    target = type(target)("s1", target.carry(), now=NOW)
    send(target, "hi again", id="m1")
    assert len(target.queue) == 0
    assert fates(target) == [("m1", "started")]


def test_ses_6_at_least_the_last_thousand_ids_are_remembered() -> None:
    target = session()
    for number in range(REMEMBERED_IDS):
        send(target, "hi", id=f"m{number}")
        answer_turn(target)
    send(target, "hi", id="m0")
    assert len(target.queue) == 0


def test_ses_6_a_rejected_id_may_be_sent_again() -> None:
    target = session()
    send(target, " ", id="m1")
    send(target, "hi", id="m1")
    assert fates(target) == [("m1", "rejected")]
    assert [prompt.id for prompt in queue_of(target).waiting] == ["m1"]


SMALLEST = {"max_prompt_chars": 1, "max_queued_prompts": 1, "max_queued_bytes": 1_024, "max_state_bytes": 32_000}
IDS = [f"{number:0128}" for number in range(100)]
REFERENCE = {"type": "image", "hash": "0" * 64, "bytes": 9, "media_type": "image/png", "name": "n" * 100}

ACCEPTED: dict[str, tuple[dict[str, int], list[dict[str, Any]]]] = {
    "a lower max_state_bytes": ({"max_state_bytes": 32_000}, [{"text": "\u4e2d" * 40_000}]),
    "more prompts than max_queued_prompts": ({"max_queued_prompts": 2}, [{"text": "hi"}] * 100),
    "more bytes than max_queued_bytes": ({"max_queued_bytes": 1_024}, [{"text": "x" * 60_000}] * 20),
    "long ids in a small session": ({"max_state_bytes": 32_000}, [{"text": "hi", "id": one} for one in IDS]),
    "a text that is long as JSON": ({}, [{"text": "\x01" * 100_000}]),
    "attachments in a small session": ({"max_state_bytes": 32_000}, [{"text": "hi", "attachments": [REFERENCE] * 10}]),
}


@pytest.mark.parametrize(("limits", "prompts"), ACCEPTED.values(), ids=ACCEPTED)
@pytest.mark.parametrize("change", ["at the start", "by configure"])
def test_ses_6_no_setting_of_a_session_rejects_a_prompt(
    limits: dict[str, int], prompts: list[dict[str, Any]], change: str
) -> None:
    target = session(limits=limits if change == "at the start" else {})
    if change == "by configure":
        target.configure(Configure.model_validate({"limits": limits}))
    for number, prompt in enumerate(prompts):
        target.receive({"id": f"m{number}", **prompt}, extra_arguments=0, new_id="?", now=NOW)
    assert (len(target.queue), fates(target)) == (len(prompts), [])
    for _ in prompts:
        target.shrink_view_if_full()
        answer_turn(target)
    assert {fate for _, fate in fates(target)} == {"started"}


def test_ses_6_lowering_a_limit_rejects_no_waiting_prompt() -> None:
    target = session()
    for number, prompt in enumerate([{"text": "x" * 50_000}] * 10):
        send(target, prompt["text"], id=f"m{number}")
    target.configure(Configure.model_validate({"limits": SMALLEST}))
    assert [fate for _, fate in fates(target)] == []
    while len(target.queue):
        answer_turn(target)
    assert fates(target) == [(f"m{number}", "started") for number in range(10)]


@pytest.mark.parametrize("discards", [False, True])
def test_ses_6_a_prompt_after_the_end_is_discarded_even_if_earlier_ones_are_run(discards: bool) -> None:
    target = session()
    send(target, "before", id="m1")
    target.end("enough", discard_queue=discards, now=NOW)
    send(target, "after", id="m2")
    fate = target.queue.fate_book.find("m2")
    assert fate
    assert (fate.fate, fate.refusal, "is ending" in (fate.reason or "")) == ("discarded", "ending", True)
    assert [prompt.id for prompt in target.queue.waiting] == ([] if discards else ["m1"])
    target.close("ended", reason="enough", now=NOW)
    send(target, "late", id="m3")
    assert fates(target)[-1] == ("m3", "discarded")


def test_ses_7_an_interrupt_goes_before_the_queue_and_a_steer_joins_the_turn() -> None:
    target = session()
    send(target, "one", id="m1")
    turn = target.begin_turn(now=NOW)
    send(target, "queued", id="m2")
    send(target, "steer", id="m3", mode="steer")
    send(target, "now", id="m4", mode="interrupt")
    assert [prompt.id for prompt in queue_of(target).waiting] == ["m4", "m3", "m2"]
    target.steer_turn(now=NOW)
    assert [step.kind for step in target.transcript.get(turn.id).steps] == ["user"]
    assert queue_of(target, "m3").fates[0].turn_id == "m1"


def test_ses_7_a_steer_that_no_model_call_used_is_queued_first_behind_an_interrupt() -> None:
    target = session()
    send(target, "one", id="m1")
    target.begin_turn(now=NOW)
    send(target, "queued", id="m2")
    send(target, "steer", id="m3", mode="steer")
    send(target, "now", id="m4", mode="interrupt")
    fail_turn(target, "cancelled", "Interrupted", now=NOW)
    assert [prompt.id for prompt in target.queue.waiting] == ["m4", "m3", "m2"]


@pytest.mark.parametrize("mode", ["interrupt", "steer"])
def test_ses_7_without_a_running_turn_every_mode_is_enqueue(mode: str) -> None:
    target = session()
    send(target, "first", id="m1")
    send(target, "second", id="m2", mode=mode)
    assert [prompt.id for prompt in target.queue.waiting] == ["m1", "m2"]


def test_ses_8_only_a_waiting_prompt_can_be_withdrawn() -> None:
    target = session()
    send(target, "one", id="m1")
    send(target, "two", id="m2")
    target.begin_turn(now=NOW)
    target.queue.withdraw("m2", at=NOW)
    assert fates(target)[-1] == ("m2", "withdrawn")
    for message_id, reason in (("m1", "not_waiting"), ("m2", "not_waiting"), ("m9", "unknown_prompt")):
        with pytest.raises(RejectedError) as refusal:
            target.queue.withdraw(message_id, at=NOW)
        assert refusal.value.reason == reason


@given(st.lists(st.sampled_from(["send", "start", "steer", "end turn", "withdraw", "discard"]), max_size=40))
def test_ses_6_every_accepted_prompt_has_at_most_one_fate_and_waits_until_it_has(actions: list[str]) -> None:
    target = session(limits={"max_queued_prompts": 4})
    for number, action in enumerate(actions):
        if action == "send":
            send(target, "hi", id=f"m{number}")
        elif action == "steer":
            send(target, "hi", id=f"m{number}", mode="steer")
        elif action == "start" and target.queue.waiting and not target.turn:
            target.begin_turn(now=NOW)
        elif action == "end turn" and target.turn:
            fail_turn(target, "timeout", "late", now=NOW)
        elif action == "withdraw" and len(target.queue):
            target.queue.withdraw(queue_of(target).waiting[0].id, at=NOW)
        elif action == "discard":
            target.queue.discard_all("ended", at=NOW)
    accepted = set(target.queue.fate_book.ids) | {item.id for item in target.queue}
    decided = [fate.id for fate in target.queue.fate_book.recent if fate.fate != "rejected"]
    waiting = [prompt.id for prompt in queue_of(target).waiting]
    assert len(decided) == len(set(decided))
    assert set(decided) | set(waiting) == accepted
    assert not set(decided) & set(waiting)


def test_ses_15_a_full_session_accepts_prompts_while_the_archive_is_down() -> None:
    target = session(limits={"max_state_bytes": 32_000, "max_queued_bytes": 8_000})
    target.archive.record_failure("it is gone", now=NOW)
    for number in range(20):
        send(target, "x" * 3_000, id=f"m{number}")
        target.shrink_view_if_full()
        answer_turn(target)
    assert target.room.is_full
    assert target.room.is_carriable
    assert {fate for _, fate in fates(target)} == {"started"}


def test_ses_15_prompts_that_temporal_cannot_carry_are_rejected_with_the_reason() -> None:
    target = session()
    target.archive.record_failure("it is gone", now=NOW)
    for number in range(40):
        send(target, "x" * 90_000, id=f"m{number}")
    assert not target.room.is_carriable_by_temporal
    assert target.room.is_carriable_at_last
    target.reject_uncarriable(now=NOW)
    assert len(target.carry().model_dump_json()) < 2_000_000
    waiting = [prompt.id for prompt in target.queue.waiting]
    assert len(waiting) > 15
    assert waiting == [f"m{number}" for number in range(len(waiting))]
    rejected = [fate for fate in target.queue.fate_book.recent if fate.fate == "rejected"]
    assert [fate.id for fate in rejected] == [f"m{number}" for number in reversed(range(len(waiting), 40))]
    assert {fate.refusal for fate in rejected} == {"state_full"}
    assert "it is gone" in (rejected[0].reason or "")
    send(target, "again", id="m39")
    assert target.queue.waiting[-1].id == "m39"


def test_ses_15_rejected_short_prompts_leave_the_space_to_waiting_ones() -> None:
    target = session()
    target.archive.record_failure("it is gone", now=NOW)
    for number in range(8_000):
        send(target, "hello", id=f"m{number}")
    target.reject_uncarriable(now=NOW)
    waiting = [prompt.id for prompt in target.queue.waiting]
    assert waiting == [f"m{number}" for number in range(len(waiting))]
    assert len(waiting) > 4_000
    assert len(target.carry().model_dump_json()) < 2_000_000


def test_ses_15_a_full_session_continues_once_the_archive_has_its_turns() -> None:
    target = session(limits={"max_state_bytes": 32_000, "max_queued_bytes": 8_000})
    for number in range(5):
        send(target, "x" * 3_000, id=f"m{number}")
        answer_turn(target)
    assert target.room.is_full
    move = next_move(target)
    assert [turn.id for turn in move.turns] == ["m0", "m1", "m2", "m3"]
    target.remove_moved(move, now=NOW)
    assert (target.room.is_full, target.transcript.archived, [turn.id for turn in state_of(target).messages]) == (
        False,
        4,
        ["m4"],
    )


def test_ses_4_the_title_defaults_to_the_first_words() -> None:
    target = session()
    send(target, "please read the file notes.txt and tell me everything that is in it, in detail", id="m1")
    target.begin_turn(now=NOW)
    assert target.config.title == "please read the file notes.txt and tell me everything that…"
    assert make_title("\x00\x01") == "Untitled"


def test_ses_6_an_empty_queue_has_nothing_to_start() -> None:
    with pytest.raises(IndexError):
        PromptQueue(QueueState(), limits=Limits()).start_next(at=NOW)


def test_ses_4_the_input_is_stored_with_its_defaults_so_that_upgrades_change_nothing() -> None:
    dumped = session().carry().model_dump(mode="json")
    assert dumped["limits"]["max_steps"] == Limits().max_steps
    assert dumped["history"]["max_messages"] == 100
    assert dumped["model"] == "offline:"
    assert dumped["system_prompt"]


def test_ses_6_an_invalid_resend_gives_the_accepted_prompt_no_second_fate() -> None:
    target = session()
    send(target, "hi", id="m1")
    target.receive({"text": "", "id": "m1"}, extra_arguments=0, new_id="another", now=NOW)
    answer_turn(target)
    assert [fate.fate for fate in target.queue.fate_book.recent if fate.id == "m1"] == ["started"]
    assert [fate.fate for fate in target.queue.fate_book.recent] == ["rejected", "started"]


def test_ses_16_steered_prompts_are_bounded_per_turn_and_the_rest_waits() -> None:
    target = session()
    send(target, "one", id="m1")
    target.begin_turn(now=NOW)
    for number in range(3):
        send(target, "x" * 87_000, id=f"s{number}", mode="steer")
    target.steer_turn(now=NOW)
    assert fates(target)[1:] == [("s0", "steered"), ("s1", "steered")]
    complete_turn(target, "done", now=NOW)
    assert [prompt.id for prompt in target.queue.waiting] == ["s2"]


def test_ses_12_everything_a_query_shows_raises_the_revision() -> None:
    target = session()
    send(target, "one", id="m1")
    target.begin_turn(now=NOW)
    before = state_of(target)
    target.turn_slot.note_request()
    assert state_of(target) != before
    assert target.revision > before.revision


def test_ses_15_a_full_session_archives_turns_even_if_they_are_small() -> None:
    target = session(limits={"max_state_bytes": 32_000}, system_prompt="x" * 9_000)
    while not target.room.is_full:
        send(target, "x" * 500)
        answer_turn(target)
    assert target.transcript.carried_bytes < target.config.limits.archive_above_bytes
    target.remove_moved(next_move(target), now=NOW)
    assert not target.room.is_full


def test_ses_15_a_small_session_with_a_healthy_archive_is_never_full_for_long() -> None:
    target = session(limits={"max_state_bytes": 40_000})
    for number in range(400):
        send(target, "hi", id=f"{number:036}")
        answer_turn(target)
        while move := next_move(target):
            target.remove_moved(move, now=NOW)
        assert not target.room.is_full


def test_ses_15_the_models_context_shrinks_before_a_session_rejects_prompts() -> None:
    target = session(limits={"max_state_bytes": 40_000}, history={"max_messages": 0})
    for number in range(300):
        send(target, "x" * 300, id=f"m{number}")
        assert next_move(target) is None or target.remove_moved(next_move(target), now=NOW) is None
        target.shrink_view_if_full()
        assert not target.room.is_full
        answer_turn(target)
    assert fates(target)[-1] == ("m299", "started")


def test_ses_4_a_state_limit_that_is_too_small_is_rejected_in_the_input() -> None:
    with pytest.raises(RejectedError, match=r"limits\.max_state_bytes: 32,000"):
        check_outside_start(read_start({"limits": {"max_state_bytes": 10_000}}, extra_arguments=0))
    with pytest.raises(RejectedError, match=r"limits\.max_state_bytes: 32,000"):
        configured(SessionInput(), Configure(limits={"max_state_bytes": 10_000}))
