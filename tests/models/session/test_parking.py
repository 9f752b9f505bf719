"""Prompts beyond the carried state are parked and return in order; no fate is lost: SES-6."""

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.models.builders import NOW, complete_turn, send, session
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.archive import ArchiveMove
from turnkeeper.models.session.archive_moves import final_moves, next_prompt_move, prompt_move_is_due
from turnkeeper.models.session.messages import Configure, SessionInput
from turnkeeper.models.session.prompts import REMEMBERED_FATES, REMEMBERED_IDS, Fate, Prompt
from turnkeeper.models.session.session import Session
from turnkeeper.models.session.views import queue_of, state_of


class FakeArchive:
    """The tables of prompts, in memory."""

    def __init__(self) -> None:
        self.prompts: dict[int, Prompt] = {}
        self.fates: dict[str, Fate] = {}

    def store(self, move: ArchiveMove) -> None:
        self.prompts.update(enumerate(move.prompts, start=move.first))
        self.fates.update((fate.id, fate) for fate in move.fates)
        self.forget(move.forget_below)

    def forget(self, below: int) -> None:
        self.prompts = {number: prompt for number, prompt in self.prompts.items() if number >= below}

    def parked(self, first: int, count: int) -> list[Prompt]:
        return [self.prompts[number] for number in sorted(self.prompts) if number >= first][:count]


