"""The turns a session holds, and what of them a client is shown (SES-2, SES-11, SES-12).

Theory of operation. Every change of the conversation raises the session's revision, and a turn carries the revision
of its last change. Turns are recorded one after the other and an ended one never changes, so revisions grow along the
transcript: what changed since a revision is a tail, found by walking back from the end. Both answers therefore cost
what they contain, not what the conversation holds.

The oldest turns may be in the archive and no longer here (SES-15). Positions count from the session's first turn.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import field_serializer
from pydantic_core import to_json

from turnkeeper.models.limits import STEPS_SHOWN
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.wire import Compact, Items


class TranscriptState(Compact):
    """What the next run is handed of a transcript: the turns that the session holds, after `archived` others."""

    turns: Items[ConversationMessage] = []
    archived: int = 0

    @property
    def count(self) -> int:
        """How many turns there are, those in the archive too."""
        return self.archived + len(self.turns)

    @field_serializer("turns")
    def _as_they_are_carried(self, turns: list[ConversationMessage]) -> list[dict[str, Any]]:
        return [turn.without_defaults() for turn in turns]


@dataclass(frozen=True)
class Updates:
    """The part of `ConversationUpdate` that follows from the turns alone."""

    new: list[ConversationMessage]
    updated: list[ConversationMessage]
    last_seen: str | None
    reset: bool
    has_more: bool


@dataclass(frozen=True)
class Page:
    """Some turns in a row. `first` is the position of the first one, from 0; `older`: more are held before it."""

    turns: list[ConversationMessage]
    first: int
    older: bool


@dataclass
class _Held:
    """A turn, and its size in JSON bytes: as it is shown, and as it is carried to the next run; once it has ended."""

    turn: ConversationMessage
    shown_bytes: int = 0
    carried_bytes: int = 0

    def measure(self) -> None:
        if self.turn.is_complete:
            self.shown_bytes, self.carried_bytes = shown_size(self.turn), carried_size(self.turn)

    @property
    def shown(self) -> ConversationMessage:
        return self.turn if self.turn.is_complete else self.turn.with_newest_steps(STEPS_SHOWN)


class Transcript:
    """All turns still held in workflow state, oldest first."""

    def __init__(self, state: TranscriptState, *, page_bytes: int) -> None:
        """Hold the turns of `state`. A page has about `page_bytes` of JSON."""
        self.archived = state.archived
        self._page_bytes = page_bytes
        self._held: list[_Held] = []
        self._position: dict[str, int] = {}
        for turn in state.turns:
            self.record(turn)
        self.carried_bytes = sum(held.carried_bytes for held in self._held)
        """JSON bytes of the ended turns as they are carried to the next run (SES-15)."""

    @property
    def state(self) -> TranscriptState:
        return TranscriptState(turns=self.turns, archived=self.archived)

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._position

    @property
    def turns(self) -> list[ConversationMessage]:
        """The turns held, oldest first, whole."""
        return [held.turn for held in self._held]

    @property
    def newest(self) -> ConversationMessage | None:
        """The turn recorded last: the only one that can still change."""
        return self._held[-1].turn if self._held else None

    def get(self, message_id: str) -> ConversationMessage:
        """Return the turn. Raises `KeyError` where it is not held."""
        return self._held[self._position[message_id] - self.archived].turn

    @property
    def count(self) -> int:
        """How many turns there are, those in the archive too."""
        return self.archived + len(self._held)

    def id_of(self, number: int) -> str | None:
        """Return the id of the turn at a place, from 1; `None` where it is not held."""
        held = number - self.archived - 1
        return self._held[held].turn.id if 0 <= held < len(self._held) else None

    def number_of(self, message_id: str) -> int:
        """Return the place of a turn in the whole transcript, from 1. Raises `KeyError` where it is not held."""
        return self._position[message_id] + 1

    def record(self, turn: ConversationMessage) -> None:
        """Append a turn whose processing starts now (SES-2)."""
        self._position[turn.id] = self.archived + len(self._held)
        self._held.append(_Held(turn))
        self._held[-1].measure()

    def replace_newest(self, turn: ConversationMessage) -> None:
        """Put the next version of the newest turn in its place."""
        newest = self._held[-1]
        newest.turn = turn
        if turn.is_complete:
            newest.measure()
            self.carried_bytes += newest.carried_bytes

    def oldest(self, *, beyond_bytes: int, most_bytes: int) -> list[ConversationMessage]:
        """Return the oldest ended turns that are to go so that `beyond_bytes` of them stay, `most_bytes` at once.

        The newest ended turn stays in any case (SES-12).
        """
        excess, room, chosen = self.carried_bytes - beyond_bytes, most_bytes, list[ConversationMessage]()
        is_running = bool(self._held) and not self._held[-1].turn.is_complete
        for held in self._held[: -2 if is_running else -1]:
            if excess <= 0 or (chosen and held.carried_bytes > room):
                break
            chosen.append(held.turn)
            excess -= held.carried_bytes
            room -= held.carried_bytes
        return chosen

    def drop_oldest(self, count: int) -> None:
        for held in self._held[:count]:
            del self._position[held.turn.id]
            self.carried_bytes -= held.carried_bytes
        del self._held[:count]
        self.archived += count

    def page(self, *, before: str | None = None, limit: int | None = None) -> Page:
        """Return the newest turns (before the turn `before`) that fit in a page.

        Raises `KeyError` where `before` is not held.
        """
        end = len(self._held) if before is None else self._position[before] - self.archived
        start, room = end, self._page_bytes
        while start > 0 and (limit is None or end - start < limit):
            room -= self._bytes_of(start - 1)
            if room < 0 and start < end:
                break
            start -= 1
        return Page(self._shown(start, end), first=self.archived + start, older=start > 0)

    def updates(
        self, *, revision: int, last_seen: str | None = None, since: int | None = None, limit: int | None = None
    ) -> Updates:
        """Answer SES-12 for a client that has seen `last_seen` at revision `since`; `revision` is the session's now."""
        unknown = last_seen is not None and last_seen not in self._position
        reset = unknown or (since is not None and since > revision)
        seen = -1 if reset or last_seen is None else self._position[last_seen] - self.archived
        updated = self._changed_up_to(seen, since) if seen >= 0 else []
        new = self._next_page(seen + 1, limit)
        newest_shown = new[-1].id if new else (None if reset else last_seen)
        return Updates(
            new=new,
            updated=updated,
            last_seen=newest_shown,
            reset=reset,
            has_more=seen + 1 + len(new) < len(self._held),
        )

    def _changed_up_to(self, seen: int, since: int | None) -> list[ConversationMessage]:
        if since is None:
            return self._shown(seen, seen + 1) if self._held[seen].turn.changed_since_recorded else []
        first = seen + 1
        while first > 0 and self._held[first - 1].turn.revision > since:
            first -= 1
        return self._shown(first, seen + 1)

    def _next_page(self, first: int, limit: int | None) -> list[ConversationMessage]:
        end, room = first, self._page_bytes
        while end < len(self._held) and (limit is None or end - first < limit):
            room -= self._bytes_of(end)
            if room < 0 and end > first:
                break
            end += 1
        return self._shown(first, end)

    def _shown(self, start: int, end: int) -> list[ConversationMessage]:
        return [self._held[index].shown for index in range(start, end)]

    def _bytes_of(self, index: int) -> int:
        held = self._held[index]
        return held.shown_bytes if held.turn.is_complete else shown_size(held.shown)


def carried_size(turn: ConversationMessage) -> int:
    """Count the JSON bytes of a turn as it is carried to the next run and kept in the archive."""
    return len(to_json(turn.without_defaults()))


def shown_size(turn: ConversationMessage) -> int:
    """Count the JSON bytes of a turn as a client is shown it: an answer kept by reference is put back for it."""
    return len(turn.model_dump_json().encode()) + (turn.agent_message_blob.bytes if turn.agent_message_blob else 0)
