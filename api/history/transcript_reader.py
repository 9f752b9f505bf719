"""Turns from both session and archive: as the transcript (SES-15, API-1), and as replay text (CTX-12, CTX-13).

Every turn has a number, from 1. The archive has at least the turns 1 to `archived_count`, the session has the turns
after them, and a session drops a turn only once the archive has it. A page is read from the session first, in one query
with both numbers, and then filled from the archive with the turns before its oldest one. So no turn is missing or
duplicated, whatever is archived meanwhile.

A page is about 1 MB of what is really sent: answers by reference and archived steps are restored first, then the page
is cut to as many of its newest turns as fit. The newest turn is always sent, whole, however long it is.

While the archive is down, a page contains what the session itself has, and the link to the page before it; a page fails
only if the session has nothing of it.

**Large texts.** A turn whose answer is stored by reference is sent to all watching clients at the same moment. The text
of a hash never changes, so callers that need it while it is being read share that read, and the latest answers are
cached. Turns without references don't touch the store.

While the store is down or slow, clients get an excerpt. Watching clients get the whole answer later (`live/feed.py`).

**Replay text.** One query to the session returns the turns that it has and the number of events in HISTORY. Anything
beyond that is read from the archive, newest first: early steps of long turns, then older turns. Finally large texts are
restored, but only of the steps that are shown. So the cost depends on what is shown.

While the archive is down, the text contains what there is and says what it lacks: HISTORY shows fewer messages than
there are, a thought counts the steps that CURRENT omits, and an excerpt is marked as one.
"""

from collections.abc import Awaitable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from turnkeeper.api.coalescer import Coalescer
from turnkeeper.api.problems import ProblemError, problem
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.api.temporal.temporal_calls import used_id_error
from turnkeeper.api.timeouts import read_store, seconds_from_now
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.legible import with_legible_args
from turnkeeper.models.replay_text.turns import ReplayTurns, count_events, with_newest_events
from turnkeeper.models.session.messages import ReplayRequest, StateRequest, UpdatesRequest
from turnkeeper.models.transcript.conversation import (
    ConversationMessage,
    ConversationState,
    ConversationUpdate,
    ReasoningTrajectory,
)
from turnkeeper.models.transcript.large_texts import refs_in, resolve_answer, resolve_turn
from turnkeeper.models.transcript.transcript import carried_size, visible_size
from turnkeeper.stores.archive import MISSING_TURNS, Archive
from turnkeeper.stores.blobs import Blobs, RecentTexts
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.stores import Stores


async def turns_before(
    archive: Archive, owner: WorkflowId, number: int, *, limit: int | None, max_bytes: int, until: float
) -> list[ConversationMessage]:
    """Return the turns just before `number`, oldest first, at least one. Raises `StoreUnavailableError`."""
    page = archive.page(owner, before=number, limit=limit, max_bytes=max_bytes)
    rows = await read_store(page, until=until)
    if not rows or [row.number for row in rows] != list(range(number - len(rows), number)):
        raise missing_turns_error()
    return [row.turn for row in rows]


async def with_archived_steps(
    archive: Archive, owner: WorkflowId, number: int, turn: ConversationMessage, *, until: float
) -> ConversationMessage:
    """Return turn `number` with its archived steps. They stay omitted if the archive can't be read."""
    if not turn.steps_omitted:
        return turn
    try:
        early_steps = await read_store(archive.steps(owner, number, count=turn.steps_omitted), until=until)
    except StoreUnavailableError:
        return turn
    if len(early_steps) != turn.steps_omitted:
        return turn
    steps = ReasoningTrajectory(steps=[*early_steps, *turn.steps])
    return turn.model_copy(update={"reasoning_trajectory": steps, "steps_omitted": 0})


def missing_turns_error() -> StoreUnavailableError:
    """Return the error of an archive that is not the one that the session uses, such as an empty new one."""
    return StoreUnavailableError(MISSING_TURNS)


CACHED_CHARS = 8 * 1024 * 1024


