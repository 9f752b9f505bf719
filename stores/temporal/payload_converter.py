"""Our payloads: the carried state is compressed, and whatever arrives reaches its handler (OPS-8, SES-5, SES-10).

The SDK decodes a message before our code gets it. Where that fails, it drops a signal in silence, and a start fails its
workflow task forever. Our handlers take any value, so they get one here too, and it says what arrived.

A session's carried state stands in the history twice for each of its runs: in the event that ends one, and in the one
that starts the next. It is most of a long session's bytes, so it is compressed. Everything else stays readable for any
client of Temporal.
"""

import zlib
from collections.abc import Sequence
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DataConverter, EncodingPayloadConverter

from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.wire import UndecodablePayload

COMPRESSED_FROM_BYTES = 4_096
"""JSON of a carried state that is shorter stays as it is, and readable in the Web UI."""

MAX_DECOMPRESSED_BYTES = 4_000_000
"""A state over 1.8 MB is never carried; anybody may send a payload that decompresses to gigabytes."""


class CarriedStateConverter(EncodingPayloadConverter):
    """JSON of a session's input with a carried state, compressed by zlib."""

    def __init__(self, json: EncodingPayloadConverter) -> None:
        self._json = json

    @property
    def encoding(self) -> str:
        return "json/zlib"

    def to_payload(self, value: Any) -> Payload | None:
        """Return the compressed payload; `None` for every other value."""
        if not isinstance(value, SessionInput) or value.carried is None:
            return None
        payload = self._json.to_payload(value)
        if payload is None or len(payload.data) < COMPRESSED_FROM_BYTES:
            return payload
        data = zlib.compress(payload.data, level=1)
        return Payload(metadata={"encoding": self.encoding.encode()}, data=data)

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        """Decompress and decode. Raises `ValueError` for data that is damaged or too large."""
        stream = zlib.decompressobj()
        try:
            data = stream.decompress(payload.data, MAX_DECOMPRESSED_BYTES)
        except zlib.error as error:
            raise ValueError("is not compressed by zlib") from error
        if not stream.eof or stream.unused_data:
            raise ValueError("is damaged or too large")
        return self._json.from_payload(Payload(metadata={"encoding": b"json/plain"}, data=data), type_hint)


class AnyPayloadConverter(PydanticPayloadConverter):
    """Pydantic's converter with `json/zlib`, but for an untyped value it never raises."""

    def __init__(self) -> None:
        super().__init__()
        *others, json = self.converters.values()
        self._set_converters(*others, CarriedStateConverter(json), json)

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """Decode payloads. Those without a type that can't be decoded become an `UndecodablePayload`."""
        hints = type_hints or [Any] * len(payloads)
        return [self._decode(payload, hint) for payload, hint in zip(payloads, hints, strict=True)]

    def _decode(self, payload: Payload, hint: Any) -> Any:
        try:
            (value,) = super().from_payloads([payload], [hint])
        except Exception:  # converters raise what they like; the handler decides
            if hint not in (Any, None):
                raise
            encoding = payload.metadata.get("encoding", b"").decode(errors="replace")
            return UndecodablePayload(encoding=encoding, size=len(payload.data))
        return value


DATA_CONVERTER = DataConverter(payload_converter_class=AnyPayloadConverter)
"""The converter of gateways, workers and replays. A worker of an application with a codec adds it to this one."""
