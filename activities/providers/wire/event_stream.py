"""The SDKs' streams of events, where they overlook something (AGT-3, AGT-9)."""

import json
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any


def stream_class(sdk: ModuleType) -> Any:
    """Return the SDK's stream of plain objects, which notices three more things.

    Anthropic's SDK passes over events without an `event:` line, which there are servers that send: their data says what
    they are. OpenAI's does not tell `[DONE]` from a connection that ended: `is_done` does, once the stream has ended.
    Events without data are none.
    """

    class EventStream(sdk.AsyncStream[object]):  # type: ignore[name-defined,misc]
        is_done = False

        async def _iter_events(self) -> AsyncIterator[Any]:
            async for event in super()._iter_events():
                if not event.data:
                    continue  # a comment, an id: OpenAI's SDK would take it for broken JSON
                self.is_done = self.is_done or event.data.startswith("[DONE]")
                yield event

    class NamedEventStream(EventStream):
        async def _iter_events(self) -> AsyncIterator[Any]:
            async for event in super()._iter_events():
                yield event if event.event is not None else type(event)(event=_type_in(event.data), data=event.data)

    return NamedEventStream if sdk.__name__ == "anthropic" else EventStream


def _type_in(data: str) -> str:
    """Return what an event without a name calls itself; a name all the same where it does not, so that it is read."""
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        return "message"
    kind = event.get("type") if isinstance(event, dict) else None
    return kind if isinstance(kind, str) and kind else "message"
