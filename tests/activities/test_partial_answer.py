"""How an answer is collected while it is written, and when it is shown: AGT-5."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.activities.answer_publisher import MAX_PARTS, AnswerPublisher, GrowingAnswer
from turnkeeper.activities.providers.answer_fields import join_pieces
from turnkeeper.activities.providers.protocol import Delta
from turnkeeper.models.transcript.partial_output import MAX_PARTIAL_BYTES, PartialKind, PartialOutput, PartialTag
from turnkeeper.stores.partials.carrier import LiveSnapshot, PartialCarrier
from turnkeeper.stores.partials.factory import HeartbeatCarrier

TAG = PartialTag(message_id="a", turn=1, step=1, request=1, attempt=1)

TEXTS = st.text(st.sampled_from('aé"\\\n\x00\x1f\U0001f600\ud83d\ude00'), max_size=12)
PIECES = st.lists(st.tuples(st.sampled_from(["think", "respond", "call"]), TEXTS, st.booleans()), max_size=40)


def whole_parts(pieces: list[tuple[PartialKind, str]]) -> list[tuple[PartialKind, str]]:
    """Return the parts that the pieces make, put together at once."""
    parts: list[tuple[PartialKind, list[str]]] = []
    for kind, text in filter(itemgetter(1), pieces):
        if not parts or kind == "call" or parts[-1][0] != kind:
            parts.append((kind, []))
        parts[-1][1].append(text)
    return [(kind, join_pieces(texts)) for kind, texts in parts]


@given(PIECES, st.integers(4_000, 9_000))
def test_agt_5_a_snapshot_is_the_end_of_the_answer_within_a_limit(
    pieces: list[tuple[PartialKind, str, bool]], max_bytes: int
) -> None:
    answer, given_so_far = GrowingAnswer(TAG, max_bytes=max_bytes), []
    for kind, text, is_looked_at in pieces:
        for piece in (text * 40, text):
            answer.grow(kind, piece)
            given_so_far.append((kind, piece))
        if is_looked_at:
            _check(answer.snapshot(), whole_parts(given_so_far), max_bytes)
    _check(answer.snapshot(), whole_parts(given_so_far), max_bytes)


def _check(snapshot: PartialOutput, whole: list[tuple[PartialKind, str]], max_bytes: int) -> None:
    assert len(snapshot.model_dump_json().encode()) <= max_bytes
    assert [part.kind for part in snapshot.parts] == [kind for kind, _ in whole]
    for part, (_, text) in zip(snapshot.parts, whole, strict=True):
        # Half a character isn't published before its other half; the whole answer has a replacement character.
        assert part.text == text[part.omitted : part.end]
        assert text[part.end :] in ("", "\ufffd")
    after_the_first_text = dropwhile(lambda part: not part.text, snapshot.parts)
    assert not any(part.omitted for part in list(after_the_first_text)[1:]), "the oldest goes first"


def test_agt_5_the_oldest_text_is_dropped_and_empty_parts_keep_their_place() -> None:
    answer = GrowingAnswer(TAG, max_bytes=1_000)
    answer.grow("think", "t" * 500)
    answer.grow("call", "look")
    answer.grow("respond", "r" * 5_000)
    parts = answer.snapshot().parts
    assert [(part.kind, part.text, part.omitted) for part in parts[:2]] == [("think", "", 500), ("call", "", 4)]
    assert (set(parts[2].text), parts[2].end) == ({"r"}, 5_000)
    assert len(parts[2].text) > 500


def test_agt_5_a_character_split_over_two_pieces_is_shown_once_it_is_complete() -> None:
    answer = GrowingAnswer(TAG)
    answer.grow("respond", "a\ud83d")
    assert answer.snapshot().parts[0].text == "a"
    answer.grow("respond", "\ude00")
    assert answer.snapshot().parts[0].text == "a\U0001f600"


def test_agt_5_an_answer_with_endless_parts_is_shown_up_to_a_limit() -> None:
    answer = GrowingAnswer(TAG)
    for number in range(3 * MAX_PARTS):
        answer.grow("think" if number % 2 else "respond", f"{number} ")
    snapshot = answer.snapshot()
    assert len(snapshot.parts) == MAX_PARTS
    assert snapshot.parts[-1].text == f"{MAX_PARTS - 1} "
    assert len(snapshot.model_dump_json().encode()) <= MAX_PARTIAL_BYTES


def test_agt_5_joining_many_small_pieces_takes_linear_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded = 0

    def counting(value: object) -> int:
        nonlocal encoded
        size = json_bytes(value)
        encoded += size
        return size

    from turnkeeper.activities import answer_publisher

    json_bytes = answer_publisher._json_bytes
    monkeypatch.setattr(answer_publisher, "_json_bytes", counting)
    answer, snapshots = GrowingAnswer(TAG), 0
    for number in range(250_000):
        answer.grow("respond", 'a"b\n')
        if number % 1_000 == 0:
            answer.snapshot()
            snapshots += 1
    assert encoded < snapshots * 6 * MAX_PARTIAL_BYTES


# ---- when it is shown


@dataclass
class Clock:
    """An event loop's clock that the test moves on."""

    now: float = 0.0
    due: list[tuple[float, Callable[[], None], asyncio.Handle]] = field(default_factory=list)

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.Handle:
        handle = asyncio.Handle(callback, (), asyncio.get_running_loop())
        self.due.append((self.now + delay, callback, handle))
        return handle

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due, self.due = self.due, []
        for at, callback, handle in due:
            if at > self.now + 1e-9:
                self.due.append((at, callback, handle))
            elif not handle.cancelled():
                callback()


