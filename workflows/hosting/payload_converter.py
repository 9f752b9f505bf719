"""Decodes payloads so that whatever arrives reaches its handler (SES-5, SES-10).

The SDK decodes a message before our code gets it. Where that fails, it drops a signal in silence, and a start fails its
workflow task for ever. Our handlers take any value, so they get one here too, and it says what arrived.
"""

from collections.abc import Sequence
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DataConverter

from turnkeeper.models.wire import UndecodablePayload


class AnyPayloadConverter(PydanticPayloadConverter):
    """Pydantic's converter, but for an untyped value it never raises."""

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
