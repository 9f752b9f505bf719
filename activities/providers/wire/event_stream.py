"""Reading a vendor's stream of events (AGT-3, AGT-9).

The SDKs send the request; their streams are not used. They need more CPU time for a chunk, and overlook what
`EventReader` does not: events without an `event:` line, which some servers send to Anthropic's SDK; events without
data; the difference between `[DONE]` and a lost connection; bytes that are not UTF-8, which are replaced, as the
standard of event streams demands; and a last event that lacks its blank line, if its data is whole.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

BEGINNING_BYTES = 1_000
"""Bytes of a stream that show whether it has events."""

_END_OF_LINE = re.compile(rb"\r\n|\n|\r")


class ReceivedEvent(NamedTuple):
    """An event of the stream."""

    name: str
    """Empty if it has none."""
    data: str


class EventReader:
    r"""Finds the events in the bytes of one stream.

    >>> reader = EventReader()
    >>> pieces = (b'data: {"a"', b': 1}\r', b'\n\r\ndata: [DO', b'NE]\n\n')
    >>> [event.data for piece in pieces for event in reader.feed(piece)]
    ['{"a": 1}', '[DONE]']
    >>> reader.is_done, reader.is_foreign
    (True, False)
    """

    def __init__(self) -> None:
        self.is_done = False
        """`[DONE]` has arrived."""
        self.beginning = b""
        """The first bytes before the first event."""
        self._has_events = False
        self._pieces: list[bytes] = []
        """The pieces of a line that has not ended."""
        self._skips_line_feed = False
        self._name = ""
        self._data: list[bytes] = []

    @property
    def is_foreign(self) -> bool:
        """Whether the stream, which has ended, had content but no event."""
        lines = self.beginning.splitlines()
        return not self._has_events and any(line.strip() and not line.startswith(b":") for line in lines)

    def feed(self, piece: bytes) -> Iterator[ReceivedEvent]:
        """Yield the events that end with `piece`."""
        if not self._has_events:
            self.beginning = (self.beginning + piece)[:BEGINNING_BYTES]
        if self._skips_line_feed and piece:
            piece = piece.removeprefix(b"\n")
        self._skips_line_feed = piece.endswith(b"\r")
        *lines, rest = _END_OF_LINE.split(piece)
        if lines and self._pieces:
            lines[0] = b"".join([*self._pieces, lines[0]])
            self._pieces.clear()
        if rest:
            self._pieces.append(rest)
        for line in lines:
            if line:
                self._note(line)
            elif self._data:
                yield self._event()
            else:
                self._name = ""

    def end(self) -> Iterator[ReceivedEvent]:
        """Yield the last event, if only its blank line is missing. The connection was not lost."""
        if self._pieces:
            self._note(b"".join(self._pieces))
        if self._data and _is_whole(event := self._event()):
            yield event

    def _note(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif field == b"event":
            self._name = value.removeprefix(b" ").decode("utf-8", "replace")

    def _event(self) -> ReceivedEvent:
        event = ReceivedEvent(self._name, b"\n".join(self._data).decode("utf-8", "replace"))
        self._name, self._data = "", []
        if event.data:
            self._has_events = True
            self.is_done = self.is_done or event.data.startswith("[DONE]")
        return event


def _is_whole(event: ReceivedEvent) -> bool:
    try:
        return event.data.startswith("[DONE]") or isinstance(json.loads(event.data), dict)
    except (ValueError, RecursionError):
        return False


NO_STREAMS = ("text/html", "application/xhtml+xml", "application/json")
"""All others are read as streams of events, since some servers have a wrong content type, or none."""


def content_type(headers: Mapping[str, str]) -> str:
    """Return the content type without its parameters; empty if there is none.

    >>> content_type({"content-type": "Application/JSON; charset=utf-8"})
    'application/json'
    """
    return headers.get("content-type", "").partition(";")[0].strip().lower()
