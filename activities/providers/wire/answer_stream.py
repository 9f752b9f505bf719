"""From a vendor's stream of events to pieces to show and the whole answer: what all adapters do alike (AGT-3, AGT-9).

What the events mean is for the adapter's `StreamAccumulator`. An answer is whole once its fold says so, and what comes until then is
none, however the stream ends.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, suppress
from typing import Protocol

from pydantic import JsonValue

from turnkeeper.activities.providers.answer_fields import join_pieces
from turnkeeper.activities.providers.meter import Meter
from turnkeeper.activities.providers.protocol import Delta, ModelError
from turnkeeper.activities.providers.request_encoding import Block
from turnkeeper.activities.providers.wire.transport import Event, VendorStream
from turnkeeper.models.bounds import encodable, encodable_text
from turnkeeper.models.transcript.model_call import ModelResponse
from turnkeeper.models.transcript.trajectory import Usage

RUN_OUT_SECONDS = 0.5
"""Seconds that a stream has to end after its last event, so that its connection can be used again."""


class StreamAccumulator(Protocol):
    """An answer while it comes in. What an event of an unexpected shape raises is the caller's to name."""

    is_whole: bool
    """Nothing is missing any more, but perhaps counts."""
    failure: Event | None
    """What the vendor says of an answer that failed."""

    @property
    def usage_so_far(self) -> Usage | None:
        """What the vendor has counted so far; without output tokens as long as it has not said those."""
        ...

    def add(self, event: Event) -> Iterable[Delta]:
        """Take the next event; return what there is to show of it."""
        ...

    def response(self, *, request_id: str | None) -> ModelResponse:
        """Return the answer, once it is whole. Raises `ModelError` where it is none after all."""
        ...


async def stream_answer(
    stream: VendorStream,
    accumulator: StreamAccumulator,
    *,
    run_out: float = RUN_OUT_SECONDS,
    meter: Meter | None = None,
) -> AsyncGenerator[Delta | ModelResponse, None]:
    """Send the request; yield what there is to show of the answer, then all of it. Raises `ModelError`.

    `run_out`: seconds for what follows the end of the answer. It is whole by then, whatever becomes of the rest.
    What the answer takes is noted in `meter` as it comes.
    """
    transport, meter = stream.transport, meter or Meter()
    async with aclosing(stream.events()) as events:
        async for event in events:
            with transport.naming_read_errors():
                deltas = list(accumulator.add(event))
                if accumulator.failure is None or accumulator.usage_so_far:
                    meter.note(event, usage_so_far=accumulator.usage_so_far)
            if accumulator.failure is not None:
                raise stream.failure_error(accumulator.failure)
            for delta in deltas:
                yield delta
            if accumulator.is_whole:
                break
        else:
            raise stream.early_end_error()
        with suppress(TimeoutError, ModelError), transport.naming_read_errors():
            async with asyncio.timeout(run_out):
                async for event in events:
                    accumulator.add(event)
                    meter.note(event, usage_so_far=accumulator.usage_so_far)
    with transport.naming_read_errors():
        response = accumulator.response(request_id=stream.request_id)
    yield response


class FieldAccumulator:
    """Fields that come in pieces: text and lists grow, all else is replaced. Empty pieces add nothing.

    >>> grown = FieldAccumulator({"type": "dream", "scenes": None})
    >>> for key, piece in [("told", "a "), ("scenes", [1]), ("told", "boat"), ("scenes", [2]), ("depth", 1)]:
    ...     grown.add(key, piece)
    >>> grown.fields()
    {'type': 'dream', 'scenes': [1, 2], 'depth': 1, 'told': 'a boat'}
    """

    def __init__(self, initial: Mapping[str, JsonValue] | None = None) -> None:
        """Begin with the fields `initial`, which stay also where they are empty."""
        self._fields = dict(initial or {})
        self._texts: dict[str, list[str]] = {}

    def get(self, key: str) -> JsonValue:
        """Return a field so far; None where there is none."""
        return join_pieces(self._texts[key]) if key in self._texts else self._fields.get(key)

    def put(self, key: str, value: JsonValue) -> None:
        self._fields[key] = value
        self._texts.pop(key, None)

    def add(self, key: str, piece: JsonValue) -> None:
        current = self._fields.get(key)
        if piece in (None, "", [], {}):
            return
        if isinstance(piece, str) and isinstance(current, str | None):
            self._texts.setdefault(key, [current or ""]).append(piece)
        elif isinstance(piece, list) and isinstance(current, list):
            self.put(key, [*current, *piece])
        else:
            self.put(key, piece)

    def fields(self) -> Block:
        """Return the fields as they can be kept."""
        fields: Block = {**self._fields, **{key: join_pieces(pieces) for key, pieces in self._texts.items()}}
        return {encodable_text(key): encodable(value) for key, value in fields.items()}
