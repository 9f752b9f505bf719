"""The turns of a session, and the pages and updates that clients get (SES-2, SES-11, SES-12).

Every change of the conversation raises the session's revision, and a turn has the revision of its last change. Turns
are recorded one after another and an ended turn never changes, so revisions grow along the transcript: what changed
since a revision is a tail, found by walking back from the end. The cost of a page or an update therefore depends on its
own size, not on the length of the conversation.

The oldest turns may be in the archive only (SES-15). Positions count from the session's first turn.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import field_serializer
from pydantic_core import to_json

from turnkeeper.models.limits import STEPS_SHOWN
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.wire import Compact, Items


class TranscriptState(Compact):
    """The carried part of a transcript: the turns in the session, after `archived` others."""

    turns: Items[ConversationMessage] = []
    archived: int = 0
    copied: int = 0
    """Number of the oldest of `turns` that the archive has too."""

    @property
    def count(self) -> int:
        """Number of turns, with those in the archive."""
        return self.archived + len(self.turns)

    @field_serializer("turns")
    def _serialise_turns(self, turns: list[ConversationMessage]) -> list[dict[str, Any]]:
        return [turn.without_defaults() for turn in turns]


@dataclass(frozen=True)
class Updates:
    """The part of a `ConversationUpdate` that depends on the turns only."""

    new: list[ConversationMessage]
    updated: list[ConversationMessage]
    last_seen: str | None
    reset: bool
    has_more: bool


@dataclass(frozen=True)
class Page:
    """Consecutive turns. `first` is the position of the first one, from 0; `older`: the session has earlier ones."""

    turns: list[ConversationMessage]
    first: int
    older: bool


@dataclass
class _Entry:
    """A turn and, after it has ended, its sizes in JSON bytes: as clients get it, and as it is carried."""

    turn: ConversationMessage
    visible_bytes: int = 0
    carried_bytes: int = 0

    def measure(self) -> None:
        if self.turn.is_complete:
            self.visible_bytes, self.carried_bytes = visible_size(self.turn), carried_size(self.turn)

    @property
    def visible_turn(self) -> ConversationMessage:
        return self.turn if self.turn.is_complete else self.turn.with_newest_steps(STEPS_SHOWN)


class Transcript:
    """The turns in workflow state, oldest first."""

    def __init__(self, state: TranscriptState, *, page_bytes: int) -> None:
        """`page_bytes` is the approximate size of a page, as JSON."""
        self._rest = state.model_copy(update={"turns": []})
        """What is carried without an attribute of its own; replaced with every change."""
        self.archived = state.archived
        self.copied = state.copied
        """Turns in the session that the archive has too, the oldest ones."""
        self._page_bytes = page_bytes
        self._entries: list[_Entry] = []
        self._position: dict[str, int] = {}
        for turn in state.turns:
            self.record(turn)
        self.carried_bytes = sum(entry.carried_bytes for entry in self._entries)
        """JSON bytes of the ended turns, as they are carried to the next run (SES-15)."""

    @property
    def state(self) -> TranscriptState:
        return self._rest.model_copy(
            update={"turns": list(self.turns), "archived": self.archived, "copied": self.copied}
        )

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._position

    @property
    def turns(self) -> list[ConversationMessage]:
        """The turns in the session, whole, oldest first."""
        return [entry.turn for entry in self._entries]

    @property
    def newest(self) -> ConversationMessage | None:
        """The turn recorded last: the only one that can still change."""
        return self._entries[-1].turn if self._entries else None

    def get(self, message_id: str) -> ConversationMessage:
        """Return the turn. Raises `KeyError` if it is not in the session."""
        return self._entries[self._position[message_id] - self.archived].turn

    @property
    def count(self) -> int:
        """Number of turns, with those in the archive."""
        return self.archived + len(self._entries)

    def id_of(self, number: int) -> str | None:
        """Return the id of turn `number`, from 1; `None` if it is not in the session."""
        index = number - self.archived - 1
        return self._entries[index].turn.id if 0 <= index < len(self._entries) else None

    def number_of(self, message_id: str) -> int:
        """Return the number of a turn in the transcript, from 1. Raises `KeyError` if it is not in the session."""
        return self._position[message_id] + 1

    def record(self, turn: ConversationMessage) -> None:
        """Append a turn (SES-2)."""
        self._position[turn.id] = self.archived + len(self._entries)
        self._entries.append(_Entry(turn))
        self._entries[-1].measure()

    def replace_newest(self, turn: ConversationMessage) -> None:
        """Replace the newest turn with its next version."""
        newest = self._entries[-1]
        newest.turn = turn
        if turn.is_complete:
            newest.measure()
            self.carried_bytes += newest.carried_bytes

    def oldest(self, *, keep_bytes: int, max_bytes: int) -> list[ConversationMessage]:
        """Return the oldest ended turns beyond `keep_bytes`, at most `max_bytes` of them, but at least one.

        The newest ended turn always stays (SES-12).
        """
        excess, room, oldest = self.carried_bytes - keep_bytes, max_bytes, list[ConversationMessage]()
        is_running = bool(self._entries) and not self._entries[-1].turn.is_complete
        for entry in self._entries[: -2 if is_running else -1]:
            if excess <= 0 or (oldest and entry.carried_bytes > room):
                break
            oldest.append(entry.turn)
            excess -= entry.carried_bytes
            room -= entry.carried_bytes
        return oldest

    @property
    def is_copied(self) -> bool:
        """Whether the archive has every ended turn."""
        return self.copied >= len(self._entries) or not self._entries[self.copied].turn.is_complete

    def uncopied(self, *, max_bytes: int, again: bool = False) -> list[ConversationMessage]:
        """Return the oldest ended turns that the archive doesn't have, at most `max_bytes`, but at least one.

        With `again`, those that it is said to have too: all that the session has.
        """
        turns, room = list[ConversationMessage](), max_bytes
        for entry in self._entries[0 if again else self.copied :]:
            room -= entry.carried_bytes
            if not entry.turn.is_complete or (turns and room < 0):
                break
            turns.append(entry.turn)
        return turns

    def drop_oldest(self, count: int) -> None:
        for entry in self._entries[:count]:
            del self._position[entry.turn.id]
            self.carried_bytes -= entry.carried_bytes
        del self._entries[:count]
        self.archived += count
        self.copied = max(0, self.copied - count)

    def page(self, *, before: str | None = None, limit: int | None = None) -> Page:
        """Return the newest turns, or the newest before the turn `before`, that fit in a page.

        Raises `KeyError` if `before` is not in the session.
        """
        end = len(self._entries) if before is None else self._position[before] - self.archived
        start, room = end, self._page_bytes
        while start > 0 and (limit is None or end - start < limit):
            room -= self._bytes_of(start - 1)
            if room < 0 and start < end:
                break
            start -= 1
        return Page(self._visible(start, end), first=self.archived + start, older=start > 0)

    def updates(
        self, *, revision: int, last_seen: str | None = None, since: int | None = None, limit: int | None = None
    ) -> Updates:
        """Return what is new since the cursor `last_seen` and `since` (SES-12); `revision` is the session's."""
        unknown = last_seen is not None and last_seen not in self._position
        reset = unknown or (since is not None and since > revision)
        seen = -1 if reset or last_seen is None else self._position[last_seen] - self.archived
        updated = self._changed_up_to(seen, since) if seen >= 0 else []
        new = self._next_page(seen + 1, limit)
        newest = new[-1].id if new else (None if reset else last_seen)
        return Updates(
            new=new, updated=updated, last_seen=newest, reset=reset, has_more=seen + 1 + len(new) < len(self._entries)
        )

    def _changed_up_to(self, seen: int, since: int | None) -> list[ConversationMessage]:
        if since is None:
            return self._visible(seen, seen + 1) if self._entries[seen].turn.changed_since_recorded else []
        first = seen + 1
        while first > 0 and self._entries[first - 1].turn.revision > since:
            first -= 1
        return self._visible(first, seen + 1)

    def _next_page(self, first: int, limit: int | None) -> list[ConversationMessage]:
        end, room = first, self._page_bytes
        while end < len(self._entries) and (limit is None or end - first < limit):
            room -= self._bytes_of(end)
            if room < 0 and end > first:
                break
            end += 1
        return self._visible(first, end)

    def _visible(self, start: int, end: int) -> list[ConversationMessage]:
        return [self._entries[index].visible_turn for index in range(start, end)]

    def _bytes_of(self, index: int) -> int:
        entry = self._entries[index]
        return entry.visible_bytes if entry.turn.is_complete else visible_size(entry.visible_turn)


def carried_size(turn: ConversationMessage) -> int:
    """Return the JSON bytes of a turn as it is carried to the next run and stored in the archive."""
    return len(to_json(turn.without_defaults()))


def visible_size(turn: ConversationMessage) -> int:
    """Return the JSON bytes of a turn as a client gets it: the gateway restores an answer by reference."""
    return len(turn.model_dump_json().encode()) + (turn.agent_message_blob.bytes if turn.agent_message_blob else 0)
