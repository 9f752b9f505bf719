"""What a model has written of an answer that is not whole yet (AGT-5): shown to who watches, no part of the session.

It travels beside the workflow's history. A worker shows snapshots, each the whole of what there is so far, so that any
may be lost or left out; the gateway tells its watchers what has grown since the snapshot they were told of last. The
tag says which answer it is: a retried attempt replaces what the one before had shown.
"""

from typing import Literal

from turnkeeper.models.wire import Frozen

MOST_PARTIAL_BYTES = 64_000
"""Of a snapshot as JSON. Temporal kills an attempt whose heartbeat is over 2 MB; this is far below."""

PartialKind = Literal["think", "respond", "call"]


class PartialPart(Frozen):
    """A part of the answer in the vendor's order: thinking, text, or the name of a call that begins.

    `omitted` counts the characters left out at its beginning, since a snapshot is bounded.
    """

    kind: PartialKind
    text: str
    omitted: int = 0

    @property
    def end(self) -> int:
        """How many characters the part has, with those left out."""
        return self.omitted + len(self.text)


class PartialTag(Frozen):
    """Which answer it is: of the turn `message_id`, the `turn`th of its session, the model step `step`.

    `request` counts the session's model requests, `attempt` grows with every try of one, also beyond a wait for the
    vendor. The latest answer replaces all before.
    """

    message_id: str
    turn: int
    step: int
    request: int
    attempt: int

    def is_later_than(self, other: "PartialTag") -> bool:
        """Return whether this answer was begun after `other`: a worker that was given up may still show its own."""
        return (self.request, self.attempt) > (other.request, other.attempt)


class PartialOutput(PartialTag):
    """A snapshot: all parts so far."""

    parts: list[PartialPart] = []

    def supersedes(self, other: "PartialOutput") -> bool:
        """Return whether to show this in the place of `other`: it is of a later answer, or has more of the same one.

        >>> tag = {"message_id": "a", "turn": 1, "step": 1, "request": 1}
        >>> less = PartialOutput(**tag, attempt=1, parts=[PartialPart(kind="respond", text="Hel")])
        >>> more = PartialOutput(**tag, attempt=1, parts=[PartialPart(kind="respond", text="lo", omitted=3)])
        >>> again = PartialOutput(**tag, attempt=2)
        >>> more.supersedes(less), less.supersedes(more), less.supersedes(less), again.supersedes(more)
        (True, False, False, True)
        """
        if self.is_later_than(other) or other.is_later_than(self):
            return self.is_later_than(other)
        return self._extent > other._extent

    @property
    def _extent(self) -> tuple[int, int]:
        """How much there is. Parts are never taken back, nor is text, but for what is left out at a beginning."""
        return len(self.parts), sum(part.end for part in self.parts)


class PartialGrowth(PartialTag):
    """What is new since the last event. `fresh`: drop all partial output shown before, then take this.

    Each of `parts` is text to append to the part of that number, which begins with it if there is none yet.
    """

    fresh: bool
    parts: list["GrownPart"] = []


class GrownPart(Frozen):
    """Text that a part has grown by. `omitted`: before it, so many characters are left out."""

    index: int
    kind: PartialKind
    text: str
    omitted: int = 0


def growth(old: PartialOutput | None, new: PartialOutput) -> PartialGrowth | None:
    """Return what turns `old`, as it was told, into `new`; `None` where nothing has grown.

    >>> said = [PartialPart(kind="respond", text="Hel")]
    >>> first = PartialOutput(message_id="a", turn=1, step=1, request=1, attempt=1, parts=said)
    >>> more = first.model_copy(update={"parts": [PartialPart(kind="respond", text="Hello")]})
    >>> growth(first, more).parts, growth(first, more).fresh, growth(more, more)
    ([GrownPart(index=0, kind='respond', text='lo', omitted=0)], False, None)
    >>> growth(None, first).fresh, growth(more, first).fresh
    (True, True)
    """
    if old is None or not _continues(old, new):
        parts = [GrownPart(index=index, **dict(part)) for index, part in enumerate(new.parts)]
        return PartialGrowth(**_tag(new), fresh=True, parts=parts)
    known = [part.end for part in old.parts]
    known += [0] * (len(new.parts) - len(known))
    grown = [
        GrownPart(index=index, kind=part.kind, text=part.text[told - part.omitted :])
        for index, (part, told) in enumerate(zip(new.parts, known, strict=True))
        if part.end > told or index >= len(old.parts)
    ]
    return PartialGrowth(**_tag(new), fresh=False, parts=grown) if grown else None


def with_growth(shown: PartialOutput | None, growth: PartialGrowth) -> PartialOutput | None:
    """Return what a watcher has once `growth` has come; of an answer whose beginning it does not have, nothing new.

    >>> first = PartialOutput(message_id="a", turn=1, step=1, request=1, attempt=1)
    >>> more = first.model_copy(update={"parts": [PartialPart(kind="respond", text="Hello")]})
    >>> with_growth(first, growth(first, more)) == more, with_growth(None, growth(first, more))
    (True, None)
    """
    if growth.fresh:
        shown = PartialOutput.model_validate(_tag(growth))
    if shown is None or _tag(shown) != _tag(growth):
        return shown
    parts = dict(enumerate(shown.parts))
    for grown in growth.parts:
        part = parts.get(grown.index) or PartialPart(kind=grown.kind, text="", omitted=grown.omitted)
        parts[grown.index] = part.model_copy(update={"text": part.text + grown.text})
    return shown.model_copy(update={"parts": [parts[index] for index in sorted(parts)]})


def _continues(old: PartialOutput, new: PartialOutput) -> bool:
    """Return whether a client that was told `old` can append its way to `new`."""
    if _tag(old) != _tag(new) or len(new.parts) < len(old.parts):
        return False
    ends = [part.end for part in old.parts] + [0] * (len(new.parts) - len(old.parts))
    kinds = all(was.kind == now.kind for was, now in zip(old.parts, new.parts, strict=False))
    return kinds and all(part.omitted <= told <= part.end for part, told in zip(new.parts, ends, strict=True))


def _tag(partial: PartialTag) -> dict[str, object]:
    return {name: getattr(partial, name) for name in PartialTag.model_fields}
