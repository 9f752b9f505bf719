"""An answer while the model writes it, shown to those who watch (AGT-5).

Theory of operation. A vendor sends hundreds of pieces a second, people want to see some of them five times a second,
and a carrier takes whole snapshots of at most `MAX_PARTIAL_BYTES`. So pieces are only collected when they come, and
put together when a snapshot is due: the first one at once, each later one a carrier's `least_pause` after the one
before, and the last one too. What has gone out of the bound is not kept, so a snapshot costs the same however long the
answer is.

What is shown of a part is never taken back: what follows is always more of it, or a later part.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Self

from pydantic_core import to_json

from turnkeeper.activities.providers.answers import joined
from turnkeeper.activities.providers.protocol import Delta
from turnkeeper.models.transcript.partial_output import (
    MAX_PARTIAL_BYTES,
    PartialKind,
    PartialOutput,
    PartialPart,
    PartialTag,
)
from turnkeeper.stores.partials.carrier import PartialCarrier

MOST_PARTS = 500
"""An answer of more parts is shown up to there: no model has reason to begin so many, and each takes some bytes."""

OMITTED_DIGITS = 8
"""By how much the number of what is left out may grow when something is."""

_log = logging.getLogger(__name__)


class GrowingPart:
    """A part of the answer: its end, as far as it is kept, and the pieces that came since it was looked at."""

    def __init__(self, kind: PartialKind) -> None:
        self.kind = kind
        self.shown = PartialPart(kind=kind, text="")
        self.json_bytes = _json_bytes(self.shown)
        self._pieces: list[str] = []

    def grow(self, piece: str) -> None:
        self._pieces.append(piece)

    def catch_up(self) -> int:
        """Show what has come since; return by how many bytes of JSON the part has grown."""
        pieces, self._pieces = self._pieces, []
        # Of a character in two halves the first one waits for the other.
        if pieces and "\ud800" <= pieces[-1][-1] < "\udc00":
            pieces[-1], half = pieces[-1][:-1], pieces[-1][-1]
            self._pieces = [half]
        return self._show(self.shown.text + joined(pieces), self.shown.omitted) if any(pieces) else 0

    def leave_out(self, excess: int) -> int:
        """Leave out the oldest text, `excess` bytes of JSON or all there is; return by how many the part has grown."""
        text = self.shown.text
        kept = _longest_ending(text, _json_bytes(text) - len('""') - excess - OMITTED_DIGITS)
        return self._show(kept, self.shown.omitted + len(text) - len(kept)) if text else 0

    def _show(self, text: str, omitted: int) -> int:
        before, self.shown = self.json_bytes, PartialPart(kind=self.kind, text=text, omitted=omitted)
        self.json_bytes = _json_bytes(self.shown)
        return self.json_bytes - before


class GrowingAnswer:
    """All parts of an answer, to be looked at as a bounded snapshot.

    >>> tag = PartialTag(message_id="a", turn=1, step=1, request=1, attempt=1)
    >>> answer = GrowingAnswer(tag)
    >>> for kind, text in [("think", "Hm"), ("think", "."), ("call", "look"), ("call", "pay")]:
    ...     answer.grow(kind, text)
    >>> [(part.kind, part.text) for part in answer.snapshot().parts]
    [('think', 'Hm.'), ('call', 'look'), ('call', 'pay')]
    """

    def __init__(self, tag: PartialTag, *, most_bytes: int = MAX_PARTIAL_BYTES) -> None:
        """Begin with no parts; `most_bytes` bounds a snapshot as JSON."""
        self._empty = PartialOutput(**dict(tag))
        self._most_bytes = most_bytes
        self._json_bytes = _json_bytes(self._empty)
        self._parts: list[GrowingPart] = []
        self._is_full = False

    def grow(self, kind: PartialKind, text: str) -> None:
        """Add a piece: to the newest part, or as a part of its own. A call is always one: its piece is its name."""
        if not text:
            return
        if not self._parts or kind == "call" or self._parts[-1].kind != kind:
            self._begin(kind)
        if not self._is_full:
            self._parts[-1].grow(text)

    def snapshot(self) -> PartialOutput:
        """Return all there is, without its oldest text where it would be over the bound."""
        self._json_bytes += sum(part.catch_up() for part in self._parts)
        if self._json_bytes > self._most_bytes:
            # Somewhat more than needed: the next pieces then have room, and this is seldom done.
            self._leave_out(self._json_bytes - self._most_bytes * 7 // 8)
        return self._empty.model_copy(update={"parts": [part.shown for part in self._parts]})

    def _begin(self, kind: PartialKind) -> None:
        self._is_full = len(self._parts) == MOST_PARTS
        if self._is_full:
            return
        self._parts.append(GrowingPart(kind))
        self._json_bytes += self._parts[-1].json_bytes + len(",")

    def _leave_out(self, excess: int) -> None:
        for part in self._parts:
            if excess <= 0:
                break
            grown = part.leave_out(excess)
            self._json_bytes += grown
            excess += grown


def _longest_ending(text: str, room: int) -> str:
    """Return as much of the end of `text` as takes at most `room` bytes within JSON.

    >>> _longest_ending('say "hi"', 6), _longest_ending('say "hi"', 5), _longest_ending("no room", -1)
    ('"hi"', 'hi"', '')
    """
    # What is kept begins within `text[first:last]`. By halves, so that each character is looked at about twice.
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


class PartialAnswer:
    """The answer of one attempt, shown through a carrier while it grows; to be used as a context manager."""

    def __init__(
        self,
        carrier: PartialCarrier,
        workflow_id: str,
        tag: PartialTag,
        *,
        clock: asyncio.AbstractEventLoop | None = None,
        behind: Callable[[], Sequence[object]] = tuple,
    ) -> None:
        """Show nothing until it grows. `clock`: the running event loop.

        `behind` returns what heartbeats are to carry behind what is shown.
        """
        self._carrier = carrier
        self._workflow_id = workflow_id
        self._tag = tag
        self._behind = behind
        self._answer = GrowingAnswer(tag)
        self._clock = clock or asyncio.get_running_loop()
        self._pause: asyncio.Handle | None = None
        self._has_grown = False
        self._has_failed = False

    def grow(self, delta: Delta) -> None:
        """Add a piece of the answer. It is shown now, or when the pause after the one shown before is over."""
        self._answer.grow(delta.kind, delta.text)
        self._has_grown = True
        if self._pause is None:
            self._show()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Show nothing any more: the answer is whole, or the attempt has failed."""
        if self._pause is not None:
            self._pause.cancel()
        self._attempt(lambda: self._carrier.end(self._workflow_id, self._tag))

    def _show(self) -> None:
        self._pause = None
        if self._has_grown and not self._has_failed:
            self._has_grown = False
            self._pause = self._clock.call_later(self._carrier.least_pause, self._show)
            self._attempt(lambda: self._carrier.show(self._workflow_id, self._answer.snapshot(), behind=self._behind()))

    def _attempt(self, step: Callable[[], None]) -> None:
        # Whatever is wrong with showing: the answer is worth more.
        try:
            step()
        except Exception as error:  # noqa: BLE001  # whatever a carrier does
            if not self._has_failed:
                # The name alone: messages can hold what the model wrote.
                _log.warning("an answer is not shown while it is written (%s)", type(error).__name__)
            self._has_failed = True
