"""The SDKs' streams of events, with what they overlook (AGT-3, AGT-9)."""

import codecs
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import ModuleType
from typing import Any

BEGINNING_BYTES = 1_000
"""Bytes of a stream that show whether it has events."""


@dataclass
class Progress:
    """How far a stream of events was read."""

    is_done: bool = False
    """`[DONE]` has arrived."""
    has_events: bool = False
    has_ended: bool = False
    """The stream has ended, and its connection was not lost."""
    beginning: bytes = b""
    """The first bytes before the first event."""

    @property
    def is_foreign(self) -> bool:
        """Whether the stream has ended with content, but without an event."""
        lines = self.beginning.splitlines()
        has_content = any(line.strip() and not line.startswith(b":") for line in lines)
        return self.has_ended and not self.has_events and has_content


def stream_class(sdk: ModuleType) -> Any:
    """Return the SDK's stream class for plain objects, with five corrections.

    Anthropic's SDK ignores events without an `event:` line, which some servers send: the type is in their data.
    OpenAI's doesn't distinguish `[DONE]` from a lost connection: `progress` does. Events without data are ignored.
    Bytes that are not UTF-8 are replaced, as the standard of event streams demands. And the last event may lack its
    blank line, if its data is whole.
    """

    class EventStream(sdk.AsyncStream[object]):  # type: ignore[name-defined,misc]
        def __init__(self, **of_sdk: Any) -> None:
            super().__init__(**of_sdk)
            self.progress = Progress()  # an object, since Anthropic's SDK iterates a copy of the stream

        async def _iter_events(self) -> AsyncIterator[Any]:
            progress = self.progress
            async with aclosing(self._bytes()) as body, aclosing(self._decoder.aiter_bytes(body)) as events:
                async for event in events:
                    if not event.data:
                        continue  # a comment or an id, which OpenAI's SDK would parse as JSON
                    if progress.has_ended and not _is_whole(event.data):
                        continue
                    progress.has_events = True
                    progress.is_done = progress.is_done or event.data.startswith("[DONE]")
                    yield event

        async def _bytes(self) -> AsyncGenerator[bytes, None]:
            progress, decode = self.progress, codecs.getincrementaldecoder("utf-8")("replace").decode
            async with aclosing(self.response.aiter_bytes()) as pieces:
                async for piece in pieces:
                    if not progress.has_events:
                        progress.beginning = (progress.beginning + piece)[:BEGINNING_BYTES]
                    yield decode(piece).encode()
            progress.has_ended = True
            yield decode(b"", final=True).encode() + b"\n\n"

    class NamedEventStream(EventStream):
        async def _iter_events(self) -> AsyncIterator[Any]:
            async for event in super()._iter_events():
                yield event if event.event is not None else type(event)(event=_type_in(event.data), data=event.data)

    return NamedEventStream if sdk.__name__ == "anthropic" else EventStream


def _is_whole(data: str) -> bool:
    """Return whether the data of an event is complete."""
    try:
        return data.startswith("[DONE]") or isinstance(json.loads(data), dict)
    except (ValueError, RecursionError):
        return False


def _type_in(data: str) -> str:
    """Return the type in an event's data, or a default type, so that the SDK doesn't ignore the event."""
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        return "message"
    kind = event.get("type") if isinstance(event, dict) else None
    return kind if isinstance(kind, str) and kind else "message"


NO_STREAMS = ("text/html", "application/xhtml+xml", "application/json")
"""All others are read as streams of events, since some servers have a wrong content type, or none."""


def content_type(headers: Mapping[str, str]) -> str:
    """Return the content type without its parameters; empty if there is none.

    >>> content_type({"content-type": "Application/JSON; charset=utf-8"})
    'application/json'
    """
    return headers.get("content-type", "").partition(";")[0].strip().lower()