class TextRestorer:
    """Restores large texts. A text that can't be read by `until` stays an excerpt.

    `cached_chars`: how many characters of the latest answers are cached.
    """

    def __init__(self, blobs: Blobs, *, cached_chars: int = CACHED_CHARS) -> None:
        self._blobs = blobs
        self._cached_answers = RecentTexts[str](max_chars=cached_chars)
        self._reads = Coalescer[tuple[str, frozenset[str]], dict[str, str]]()

    async def restore_answers(
        self, owner: WorkflowId, turns: Sequence[ConversationMessage], *, until: float
    ) -> list[ConversationMessage]:
        """Return the turns with whole answers and legible arguments (AGT-8). Texts in steps stay excerpts."""
        hashes = frozenset(turn.agent_message_blob.hash for turn in turns if turn.agent_message_blob)
        texts = self._cached_answers.find(owner, hashes)
        if missing := frozenset(hashes - texts.keys()):
            reading = self._reads.run((owner, missing), lambda: self._read_answers(owner, missing))
            texts |= await _texts_in_time(reading, until)
        return [with_legible_args(resolve_answer(turn, texts)) for turn in turns]

    async def restore_update(
        self, owner: WorkflowId, update: ConversationUpdate, *, until: float
    ) -> ConversationUpdate:
        turns = await self.restore_answers(owner, [*update.new_messages, *update.updated_messages], until=until)
        new = len(update.new_messages)
        return update.model_copy(update={"new_messages": turns[:new], "updated_messages": turns[new:]})

    async def restore_texts(
        self, owner: WorkflowId, turns: Sequence[ConversationMessage], hashes: Collection[str], *, until: float
    ) -> list[ConversationMessage]:
        """Return the turns with the texts of `hashes`, also in steps. Nothing is cached."""
        texts = await self.read_texts(owner, hashes, until=until)
        return [resolve_turn(turn, texts) for turn in turns]

    async def read_texts(self, owner: WorkflowId, hashes: Collection[str], *, until: float) -> dict[str, str]:
        """Return the texts of `hashes` that can be read. Nothing is cached."""
        return await _texts_in_time(self._blobs.get(owner, hashes), until) if hashes else {}

    async def _read_answers(self, owner: WorkflowId, hashes: frozenset[str]) -> dict[str, str]:
        texts = await self._blobs.get(owner, hashes)
        self._cached_answers.remember(owner, texts)
        return texts


async def _texts_in_time(reading: Awaitable[dict[str, str]], until: float) -> dict[str, str]:
    try:
        return await read_store(reading, until=until)
    except StoreUnavailableError:
        return {}


PAGE_BYTES = 1_000_000
"""Approximate limit of a page's JSON."""


