"""Publishing an answer while the model writes it (AGT-5).

A vendor sends hundreds of pieces per second, people need about five updates per second, and a carrier accepts whole
snapshots of at most `MAX_PARTIAL_BYTES`. So pieces are only collected when they arrive, and assembled when a snapshot
is due: the first one a carrier's `first_pause` after the first piece, each later one its `min_pause` after the one
before, and the last one too. An answer that is whole before its first snapshot is due has none, and neither has one
that nobody follows. Text beyond the limit is dropped, so a snapshot costs the same however long the answer is.

Published text of a part is never withdrawn: later snapshots extend it, or add parts.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Self

from pydantic_core import to_json

from turnkeeper.activities.providers.answer_fields import join_pieces
from turnkeeper.activities.providers.protocol import Delta
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.transcript.partial_output import (
    MAX_PARTIAL_BYTES,
    PartialKind,
    PartialOutput,
    PartialPart,
    PartialTag,
)
from turnkeeper.stores.partials.carrier import PartialCarrier

MAX_PARTS = 500
"""Parts beyond this number are not published: no model needs more, and each takes some bytes."""

OMITTED_DIGITS = 8
"""By how many digits the count of omitted characters may grow when text is dropped."""

_log = logging.getLogger(__name__)


class GrowingPart:
    """A part of the answer: its end within the limit, and the pieces that came since the last snapshot."""

    def __init__(self, kind: PartialKind) -> None:
        self.kind = kind
        self.snapshot_part = PartialPart(kind=kind, text="")
        self.json_bytes = _json_bytes(self.snapshot_part)
        self._pieces: list[str] = []

    def grow(self, piece: str) -> None:
        self._pieces.append(piece)

    def apply_pieces(self) -> int:
        """Append the new pieces; return by how many bytes of JSON the part has grown."""
        pieces, self._pieces = self._pieces, []
        # The first half of a surrogate pair waits for the second.
        if pieces and "\ud800" <= pieces[-1][-1] < "\udc00":
            pieces[-1], half = pieces[-1][:-1], pieces[-1][-1]
            self._pieces = [half]
        if not any(pieces):
            return 0
        text, part = join_pieces(pieces), self.snapshot_part
        self.snapshot_part = PartialPart(kind=self.kind, text=part.text + text, omitted=part.omitted)
        growth = _json_bytes(text) - len('""')
        self.json_bytes += growth
        return growth

    def drop_oldest(self, excess: int) -> int:
        """Drop the oldest text, `excess` bytes of JSON or everything; return by how many bytes the part has grown."""
        text = self.snapshot_part.text
        if not text:
            return 0
        ending = _longest_ending(text, _json_bytes(text) - len('""') - excess - OMITTED_DIGITS)
        omitted = self.snapshot_part.omitted + len(text) - len(ending)
        before, self.snapshot_part = self.json_bytes, PartialPart(kind=self.kind, text=ending, omitted=omitted)
        self.json_bytes = _json_bytes(self.snapshot_part)
        return self.json_bytes - before


class GrowingAnswer:
    """All parts of an answer, from which bounded snapshots are made.

    >>> tag = PartialTag(message_id="a", turn=1, step=1, request=1, attempt=1)
    >>> answer = GrowingAnswer(tag)
    >>> for kind, text in [("think", "Hm"), ("think", "."), ("call", "look"), ("call", "pay")]:
    ...     answer.grow(kind, text)
    >>> [(part.kind, part.text) for part in answer.snapshot().parts]
    [('think', 'Hm.'), ('call', 'look'), ('call', 'pay')]
    """

    def __init__(self, tag: PartialTag, *, max_bytes: int = MAX_PARTIAL_BYTES) -> None:
        """Begin without parts. `max_bytes` limits the JSON of a snapshot."""
        self._empty = PartialOutput(**{name: getattr(tag, name) for name in PartialTag.model_fields})
        self._max_bytes = max_bytes
        self._json_bytes = _json_bytes(self._empty)
        self._parts: list[GrowingPart] = []
        self._is_full = False

    def grow(self, kind: PartialKind, text: str) -> None:
        """Add a piece to the newest part or as a new part. A call is always a new part: its piece is its name."""
        if not text:
            return
        if not self._parts or kind == "call" or self._parts[-1].kind != kind:
            self._begin(kind)
        if not self._is_full:
            self._parts[-1].grow(text)

    def bounded(self) -> PartialOutput:
        """Return all parts within `MAX_PARTIAL_BYTES`."""
        answer = GrowingAnswer(self._empty)
        for part in self.snapshot().parts:
            answer.grow(part.kind, part.text)
        return answer.snapshot()

    @property
    def has_begun(self) -> bool:
        return bool(self._parts)

    def snapshot(self) -> PartialOutput:
        """Return all parts, without the oldest text if they are over the limit."""
        self._json_bytes += sum(part.apply_pieces() for part in self._parts)
        if self._json_bytes > self._max_bytes:
            # Drops more than needed, so that the next pieces have room and this happens rarely.
            self._drop_oldest(self._json_bytes - self._max_bytes * 7 // 8)
        return self._empty.model_copy(update={"parts": [part.snapshot_part for part in self._parts]})

    def _begin(self, kind: PartialKind) -> None:
        self._is_full = len(self._parts) == MAX_PARTS
        if self._is_full:
            return
        self._parts.append(GrowingPart(kind))
        self._json_bytes += self._parts[-1].json_bytes + len(",")

    def _drop_oldest(self, excess: int) -> None:
        for part in self._parts:
            if excess <= 0:
                break
            growth = part.drop_oldest(excess)
            self._json_bytes += growth
            excess += growth


def _longest_ending(text: str, room: int) -> str:
    """Return the longest end of `text` that takes at most `room` bytes within JSON.

    >>> _longest_ending('say "hi"', 6), _longest_ending('say "hi"', 5), _longest_ending("no room", -1)
    ('"hi"', 'hi"', '')
    """
    # The result begins within `text[first:last]`. Halving it visits each character about twice.
    first, last = 0, len(text)
    while first < last:
        middle = (first + last) // 2
        size = _json_bytes(text[middle:last]) - len('""')
        if size <= room:
            last, room = middle, room - size
        else:
            first = middle + 1
    return text[last:]


def _json_bytes(value: object) -> int:
    return len(to_json(value))


class AnswerPublisher:
    """Publishes the answer of one attempt through a carrier while it grows. Use it as a context manager."""

    def __init__(
        self,
        carrier: PartialCarrier,
        workflow_id: WorkflowId,
        tag: PartialTag,
        *,
        clock: asyncio.AbstractEventLoop | None = None,
        behind: Callable[[], Sequence[object]] = tuple,
    ) -> None:
        """Publish nothing until the answer grows. `clock`: the running event loop.

        `behind` returns further details for heartbeats, after the partial output.
        """
        self._carrier = carrier
        self._workflow_id = workflow_id
        self.tag = tag
        self._behind = behind
        self._answer = GrowingAnswer(tag)
        self._clock = clock or asyncio.get_running_loop()
        self._first_pause = carrier.first_pause
        self._pause: asyncio.Handle | None = None
        self._has_grown = False
        self._has_failed = False

    def grow(self, delta: Delta) -> None:
        """Add a piece of the answer. It is published now, or when the current pause is over."""
        self._answer.grow(delta.kind, delta.text)
        self._has_grown = True
        if self._pause is not None or not self._carrier.is_followed(self._workflow_id):
            return
        if self._first_pause:
            self._pause, self._first_pause = self._clock.call_later(self._first_pause, self._show), 0.0
        else:
            self._show()

    def show(self) -> None:
        """Publish what there is so far, now or when the current pause is over."""
        self._has_grown = self._answer.has_begun
        if self._pause is None:
            self._show()

    def __enter__(self) -> Self:
        self._try(lambda: self._carrier.begin(self._workflow_id, self))
        return self

    def __exit__(self, *_: object) -> None:
        """Stop publishing: the answer is complete, or the attempt has failed."""
        if self._pause is not None:
            self._pause.cancel()
        self._try(lambda: self._carrier.end(self._workflow_id, self.tag))

    def _show(self) -> None:
        self._pause = None
        if self._has_grown and not self._has_failed and self._carrier.is_followed(self._workflow_id):
            self._has_grown = False
            self._pause = self._clock.call_later(self._carrier.min_pause, self._show)
            self._try(lambda: self._carrier.publish(self._workflow_id, self._answer.snapshot(), behind=self._behind()))

    def _try(self, step: Callable[[], None]) -> None:
        # A failure to publish must not fail the answer.
        try:
            step()
        except Exception as error:  # noqa: BLE001  # carriers may raise anything
            if not self._has_failed:
                # Only the error's name: messages can contain what the model wrote.
                _log.warning("partial output is not published (%s)", type(error).__name__)
            self._has_failed = True
