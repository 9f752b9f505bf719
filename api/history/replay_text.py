"""The replay text of a session, from both session and archive (CTX-12, CTX-13).

One query to the session returns the turns that it has and the number of events in HISTORY. Anything beyond that is read
from the archive, newest first: early steps of long turns, then older turns. Finally large texts are restored, but only
of the steps that are shown. So the cost depends on what is shown.

While the archive is down, the text contains what there is and says what it lacks: HISTORY shows fewer messages than
there are, a thought counts the steps that CURRENT omits, and an excerpt is marked as one.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from turnkeeper.api.history.archived_turns import turns_before, with_archived_steps
from turnkeeper.api.history.text_restorer import TextRestorer
from turnkeeper.api.store_calls import seconds_from_now
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.replay_text.turns import ReplayTurns, count_events, with_newest_events
from turnkeeper.models.session.messages import ReplayRequest
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.large_texts import refs_in
from turnkeeper.models.transcript.transcript import carried_size
from turnkeeper.stores.archive import Archive
from turnkeeper.stores.database.database import StoreUnavailableError

HISTORY_BYTES = 10_000_000
"""Approximate limit of HISTORY. At least one turn is shown, however long it is."""

PAGE_BYTES = 1_000_000
"""Limit of one read of turns from the archive."""

ALL = 2**53
"""More events than any session has."""


@dataclass(frozen=True)
class ReplayText:
    """A replay text. `is_whole`: nothing that was requested is missing."""

    text: str
    is_whole: bool


class ReplayTextReader:
    """Reads the replay texts of sessions. Methods raise `ProblemError`."""

    def __init__(self, reader: SessionReader, archive: Archive, texts: TextRestorer) -> None:
        self._reader = reader
        self._archive = archive
        self._texts = texts

    async def text(self, workflow_id: WorkflowId, *, max_history: int) -> ReplayText:
        """Return the whole CURRENT and the last `max_history` events of HISTORY (0: all, up to about 10 MB)."""
        until, max_events = seconds_from_now(self._reader.timeouts.request), max_history or ALL
        in_session = await self._reader.replay_turns(workflow_id, ReplayRequest(max_history=max_history))
        replay = await self._with_archive(workflow_id, in_session, max_events, until)
        return ReplayText(replay.text(max_history), is_whole=_is_whole(replay, max_events))

    async def _with_archive(
        self, owner: WorkflowId, in_session: ReplayTurns, max_events: int, until: float
    ) -> ReplayTurns:
        """Return the turns to show, completed from the stores."""
        past, unfinished = in_session.past_turns, in_session.unfinished_turn
        reading = _HistoryReader(self._archive, owner, in_session.first_number + len(past), max_events, until)
        newest = unfinished and await with_archived_steps(
            self._archive, owner, reading.first_number, unfinished, until=until
        )
        await reading.read_back_from(past)
        turns = [*reversed(reading.newest_first), *([newest] if newest else [])]
        hashes = {ref.hash for turn in turns for ref in refs_in(turn)}
        turns = await self._texts.restore_texts(owner, turns, hashes, until=until)
        return in_session.model_copy(update={"turns": turns, "first_number": reading.first_number})


class _HistoryReader:
    """Reads HISTORY backwards, until it has the last `max_events` events before the turn number `after`."""

    def __init__(self, archive: Archive, owner: WorkflowId, after: int, max_events: int, until: float) -> None:
        self._archive = archive
        self._owner = owner
        self._events_left = max_events
        self._until = until
        self._bytes_left = HISTORY_BYTES
        self.newest_first: list[ConversationMessage] = []
        self.first_number = after
        """The number of the earliest turn so far."""

    async def read_back_from(self, in_session: Sequence[ConversationMessage]) -> None:
        """Read the turns in the session, then older ones from the archive as far as it can be read."""
        await self._add_turns(in_session)
        with suppress(StoreUnavailableError):
            while self.first_number > 1 and not self._is_done:
                await self._add_turns(
                    await turns_before(
                        self._archive,
                        self._owner,
                        self.first_number,
                        limit=self._events_left,
                        max_bytes=PAGE_BYTES,
                        until=self._until,
                    )
                )

    @property
    def _is_done(self) -> bool:
        """Return whether there are enough events, or earlier ones can't be read."""
        has_gap = bool(self.newest_first) and self.newest_first[-1].steps_omitted > 0
        return self._events_left <= 0 or self._bytes_left <= 0 or has_gap

    async def _add_turns(self, turns: Sequence[ConversationMessage]) -> None:
        for turn in reversed(turns):
            if self._is_done:
                return
            self.first_number -= 1
            part = await self._needed_part(turn)
            self._events_left -= count_events(part)
            texts = {ref.hash: ref.bytes for ref in refs_in(part)}  # by hash: an answer is also its last step's text
            self._bytes_left -= carried_size(part) + sum(texts.values())
            self.newest_first.append(part)

    async def _needed_part(self, turn: ConversationMessage) -> ConversationMessage:
        # The prompt is an event before the omitted steps.
        if turn.steps_omitted and count_events(turn) - 1 < self._events_left:
            turn = await with_archived_steps(self._archive, self._owner, self.first_number, turn, until=self._until)
        return with_newest_events(turn, self._events_left)


def _is_whole(replay: ReplayTurns, max_events: int) -> bool:
    has_excerpts = any(True for turn in replay.turns for _ in refs_in(turn))
    has_gap = replay.current is not None and replay.current.steps_omitted > 0
    return not has_excerpts and not has_gap and len(replay.history) >= min(max_events, replay.total_events)