class TranscriptReader:
    """Reads the transcripts of sessions. Methods raise `ProblemError`, and some `StoreUnavailableError`."""

    def __init__(self, reader: SessionReader, stores: Stores, texts: TextRestorer) -> None:
        self._reader = reader
        self._archive = stores.archive
        self._stores = stores
        self._texts = texts

    async def page(self, workflow_id: WorkflowId, *, before: str | None, limit: int | None) -> ConversationState:
        """Return the newest turns (before the turn `before`), oldest first: at most `limit`, and about 1 MB.

        Raises `StoreUnavailableError` if only the archive has them.
        """
        until = seconds_from_now(self._reader.timeouts.request)
        state, first_in_session = await self._page_in_session(workflow_id, before, limit, until)
        older = await self._older(workflow_id, state, first_in_session, limit, until)
        turns = await self._texts.restore_answers(workflow_id, [*older, *state.messages], until=until)
        after = first_in_session + len(state.messages)
        page = await self._newest_that_fit(workflow_id, turns, after, until)
        first = after - len(page)
        numbers = {"first_number": first if page else None, "has_more": bool(page) and first > 1}
        return state.model_copy(update={"messages": page, **numbers})

    async def _page_in_session(
        self, workflow_id: WorkflowId, before: str | None, limit: int | None, until: float
    ) -> tuple[ConversationState, int]:
        """Return the turns of a page that are in the session, and the number of the first (or of the one after)."""
        request = StateRequest(before=before, limit=limit)
        state = await self._reader.page_in_session(workflow_id, request, may_be_archived=True)
        if state is not None:
            return state, state.first_number or state.archived_count + 1
        state = await self._reader.state(workflow_id, StateRequest(limit=0), may_be_archived=True)
        return state, await self._number_in_archive(workflow_id, before or "", state.archived_count, until)

    async def _number_in_archive(self, workflow_id: WorkflowId, turn_id: str, archived_count: int, until: float) -> int:
        number = await read_store(self._archive.number_of(workflow_id, turn_id), until=until)
        # Turns beyond the session's own archive belong to an older session with the same id.
        if number is not None and number <= archived_count:
            return number
        if await read_store(self._archive.count(workflow_id), until=until) < archived_count:
            raise missing_turns_error()
        raise problem("unknown-turn", turn_id=turn_id)

    async def _older(
        self, workflow_id: WorkflowId, state: ConversationState, first_in_session: int, limit: int | None, until: float
    ) -> list[ConversationMessage]:
        """Return archived turns just before those of `state`, as many as may fit in the page."""
        max_turns = None if limit is None else limit - len(state.messages)
        if not 1 < first_in_session <= state.archived_count + 1 or max_turns == 0:
            return []
        bytes_left = PAGE_BYTES - sum(map(visible_size, state.messages))
        if bytes_left <= 0:
            return []
        try:
            return await turns_before(
                self._archive, workflow_id, first_in_session, limit=max_turns, max_bytes=bytes_left, until=until
            )
        except StoreUnavailableError:
            if not state.messages:
                raise
            return []

    async def _newest_that_fit(
        self, workflow_id: WorkflowId, turns: Sequence[ConversationMessage], after: int, until: float
    ) -> list[ConversationMessage]:
        """Return the newest of `turns` with all their steps, as many as fit in a page, but at least one.

        The last of `turns` has the number `after` - 1.
        """
        page, bytes_left = list[ConversationMessage](), PAGE_BYTES
        for number, turn in zip(count(after - 1, -1), reversed(turns), strict=False):
            whole = turn
            if turn.is_complete:
                whole = await with_archived_steps(self._archive, workflow_id, number, turn, until=until)
            bytes_left -= len(whole.model_dump_json().encode())
            if page and bytes_left < 0:
                break
            page.append(whole)
        return page[::-1]

    async def raise_if_id_was_used(self, workflow_id: WorkflowId) -> None:
        """Raise 409 if archive or index have a session with the id that Temporal no longer has.

        Temporal retains ended sessions for a limited time, but ids are never reused (API-1).
        """
        try:
            was_used = await read_store(
                self._stores.has(workflow_id), until=seconds_from_now(self._reader.timeouts.restore)
            )
        except StoreUnavailableError:
            return  # if Temporal still has the session, it rejects the id itself
        if was_used:
            try:
                await self._reader.describe(workflow_id)
            except ProblemError as problem:
                if problem.problem.status != 404:
                    raise
                raise await used_id_error(self._reader.client, workflow_id, self._reader.timeouts) from None

    async def failed_turn(self, workflow_id: WorkflowId, message_id: str | None) -> ConversationMessage:
        """Return a failed turn: the given one, or the newest in the session.

        Raises 409 if it did not fail or there is none, 404 if there is no such turn.
        """
        if message_id is None:
            return await self._newest_failed_turn(workflow_id)
        update = await self._reader.updates(workflow_id, UpdatesRequest(last_seen_message_id=message_id, limit=1))
        turns = update.updated_messages
        if update.reset:
            until = seconds_from_now(self._reader.timeouts.request)
            archived_turn = await read_store(self._archive.find(workflow_id, message_id), until=until)
            if archived_turn is None:
                raise problem("unknown-turn", turn_id=message_id)
            turns = [archived_turn.turn]
        if not turns or not turns[0].is_error:
            raise problem("not-failed", turn_id=message_id)
        return turns[0]

    async def _newest_failed_turn(self, workflow_id: WorkflowId) -> ConversationMessage:
        page = await self._reader.page_in_session(workflow_id, StateRequest())
        while page and page.messages:
            for turn in reversed(page.messages):
                if turn.is_error:
                    return turn
            page = await self._reader.page_in_session(workflow_id, StateRequest(before=page.messages[0].id))
        raise problem("not-failed", "The session has no failed turn.")


HISTORY_BYTES = 10_000_000
"""Approximate limit of HISTORY. At least one turn is shown, however long it is."""


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
