"""The growth of partial output that watchers receive: AGT-5."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.models.transcript.partial_output import (
    PartialKind,
    PartialOutput,
    PartialPart,
    growth,
    with_growth,
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


def ends_with(received: PartialOutput | None, snapshot: PartialOutput) -> bool:
    """Return whether `received` ends with all of the snapshot; before that it may have what was left out since."""
    assert received
    return all(
        (part.kind, part.text.endswith(newest.text), part.end) == (newest.kind, True, newest.end)
        for part, newest in zip(received.parts, snapshot.parts, strict=True)
    )


@given(st.lists(attempts(), min_size=1, max_size=3), st.data())
def test_agt_5_increments_give_the_latest_snapshot_even_if_some_are_skipped(
    of_attempts: list[list[PartialOutput]], data: st.DataObject
) -> None:
    all_snapshots = [
        snapshot.model_copy(update={"request": request})  # no two attempts are known by the same tag
        for request, snapshots in enumerate(of_attempts, start=1)
        for snapshot in snapshots
    ]
    seen = [snapshot for snapshot in all_snapshots if data.draw(st.booleans())] or all_snapshots[-1:]
    received: PartialOutput | None = None
    previous: PartialOutput | None = None
    for snapshot in seen:
        if grown := growth(previous, snapshot):
            received = with_growth(received, grown)
            previous = snapshot
        assert ends_with(received, snapshot)


@given(attempts())
def test_agt_5_a_later_snapshot_supersedes_all_earlier_ones_but_not_itself(
    snapshots: list[PartialOutput],
) -> None:
    for earlier, later in pairwise(snapshots):
        assert not earlier.supersedes(later)
        assert later.supersedes(earlier) == (growth(earlier, later) is not None)