class Story:
    """A session and its archive, driven as the workflow drives them; every prompt has an id of its own."""

    def __init__(self, **limits: int) -> None:
        self.session = session(limits=limits)
        self.archive = FakeArchive()
        self.prompts_sent = 0
        self.started: list[str] = []
        self.has_grown = False
        """The history is due for a new run: what can't be handed over is parked, and nothing is fetched."""
        self.is_down = False
        """The archive gets no new requests."""
        self.move: ArchiveMove | None = None
        """The prompts that the archive is storing while other things happen."""
        self.fetch: tuple[int, int, list[Prompt]] | None = None
        """The number below which the archive deletes, the number it reads from, and the prompts it is returning."""

    @property
    def limits(self) -> Limits:
        return self.session.config.limits

    def send(self, count: int = 1, *, mode: str = "enqueue", text: str = "hi") -> None:
        for _ in range(count):
            send(self.session, text, id=f"m{self.prompts_sent}", mode=mode)
            self.prompts_sent += 1

    def begin(self) -> bool:
        """Start the next archive request unless one is pending; return whether there was one to start."""
        queue = self.session.queue
        if self.move or self.fetch:
            return False
        if not self.has_grown and queue.is_unparking_due(self.limits):
            count = max(1, self.limits.max_queued_prompts // 2)
            self.archive.forget(queue.forgettable)
            first = queue.parked[0].number
            self.fetch = queue.forgettable, first, self.archive.parked(first, count)
        elif prompt_move_is_due(self.session, parks=self.has_grown):
            self.move = next_prompt_move(self.session, parks=self.has_grown)
            self.archive.store(self.move)
        return bool(self.move or self.fetch)

    def end(self, *, dies: bool = False) -> None:
        """Finish the pending request; with `dies`, the archive has done it but the session gets no result."""
        move, fetch = self.move, self.fetch
        self.move = self.fetch = None
        if move and not dies:
            self.session.queue.remove_moved(move)
            self.session.archive.record_success(now=NOW)
        if fetch and not dies:
            forget_below, first, prompts = fetch
            self.session.queue.forget_below(forget_below)
            is_next = self.session.queue.restore_parked(prompts)
            assert is_next or self.session.queue.parked[0].number != first, "withdrawn while it was fetched"
            self.session.archive.record_success(now=NOW)

    def park(self) -> None:
        self.has_grown = True
        self.end()
        while self.begin():
            self.end()

    def unpark(self) -> None:
        self.has_grown = False
        self.end()
        while self.session.queue.is_unparking_due(self.limits):
            self.begin()
            self.end()

    def hand_over(self) -> None:
        self.park()
        carried = self.session.carry()
        assert len(carried.carried.queue.waiting) <= max(1, self.limits.max_queued_prompts)
        self.session = Session("s1", type(carried).model_validate_json(carried.model_dump_json()), now=NOW)
        self.has_grown = False

    def hand_over_all(self) -> None:
        """Continue in the next run with whatever is not parked: the run can wait no longer (SES-15)."""
        self.end()
        self.session.reject_uncarriable(now=NOW)
        self.session = Session("s1", SessionInput.model_validate_json(self.session.carry().model_dump_json()), now=NOW)
        self.has_grown = False

    def run_turn(self) -> None:
        self.unpark()
        if self.session.queue.waiting:
            self.started.append(self.session.begin_turn(now=NOW).id)
            complete_turn(self.session, "ok", now=NOW)

    def run_all(self) -> None:
        while len(self.session.queue):
            self.run_turn()

    def fate(self, message_id: str) -> str | None:
        fate = self.session.queue.fate_book.find(message_id) or self.archive.fates.get(message_id)
        return fate.fate if fate else None


def reject_all(story: Story) -> None:
    while len(story.session.queue):
        story.session.queue.reject_last(RejectedError("state_full", "no room"), at=NOW)


def test_ses_6_prompts_beyond_the_carried_state_are_parked_and_start_in_order() -> None:
    story = Story(max_queued_prompts=10)
    story.send(100)
    assert not story.session.room.is_carriable
    story.hand_over()
    queue = story.session.queue
    assert (len(queue), len(queue.waiting), len(queue.parked)) == (100, 5, 95)
    assert state_of(story.session).queue_length == 100
    story.send(20)
    story.run_all()
    assert story.started == [f"m{number}" for number in range(120)]
    story.park()
    assert (story.archive.prompts, queue.forgotten) == ({}, queue.next_number)


def test_ses_6_prompts_sent_after_parked_ones_start_after_them() -> None:
    story = Story(max_queued_prompts=10)
    story.send(30)
    story.hand_over()
    for _ in range(6):
        story.send(10)
        story.hand_over()
        for _ in range(7):
            story.run_turn()
    story.run_all()
    assert story.started == [f"m{number}" for number in range(90)]


def test_ses_7_interrupts_and_steers_beyond_the_limit_go_before_parked_prompts() -> None:
    story = Story(max_queued_prompts=4)
    story.send(12)
    story.hand_over()
    story.session.begin_turn(now=NOW)
    story.send(6, mode="steer")
    story.send(4, mode="interrupt")
    order = [prompt.id for prompt in queue_of(story.session).waiting]
    assert order == ["m21", "m20", "m19", "m18", "m12", "m13", "m14", "m15", "m16", "m17", "m1"]
    story.hand_over()
    complete_turn(story.session, "ok", now=NOW)
    story.run_all()
    joined, interrupts, steers = ["m12", "m13"], ["m21", "m20", "m19", "m18"], ["m14", "m15", "m16", "m17"]
    behind = [f"m{number}" for number in range(1, 12)]
    assert story.started in ([*interrupts, *joined, *steers, *behind], [*joined, *interrupts, *steers, *behind])


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_ses_7_a_prompt_placed_between_parked_ones_is_not_lost(limit: int) -> None:
    story = Story(max_queued_prompts=limit)
    put_between(story)
    waiting = ["m7", "m6", "m5", "m1", "m2", "m3", "m4"]
    assert queue_of(story.session, *waiting).positions == {one: at for at, one in enumerate(waiting, start=1)}
    story.hand_over()
    story.run_all()
    assert story.started == ["m0", *waiting]


def put_between(story: Story) -> None:
    """Place m5, which waits to join a turn, between an interrupt and its successors while these are parked."""
    story.send()
    story.started.append(story.session.begin_turn(now=NOW).id)
    story.send(4)
    story.send(mode="steer")
    story.send(2, mode="interrupt")
    story.has_grown = True
    story.begin()
    complete_turn(story.session, "ok", now=NOW)
    story.end()


def test_ses_6_a_new_prompt_with_the_id_of_a_rejected_parked_one_keeps_its_text() -> None:
    story = Story(max_queued_prompts=2)
    story.send(6)
    story.has_grown = True
    story.begin()
    reject_all(story)
    send(story.session, "first", id="new")
    send(story.session, "second", id="m4")
    story.end()
    story.hand_over()
    story.run_all()
    assert [turn.user_message for turn in state_of(story.session).messages] == ["first", "second"]


def test_ses_8_a_parked_prompt_can_be_withdrawn_and_keeps_its_fate() -> None:
    story = Story(max_queued_prompts=4)
    story.send(12)
    story.hand_over()
    story.session.queue.withdraw("m7", at=NOW)
    story.session.queue.withdraw("m11", at=NOW)
    send(story.session, "again", id="m7")
    story.hand_over()
    story.run_all()
    assert story.started == [f"m{number}" for number in range(11) if number != 7]
    assert (story.fate("m7"), story.fate("m11")) == ("withdrawn", "withdrawn")


def test_ses_6_when_all_parked_prompts_are_withdrawn_the_later_ones_are_next() -> None:
    story = Story(max_queued_prompts=4)
    story.send(6)
    story.hand_over()
    parked = [item.id for item in story.session.queue.parked]
    story.send(1)
    for message_id in parked:
        story.session.queue.withdraw(message_id, at=NOW)
    story.run_all()
    assert story.started == ["m0", "m1", "m6"]


def test_ses_8_ending_with_discard_archives_a_fate_for_every_parked_prompt() -> None:
    story = Story(max_queued_prompts=20)
    story.send(200)
    story.hand_over()
    story.session.end("enough", discard_queue=True, now=NOW)
    story.session.close("ended", reason="enough", now=NOW)
    for move in final_moves(story.session):
        story.archive.store(move)
    assert {story.archive.fates[f"m{number}"].fate for number in range(200)} == {"discarded"}
    assert (len(story.session.queue), story.archive.prompts) == (0, {})


def test_ses_6_the_id_of_a_waiting_prompt_is_never_forgotten() -> None:
    story = Story(max_queued_prompts=150)
    story.send(1_500)
    story.hand_over()
    assert len(story.session.queue.fate_book.ids) <= REMEMBERED_IDS
    for number in range(1_500):
        send(story.session, "again", id=f"m{number}")
    assert len(story.session.queue) == 1_500
    assert not story.session.queue.fate_book.recent
    story.run_all()
    assert len(story.started) == 1_500


def test_ses_6_the_queue_reports_its_length_its_bytes_and_its_limits() -> None:
    story = Story(max_queued_prompts=4)
    story.send(10)
    story.hand_over()
    story.send(1)
    view = queue_of(story.session)
    assert (view.length, view.bytes, view.parked) == (11, 44, 8)
    assert (view.max_prompts, view.max_bytes) == (4, 256 * 1024)
    assert [prompt.id for prompt in view.waiting] == ["m0", "m1"]
    queue_view = queue_of(story.session, "m10", "m5", "m1", "m99")
    assert queue_view.positions == {"m1": 2, "m5": 6, "m10": 11}
    assert [(prompt.id, prompt.position) for prompt in queue_view.waiting] == [("m1", 2), ("m10", 11)]


def test_ses_11_a_queue_of_many_large_prompts_is_shown_within_a_page() -> None:
    story = Story()
    story.send(20, text="x" * 100_000)
    view = queue_of(story.session)
    assert len(view.model_dump_json()) <= story.limits.page_bytes
    assert (view.length, len(view.waiting)) == (20, 9)
    ids = [f"m{number}" for number in range(20)]
    assert list(queue_of(story.session, *ids).positions) == ids


def test_ses_6_fates_without_a_turn_move_to_the_archive_and_stay_available() -> None:
    story = Story(max_queued_prompts=10)
    story.send(100)
    story.send(900, text=" ")
    assert [story.fate(f"m{number}") for number in (99, 100, 999)] == [None, "rejected", "rejected"]
    story.park()
    assert len(story.archive.fates) == 1_000 - 100 - REMEMBERED_FATES
    assert len(story.session.queue.fate_book._by_id) == REMEMBERED_FATES
    assert {story.fate(f"m{number}") for number in range(100, 1_000)} == {"rejected"}


def test_ses_6_while_the_archive_is_down_rejections_are_dropped_before_other_fates() -> None:
    story = Story(max_queued_prompts=10, max_state_bytes=100_000)
    story.send(30)
    for number in range(30):
        story.session.queue.withdraw(f"m{number}", at=NOW)
    for number in range(500):
        send(story.session, " ", id=f"r{number}")
    story.session.archive.record_failure("it is gone", now=NOW)
    assert story.session.room.is_carriable
    story.session = Session("s1", story.session.carry(), now=NOW)
    assert {story.fate(f"m{number}") for number in range(30)} == {"withdrawn"}
    assert story.fate("r0") is None
    assert story.fate("r499") == "rejected"
    assert story.session.queue.fate_book.leaving_bytes <= story.limits.leaving_bytes


def test_ses_7_a_steering_prompt_goes_behind_parked_interrupting_ones() -> None:
    story = Story(max_queued_prompts=4)
    story.send(1)
    story.session.begin_turn(now=NOW)
    for number in range(5):
        prompt = {"id": f"i{number}", "text": "now", "mode": "interrupt"}
        story.session.receive(prompt, extra_arguments=0, new_id="x", now=NOW)
    story.park()
    assert len(story.session.queue.parked) == 3
    story.session.queue.withdraw("i4", at=NOW)
    story.unpark()
    story.session.receive({"id": "s", "text": "mind", "mode": "steer"}, extra_arguments=0, new_id="x", now=NOW)
    assert [prompt.id for prompt in story.session.queue] == ["i3", "i2", "i1", "s", "i0"]


def test_ses_15_while_the_archive_is_down_a_run_carries_more_than_the_limits() -> None:
    story = Story(max_queued_prompts=4)
    story.send(10)
    story.session.archive.record_failure("it is gone", now=NOW)
    assert not story.session.room.is_carriable
    assert story.session.room.is_carriable_by_temporal
    story.session.reject_uncarriable(now=NOW)
    story.session = Session("s1", story.session.carry(), now=NOW)
    story.run_all()
    assert story.started == [f"m{number}" for number in range(10)]


def test_ses_15_the_newest_prompts_are_rejected_first_whether_parked_or_not() -> None:
    story = Story(max_queued_prompts=4)
    story.send(12)
    story.hand_over()
    story.send(2)
    queue, order = story.session.queue, [item.id for item in story.session.queue]
    reject_all(story)
    assert [fate.id for fate in queue.fate_book.recent][-len(order) :] == order[::-1]
    assert (len(queue), queue.text_bytes, queue._id_bytes, queue._parked_bytes) == (0, 0, 0, 0)


def test_ses_14_the_carried_state_stays_under_a_megabyte_whatever_waits() -> None:
    story = Story()
    for number in range(1_200):
        send(story.session, "x" * 2_000, id=f"{number:0128}")
    story.session.begin_turn(now=NOW)
    story.hand_over()
    assert len(story.session.queue) == 1_199
    assert len(story.session.carry().model_dump_json()) < 600_000
    assert not story.session.room.is_full


COMING = ["send", "burst", "steer", "interrupt", "again"]
GOING = ["start", "take", "end turn", "withdraw first", "withdraw last"]
MOVING = ["grow", "end", "die", "go down", "come back", "hand over", "hand over all", "allow less", "allow more"]
BUSY = ["start", "steer", "interrupt", "burst"]
"""Drawn more often: they make a turn end while the archive takes prompts that come before and behind steering ones."""
ACTIONS = st.sampled_from([*COMING, *GOING, *MOVING]) | st.sampled_from([*BUSY, "grow", "end turn", "end"])


@settings(max_examples=300)
@example(["send", "send", "send", "hand over", "start", "withdraw first"], 1, False)
@given(st.lists(ACTIONS, max_size=60), st.integers(1, 6), st.booleans())
def test_ses_6_every_prompt_has_one_fate_in_order_despite_parking_and_crashes(
    actions: list[str], limit: int, discards: bool
) -> None:
    story = Story(max_queued_prompts=limit)
    plain: list[str] = []  # accepted as they came, neither steer nor interrupt
    turn_ids: list[str] = []

    def start() -> None:
        if story.session.queue.waiting and not story.session.turn:
            turn_ids.append(story.session.begin_turn(now=NOW).id)

    def send_plain(mode: str = "enqueue") -> None:
        before = len(story.session.queue)
        story.send(mode=mode)
        if mode == "enqueue" and len(story.session.queue) > before:
            plain.append(f"m{story.prompts_sent - 1}")

    def waiting() -> list[str]:
        return [item.id for item in story.session.queue]

    for action in actions:
        target, before = story.session, waiting()
        if action in ("send", "burst"):
            for _ in range(1 if action == "send" else 7):
                send_plain()
        elif action in ("steer", "interrupt"):
            send_plain(action)
        elif action == "start":
            start()
        elif action == "take" and target.turn:
            target.steer_turn(now=NOW)
        elif action == "end turn" and target.turn:
            complete_turn(target, "ok", now=NOW)
        elif action.startswith("withdraw") and waiting():
            target.queue.withdraw(waiting()[0 if action.endswith("first") else -1], at=NOW)
        elif action == "grow":
            story.has_grown = True
        elif action in ("end", "die"):
            story.end(dies=action == "die")
        elif action in ("go down", "come back"):
            story.is_down = action == "go down"
        elif action == "hand over":
            story.hand_over()
        elif action == "hand over all":
            story.hand_over_all()
        elif action.startswith("allow"):
            change = {"max_queued_prompts": 1 if action.endswith("less") else 6, "max_prompt_chars": 1}
            target.configure(Configure.model_validate({"limits": change}))
        elif action == "again" and waiting():
            send(target, "again", id=waiting()[-1])
        if not story.is_down:
            story.begin()
        stayed = [one for one in before if one in waiting()]
        coming = [f"m{number}" for number in range(story.prompts_sent) if f"m{number}" not in before]
        added = [one for one in coming if one in waiting()]
        place = len(stayed) if action in ("send", "burst") else waiting().index(added[0]) if added else 0
        assert waiting() == [*stayed[:place], *added, *stayed[place:]], "no prompt changes its place"
        queue = story.session.queue
        assert len(set(waiting())) == len(waiting()) == len(queue)
        assert set(waiting()) == set(queue._by_id)
        assert queue.text_bytes == len(queue) * 4
        assert queue._parked_bytes == len(queue.parked) * 4

    if story.session.turn:
        complete_turn(story.session, "ok", now=NOW)
    if discards:
        story.session.end("enough", discard_queue=True, now=NOW)
    while len(story.session.queue):
        story.unpark()
        start()
        complete_turn(story.session, "ok", now=NOW)
    all_fates = [
        *story.archive.fates.values(),
        *story.session.queue.fate_book.leaving,
        *story.session.queue.fate_book.recent,
    ]
    fates = Counter(fate.id for fate in {(fate.id, fate.fate, fate.turn_id): fate for fate in all_fates}.values())
    assert set(fates.values()) <= {1}
    assert set(fates) == {f"m{number}" for number in range(story.prompts_sent)}
    assert [one for one in turn_ids if one in plain] == [one for one in plain if one in turn_ids]
    assert len(turn_ids) == len(set(turn_ids))