@dataclass
class Carrier(PartialCarrier):
    """A carrier that records the snapshots it gets and their times, or fails."""

    clock: Clock
    failing: bool = False
    min_pause: float = 0.2
    first_pause: float = 0.0
    snapshots: list[tuple[float, str]] = field(default_factory=list)
    ended: list[PartialTag] = field(default_factory=list)
    calls: int = 0
    followed: bool = True

    def publish(self, workflow_id: str, snapshot: PartialOutput, *, behind: Sequence[object] = ()) -> None:
        self.calls += 1
        if self.failing:
            raise OSError("s3cret text")
        self.snapshots.append((round(self.clock.now, 3), "".join(part.text for part in snapshot.parts)))

    def end(self, workflow_id: str, tag: PartialTag) -> None:
        self.ended.append(tag)

    def is_followed(self, workflow_id: str) -> bool:
        return self.followed

    async def forget(self, workflow_id: str) -> None:
        raise NotImplementedError

    async def _keep_updated(self, workflow_id: str, live: LiveSnapshot) -> None:
        raise NotImplementedError


def answer_to(carrier: Carrier) -> AnswerPublisher:
    return AnswerPublisher(carrier, "s", TAG, clock=carrier.clock)


async def test_agt_5_the_first_piece_is_shown_at_once_and_later_ones_after_a_pause_each() -> None:
    carrier = Carrier(Clock())
    with answer_to(carrier) as answer:
        for letter in "abcdefghij":
            answer.grow(Delta("respond", letter))
            carrier.clock.advance(0.05)
    assert carrier.snapshots == [(0.0, "a"), (0.2, "abcd"), (0.4, "abcdefgh")]


async def test_ops_8_heartbeats_start_shortly_after_the_first_piece() -> None:
    carrier = Carrier(Clock(), min_pause=0.2, first_pause=HeartbeatCarrier.first_pause)
    with answer_to(carrier) as answer:
        answer.grow(Delta("respond", "a"))
        carrier.clock.advance(0.14)
        answer.grow(Delta("respond", "b"))
    carrier.clock.advance(0.01)
    assert carrier.snapshots == []
    with answer_to(carrier) as answer:
        for letter in "abcdefghij":
            answer.grow(Delta("respond", letter))
            carrier.clock.advance(0.05)
    assert carrier.snapshots == [(0.3, "abc"), (0.5, "abcdefg")]


async def test_agt_5_the_last_piece_is_shown_after_the_pause_and_nothing_is_shown_twice() -> None:
    carrier = Carrier(Clock())
    with answer_to(carrier) as answer:
        answer.grow(Delta("respond", "a"))
        answer.grow(Delta("respond", "b"))
        carrier.clock.advance(0.2)
        carrier.clock.advance(5)
        assert carrier.snapshots == [(0.0, "a"), (0.2, "ab")]
        answer.grow(Delta("respond", "c"))
        assert carrier.snapshots[-1] == (5.2, "abc")


async def test_agt_5_no_snapshot_is_made_without_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots, snapshot = [], GrowingAnswer.snapshot
    monkeypatch.setattr(GrowingAnswer, "snapshot", lambda answer: snapshots.append(1) or snapshot(answer))
    carrier = Carrier(Clock(), followed=False)
    with answer_to(carrier) as answer:
        answer.show()
        for letter in "abc":
            answer.grow(Delta("respond", letter))
            carrier.clock.advance(1)
        assert (carrier.snapshots, snapshots) == ([], [])
        carrier.followed = True
        answer.show()
        assert carrier.snapshots == [(3.0, "abc")]


async def test_agt_5_nothing_is_shown_after_the_end() -> None:
    carrier = Carrier(Clock())
    with answer_to(carrier) as answer:
        answer.grow(Delta("respond", "a"))
        answer.grow(Delta("respond", "b"))
    carrier.clock.advance(1)
    assert (carrier.snapshots, carrier.ended) == ([(0.0, "a")], [TAG])


async def test_agt_5_a_failing_carrier_is_logged_once_and_dropped(caplog: pytest.LogCaptureFixture) -> None:
    carrier = Carrier(Clock(), failing=True)
    with answer_to(carrier) as answer:
        for letter in "abc":
            answer.grow(Delta("respond", letter))
            carrier.clock.advance(1)
    assert carrier.calls == 1
    assert [record.getMessage() for record in caplog.records] == ["partial output is not published (OSError)"]
