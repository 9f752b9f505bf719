"""The SDKs' streams of events, with what they overlook (AGT-3, AGT-9)."""

import json
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any


def stream_class(sdk: ModuleType) -> Any:
    """Return the SDK's stream class for plain objects, with three corrections.

    Anthropic's SDK ignores events without an `event:` line, which some servers send: the type is in their data.
    OpenAI's doesn't distinguish `[DONE]` from a lost connection: `is_done` does, once the stream has ended. Events
    without data are ignored.
    """

    class EventStream(sdk.AsyncStream[object]):  # type: ignore[name-defined,misc]
        is_done = False

        async def _iter_events(self) -> AsyncIterator[Any]:
            async for event in super()._iter_events():
                if not event.data:
                    continue  # a comment or an id, which OpenAI's SDK would parse as JSON
                self.is_done = self.is_done or event.data.startswith("[DONE]")
                yield event

    class NamedEventStream(EventStream):
        async def _iter_events(self) -> AsyncIterator[Any]:
            async for event in super()._iter_events():
                yield event if event.event is not None else type(event)(event=_type_in(event.data), data=event.data)

    return NamedEventStream if sdk.__name__ == "anthropic" else EventStream


def _type_in(data: str) -> str:
    """Return the type in an event's data, or a default type, so that the SDK doesn't ignore the event."""
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        return "message"
    kind = event.get("type") if isinstance(event, dict) else None
    return kind if isinstance(kind, str) and kind else "message"
