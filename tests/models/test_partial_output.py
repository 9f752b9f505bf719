"""What grows of partial output, as those who watch are told: AGT-5."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.models.transcript.partial_output import (
    GrownPart,
    PartialGrowth,
    PartialKind,
    PartialOutput,
    PartialPart,
    growth,
)

KINDS = st.sampled_from(["think", "respond", "call"])


@st.composite
def attempts(draw: st.DrawFn) -> list[PartialOutput]:
    """Return the snapshots of one attempt: parts grow and begin, and their beginnings are left out, oldest first."""
    texts: list[tuple[PartialKind, str]] = []
    omitted: list[int] = []
    request, attempt = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    snapshots = []
    for _ in range(draw(st.integers(1, 8))):
        if not texts or draw(st.booleans()):
            texts.append((draw(KINDS), ""))
            omitted.append(0)
        kind, text = texts[-1]
        texts[-1] = kind, text + draw(st.text("abc", max_size=5))
        for index, (_, text) in enumerate(texts):
            if index == 0 or omitted[index - 1] == len(texts[index - 1][1]):
                omitted[index] = draw(st.integers(omitted[index], len(text)))
        parts = [
            PartialPart(kind=kind, text=text[out:], omitted=out)
            for (kind, text), out in zip(texts, omitted, strict=True)
        ]
        tag = {"message_id": "a", "turn": 1, "step": 1, "request": request, "attempt": attempt}
        snapshots.append(PartialOutput(**tag, parts=parts))
    return snapshots


def applied(picture: dict[int, GrownPart], told: PartialGrowth) -> dict[int, GrownPart]:
    """Do as every client does."""
    held = {} if told.fresh else dict(picture)
    for part in told.parts:
        before = held.get(part.index)
        held[part.index] = before.model_copy(update={"text": before.text + part.text}) if before else part
    return held


def ends_with(picture: dict[int, GrownPart], snapshot: PartialOutput) -> bool:
    """Tell whether the picture shows all that the snapshot has, and at most what was left out of it since."""
    assert list(picture) == list(range(len(snapshot.parts))), "no part is missing, nor out of its place"
    return all(
        (held.kind, held.text.endswith(part.text)) == (part.kind, True) and held.omitted + len(held.text) == part.end
        for held, part in zip(picture.values(), snapshot.parts, strict=True)
    )


@given(st.lists(attempts(), min_size=1, max_size=3), st.data())
def test_agt_5_growths_in_order_give_the_latest_snapshot_whichever_were_left_out(
    of_attempts: list[list[PartialOutput]], data: st.DataObject
) -> None:
    written = [
        snapshot.model_copy(update={"request": request})  # no two attempts are known by the same tag
        for request, snapshots in enumerate(of_attempts, start=1)
        for snapshot in snapshots
    ]
    seen = [snapshot for snapshot in written if data.draw(st.booleans())] or written[-1:]
    picture: dict[int, GrownPart] = {}
    told: PartialOutput | None = None
    for snapshot in seen:
        if grown := growth(told, snapshot):
            picture = applied(picture, grown)
            told = snapshot
        assert ends_with(picture, snapshot)


@given(attempts())
def test_agt_5_a_later_snapshot_of_an_answer_supersedes_every_earlier_one_and_none_itself(
    snapshots: list[PartialOutput],
) -> None:
    for earlier, later in pairwise(snapshots):
        assert not earlier.supersedes(later)
        assert later.supersedes(earlier) == (growth(earlier, later) is not None)
