"""The turns a session holds, and what of them a client is shown (SES-2, SES-11, SES-12).

Theory of operation. Every change of the conversation raises the session's revision, and a turn carries the revision
of its last change. Turns are recorded one after the other and an ended one never changes, so revisions grow along the
transcript: what changed since a revision is a tail, found by walking back from the end. Both answers therefore cost
what they contain, not what the conversation holds.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic_core import to_json

from models.conversation import ConversationMessage
from models.limits import PAGE_BYTES


@dataclass(frozen=True)
class Updates:
    """The part of `ConversationUpdate` that follows from the turns alone."""

    new: list[ConversationMessage]
    updated: list[ConversationMessage]
    last_seen: str | None
    reset: bool
    has_more: bool


class Transcript:
    """All turns still held in workflow state, oldest first."""

    def __init__(self, turns: Iterable[ConversationMessage] = ()) -> None:
        """Hold `turns`, oldest first."""
        self._turns = list(turns)
        self._position = {turn.id: index for index, turn in enumerate(self._turns)}
        self._sizes = [_size(turn) for turn in self._turns]
        self.carried_bytes = sum(_carried_size(turn) for turn in self._turns if turn.is_complete)
        """JSON bytes of the ended turns as they are carried to the next run (SES-15)."""

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._position

    @property
    def turns(self) -> list[ConversationMessage]:
        """The turns held, oldest first."""
        return list(self._turns)

    @property
    def newest(self) -> ConversationMessage | None:
        """The turn recorded last: the only one that can still change."""
        return self._turns[-1] if self._turns else None

    def get(self, message_id: str) -> ConversationMessage:
        """Return the turn. Raises `KeyError` where it is not held."""
        return self._turns[self._position[message_id]]

    def record(self, turn: ConversationMessage) -> None:
        """Append a turn whose processing starts now (SES-2)."""
        self._position[turn.id] = len(self._turns)
        self._turns.append(turn)
        self._sizes.append(_size(turn))

    def replace_newest(self, turn: ConversationMessage) -> None:
        """Put the next version of the newest turn in its place."""
        self._turns[-1] = turn
        if turn.is_complete:
            self._sizes[-1] = _size(turn)
            self.carried_bytes += _carried_size(turn)

    def page(self, *, before: str | None = None, limit: int | None = None) -> tuple[list[ConversationMessage], bool]:
        """Return the newest turns (before the turn `before`) that fit in about 1 MB, and whether older ones are held.

        Raises `KeyError` where `before` is not held.
        """
        end = len(self._turns) if before is None else self._position[before]
        start, room = end, PAGE_BYTES
        while start > 0 and (limit is None or end - start < limit):
            room -= self._bytes_of(start - 1)
            if room < 0 and start < end:
                break
            start -= 1
        return self._turns[start:end], start > 0

    def updates(
        self, *, revision: int, last_seen: str | None = None, since: int | None = None, limit: int | None = None
    ) -> Updates:
        """Answer SES-12 for a client that has seen `last_seen` at revision `since`; `revision` is the session's now."""
        unknown = last_seen is not None and last_seen not in self._position
        reset = unknown or (since is not None and since > revision)
        seen = -1 if reset or last_seen is None else self._position[last_seen]
        updated = self._changed_up_to(seen, since) if seen >= 0 else []
        new = self._next_page(seen + 1, limit)
        newest_shown = new[-1].id if new else (None if reset else last_seen)
        return Updates(
            new=new,
            updated=updated,
            last_seen=newest_shown,
            reset=reset,
            has_more=seen + 1 + len(new) < len(self._turns),
        )

    def _changed_up_to(self, seen: int, since: int | None) -> list[ConversationMessage]:
        if since is None:
            turn = self._turns[seen]
            return [turn] if turn.changed_since_recorded else []
        first = seen + 1
        while first > 0 and self._turns[first - 1].revision > since:
            first -= 1
        return self._turns[first : seen + 1]

    def _next_page(self, first: int, limit: int | None) -> list[ConversationMessage]:
        end, room = first, PAGE_BYTES
        while end < len(self._turns) and (limit is None or end - first < limit):
            room -= self._bytes_of(end)
            if room < 0 and end > first:
                break
            end += 1
        return self._turns[first:end]

    def _bytes_of(self, index: int) -> int:
        turn = self._turns[index]
        return self._sizes[index] if turn.is_complete else _size(turn)


def _size(turn: ConversationMessage) -> int:
    return len(turn.model_dump_json().encode())


def _carried_size(turn: ConversationMessage) -> int:
    return len(to_json(turn.without_defaults()))
