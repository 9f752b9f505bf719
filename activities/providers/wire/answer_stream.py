"""From a vendor's stream of events to deltas and the whole answer, for all providers (AGT-3, AGT-9).

The provider's `StreamAccumulator` interprets the events. An answer is complete once the accumulator says so; until then
there is no answer, however the stream ends.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, suppress
from typing import Protocol

from pydantic import JsonValue

from turnkeeper.activities.providers.answer_fields import join_pieces
from turnkeeper.activities.providers.protocol import Delta, Meter, ModelError
from turnkeeper.activities.providers.request_encoding import Block
from turnkeeper.activities.providers.wire.transport import Event, VendorStream
from turnkeeper.models.bounds import encodable, encodable_text
from turnkeeper.models.transcript.model_call import ModelResponse
from turnkeeper.models.transcript.trajectory import Usage

RUN_OUT_SECONDS = 0.5
"""Seconds for a stream to end after its last event, so that its connection can be reused."""


class StreamAccumulator(Protocol):
    """An answer while it arrives. The caller converts what an event of an unexpected shape raises."""

    is_complete: bool
    """Nothing is missing, except maybe counts."""
    failure: Event | None
    """The vendor's error."""

    @property
    def usage_so_far(self) -> Usage | None:
        """The vendor's counts so far, without output tokens until it has sent those."""
        ...

    def add(self, event: Event) -> Iterable[Delta]:
        """Add the next event; return its deltas."""
        ...

    def response(self, *, request_id: str | None) -> ModelResponse:
        """Return the answer, once it is complete. Raises `ModelError` if it is invalid after all."""
        ...


async def stream_answer(
    stream: VendorStream,
    accumulator: StreamAccumulator,
    *,
    run_out: float = RUN_OUT_SECONDS,
    meter: Meter | None = None,
) -> AsyncGenerator[Delta | ModelResponse, None]:
    """Send the request; yield the deltas of the answer, then the whole of it. Raises `ModelError`.

    `run_out`: seconds to read on after the answer is complete. `meter` notes the usage as it arrives.
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
            if accumulator.is_complete:
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
    """Accumulates fields that arrive in pieces: text and lists grow, all else is replaced; empty pieces add nothing.

    The initial fields stay even if they are empty.

    >>> grown = FieldAccumulator({"type": "dream", "scenes": None})
    >>> for key, piece in [("told", "a "), ("scenes", [1]), ("told", "boat"), ("scenes", [2]), ("depth", 1)]:
    ...     grown.add(key, piece)
    >>> grown.fields()
    {'type': 'dream', 'scenes': [1, 2], 'depth': 1, 'told': 'a boat'}
    """

    def __init__(self, initial: Mapping[str, JsonValue] | None = None) -> None:
        self._fields = dict(initial or {})
        self._texts: dict[str, list[str]] = {}

    def get(self, key: str) -> JsonValue:
        """Return a field so far; `None` if there is none."""
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
        """Return the fields in a form that can be stored."""
        fields: Block = {**self._fields, **{key: join_pieces(pieces) for key, pieces in self._texts.items()}}
        return {encodable_text(key): encodable(value) for key, value in fields.items()}
