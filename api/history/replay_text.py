"""The whole replay text of a session, from both places where its turns are (CTX-12, CTX-13).

Theory of operation. The session says in one breath which turns it holds, and how many events HISTORY has. What is
wanted beyond that is read from the archive, newest first: early steps of long turns, then older turns. At last, large
texts are restored, of those steps only that are shown. So an answer costs what it shows.

The archive may be down. Then the text has what there is, and tells what it lacks: HISTORY shows fewer messages than
there are, a thought counts the steps that CURRENT leaves out, and an excerpt says that it is one.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from turnkeeper.api.history.archived_turns import turns_before, with_archived_steps
from turnkeeper.api.history.text_restorer import TextRestorer
from turnkeeper.api.session_ids import workflow_id
from turnkeeper.api.store_calls import REQUEST_SECONDS, seconds_from_now
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.models.replay_text.turns import ReplayTurns, count_events, with_newest_events
from turnkeeper.models.session.session import ReplayRequest
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.large_texts import refs_in
from turnkeeper.models.transcript.transcript import carried_size
from turnkeeper.stores.archive import Archive
from turnkeeper.stores.database.database import StoreUnavailableError

HISTORY_BYTES = 10_000_000
"""About the most bytes of HISTORY; one turn at least is shown, however long it is."""

PAGE_BYTES = 1_000_000
"""Most bytes of the turns that are read from the archive at once."""

ALL = 2**53
"""More events than any session has."""


@dataclass(frozen=True)
class ReplayText:
    """A replay text. `is_whole`: it has all that was asked for."""

    text: str
    is_whole: bool


class ReplayTextReader:
    """The replay texts of all sessions. Methods raise `ProblemError`."""

    def __init__(self, reader: SessionReader, archive: Archive, texts: TextRestorer) -> None:
        self._reader = reader
        self._archive = archive
        self._texts = texts

    async def text(self, session_id: str, *, max_history: int) -> ReplayText:
        """Return CURRENT whole, and the last `max_history` events of HISTORY (0: all of them, or about 10 MB)."""
        until, max_events = seconds_from_now(REQUEST_SECONDS), max_history or ALL
        in_session = await self._reader.replay_turns(session_id, ReplayRequest(max_history=max_history))
        replay = await self._with_archive(workflow_id(session_id), in_session, max_events, until)
        return ReplayText(replay.text(max_history), is_whole=_is_whole(replay, max_events))

    async def _with_archive(self, owner: str, in_session: ReplayTurns, max_events: int, until: float) -> ReplayTurns:
        """Return the turns that are shown, with all that the stores have of them."""
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
    """HISTORY, read from its newest turn back until it has the events that are wanted."""

    def __init__(self, archive: Archive, owner: str, after: int, max_events: int, until: float) -> None:
        """Read the last `max_events` events before the turn number `after`."""
        self._archive = archive
        self._owner = owner
        self._events_left = max_events
        self._until = until
        self._bytes_left = HISTORY_BYTES
        self.newest_first: list[ConversationMessage] = []
        self.first_number = after
        """The number of the earliest turn so far."""

    async def read_back_from(self, in_session: Sequence[ConversationMessage]) -> None:
        """Read the turns that the session holds, and before them those of the archive, as far as it can be read."""
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
        """There is enough, or what comes before can't be read."""
        has_gap = bool(self.newest_first) and self.newest_first[-1].steps_omitted > 0
        return self._events_left <= 0 or self._bytes_left <= 0 or has_gap

    async def _add_turns(self, turns: Sequence[ConversationMessage]) -> None:
        for turn in reversed(turns):
            if self._is_done:
                return
            self.first_number -= 1
            part = await self._needed_part(turn)
            self._events_left -= count_events(part)
            texts = {ref.hash: ref.bytes for ref in refs_in(part)}  # an answer is its last step's text too
            self._bytes_left -= carried_size(part) + sum(texts.values())
            self.newest_first.append(part)

    async def _needed_part(self, turn: ConversationMessage) -> ConversationMessage:
        # Its prompt comes before the steps that are omitted.
        if turn.steps_omitted and count_events(turn) - 1 < self._events_left:
            turn = await with_archived_steps(self._archive, self._owner, self.first_number, turn, until=self._until)
        return with_newest_events(turn, self._events_left)


def _is_whole(replay: ReplayTurns, max_events: int) -> bool:
    has_excerpts = any(True for turn in replay.turns for _ in refs_in(turn))
    has_gap = replay.current is not None and replay.current.steps_omitted > 0
    return not has_excerpts and not has_gap and len(replay.history) >= min(max_events, replay.total_events)
