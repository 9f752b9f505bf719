"""From a vendor's stream of events to pieces to show and the whole answer: what all adapters do alike (AGT-3, AGT-9).

What the events mean is for the adapter's `Fold`. An answer is whole once its fold says so, and what comes until then is
none, however the stream ends.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, suppress
from typing import Protocol

from pydantic import JsonValue

from turnkeeper.activities.providers.answers import joined
from turnkeeper.activities.providers.meter import Meter
from turnkeeper.activities.providers.protocol import Delta, ModelError
from turnkeeper.activities.providers.verbatim import Block
from turnkeeper.activities.providers.wire.transport import Event, VendorStream
from turnkeeper.models.bounds import encodable, encodable_text
from turnkeeper.models.transcript.model_call import ModelResponse
from turnkeeper.models.transcript.trajectory import Usage

RUN_OUT = 0.5
"""Seconds that a stream has to end after its last event, so that its connection can be used again."""


class Fold(Protocol):
    """An answer while it comes in. What an event of an unexpected shape raises is the caller's to name."""

    is_whole: bool
    """Nothing is missing any more, but perhaps counts."""
    failure: Event | None
    """What the vendor says of an answer that failed."""

    @property
    def counted(self) -> Usage | None:
        """What the vendor has counted so far; without output tokens as long as it has not said those."""
        ...

    def take(self, event: Event) -> Iterable[Delta]:
        """Take the next event; return what there is to show of it."""
        ...

    def response(self, *, request_id: str | None) -> ModelResponse:
        """Return the answer, once it is whole. Raises `ModelError` where it is none after all."""
        ...


async def answer_of(
    asked: VendorStream, fold: Fold, *, run_out: float = RUN_OUT, meter: Meter | None = None
) -> AsyncGenerator[Delta | ModelResponse, None]:
    """Send the request; yield what there is to show of the answer, then all of it. Raises `ModelError`.

    `run_out`: seconds for what follows the end of the answer. It is whole by then, whatever becomes of the rest.
    What the answer takes is noted in `meter` as it comes.
    """
    transport, meter = asked.transport, meter or Meter()
    async with aclosing(asked.events()) as events:
        async for event in events:
            with transport.understanding():
                deltas = list(fold.take(event))
                if fold.failure is None or fold.counted:
                    meter.note(event, counted=fold.counted)
            if fold.failure is not None:
                raise asked.failed(fold.failure)
            for delta in deltas:
                yield delta
            if fold.is_whole:
                break
        else:
            raise asked.ended_early()
        with suppress(TimeoutError, ModelError), transport.understanding():
            async with asyncio.timeout(run_out):
                async for event in events:
                    fold.take(event)
                    meter.note(event, counted=fold.counted)
    with transport.understanding():
        response = fold.response(request_id=asked.request_id)
    yield response


class Grown:
    """Fields that come in pieces: text and lists grow, all else is replaced. Empty pieces add nothing.

    >>> grown = Grown({"type": "dream", "scenes": None})
    >>> for key, piece in [("told", "a "), ("scenes", [1]), ("told", "boat"), ("scenes", [2]), ("depth", 1)]:
    ...     grown.add(key, piece)
    >>> grown.whole()
    {'type': 'dream', 'scenes': [1, 2], 'depth': 1, 'told': 'a boat'}
    """

    def __init__(self, begun: Mapping[str, JsonValue] | None = None) -> None:
        """Begin with the fields `begun`, which stay also where they are empty."""
        self._fields = dict(begun or {})
        self._texts: dict[str, list[str]] = {}

    def get(self, key: str) -> JsonValue:
        """Return a field so far; None where there is none."""
        return joined(self._texts[key]) if key in self._texts else self._fields.get(key)

    def put(self, key: str, value: JsonValue) -> None:
        self._fields[key] = value
        self._texts.pop(key, None)

    def add(self, key: str, piece: JsonValue) -> None:
        held = self._fields.get(key)
        if piece in (None, "", [], {}):
            return
        if isinstance(piece, str) and isinstance(held, str | None):
            self._texts.setdefault(key, [held or ""]).append(piece)
        elif isinstance(piece, list) and isinstance(held, list):
            self.put(key, [*held, *piece])
        else:
            self.put(key, piece)

    def whole(self) -> Block:
        """Return the fields as they can be kept."""
        told: Block = {**self._fields, **{key: joined(pieces) for key, pieces in self._texts.items()}}
        return {encodable_text(key): encodable(value) for key, value in told.items()}
