"""One transcript of both places: what a session holds, and what it has moved to the archive (SES-15, API-1).

Theory of operation. Every turn has a number, from 1. The archive has at least the turns 1 to `archived_count`, the
session holds those after them, and a session drops a turn only once the archive has it. So a page is read from the
session first, which says both numbers in one breath, and filled up from the archive with what comes before its oldest
turn: whatever is archived meanwhile, no turn is missing and none is there twice.

A page is about 1 MB of what is really sent: answers that are kept by reference and steps that are kept in the archive
are restored first, then the page is cut to as many of its newest turns as fit. The newest one is always sent, whole,
however long it is.

The archive may be down. What the session itself holds is shown all the same, and the link to what comes before it;
only a page of which the session holds nothing fails.
"""

import asyncio
from collections.abc import Sequence
from itertools import count

from turnkeeper.api import problems
from turnkeeper.api.history.archived import lost, turns_before, with_moved_steps
from turnkeeper.api.history.text_restorer import TextRestorer
from turnkeeper.api.problems import ProblemError
from turnkeeper.api.session_ids import workflow_id
from turnkeeper.api.store_calls import ANSWERS_SECONDS, REQUEST_SECONDS, read_store, seconds_from_now
from turnkeeper.api.temporal.receipts import Receipt
from turnkeeper.api.temporal.session_reader import RECEIPT_SECONDS, SessionReader
from turnkeeper.models.session.session import StateRequest, UpdatesRequest
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationState
from turnkeeper.models.transcript.transcript import visible_size
from turnkeeper.stores.archive import Archive
from turnkeeper.stores.database.database import StoreUnavailableError

PAGE_BYTES = 1_000_000
"""About the most JSON bytes of a page."""

AGAIN_SECONDS = 1.0
"""Who waits for a turn asks again after this time where nobody could answer."""


class Transcripts:
    """The transcripts of all sessions. Methods raise `ProblemError`, and `StoreUnavailableError` where it is said."""

    def __init__(self, reader: SessionReader, archive: Archive, texts: TextRestorer) -> None:
        self._reader = reader
        self._archive = archive
        self._texts = texts

    async def page(self, session_id: str, *, before: str | None, limit: int | None) -> ConversationState:
        """Return the newest turns (before the turn `before`), oldest first: `limit` at most, and about 1 MB.

        Raises `StoreUnavailableError` where only the archive has them.
        """
        until = seconds_from_now(REQUEST_SECONDS)
        state, first_held = await self._held(session_id, before, limit, until)
        older = await self._older(session_id, state, first_held, limit, until)
        turns = await self._texts.restore_answers(workflow_id(session_id), [*older, *state.messages], until=until)
        after = first_held + len(state.messages)
        shown = await self._newest_that_fit(session_id, turns, after, until)
        first = after - len(shown)
        numbers = {"first_number": first if shown else None, "has_more": bool(shown) and first > 1}
        return state.model_copy(update={"messages": shown, **numbers})

    async def _held(
        self, session_id: str, before: str | None, limit: int | None, until: float
    ) -> tuple[ConversationState, int]:
        """Return what the session holds of a page, and the number of its first turn; without any, of the one after."""
        state = await self._reader.held_page(session_id, StateRequest(before=before, limit=limit))
        if state is not None:
            return state, state.first_number or state.archived_count + 1
        state = await self._reader.state(session_id, StateRequest(limit=0))
        return state, await self._number_in_archive(session_id, before or "", state.archived_count, until)

    async def _number_in_archive(self, session_id: str, turn_id: str, archived: int, until: float) -> int:
        number = await read_store(self._archive.number_of(workflow_id(session_id), turn_id), until=until)
        # Beyond what the session has archived are only turns of an older session of that id.
        if number is not None and number <= archived:
            return number
        if await read_store(self._archive.count(workflow_id(session_id)), until=until) < archived:
            raise lost()
        raise problems.unknown_turn(turn_id)

    async def _older(
        self, session_id: str, state: ConversationState, first_held: int, limit: int | None, until: float
    ) -> list[ConversationMessage]:
        """Return turns that the archive has just before those of `state`: as many as may find room beside them."""
        most = None if limit is None else limit - len(state.messages)
        if not 1 < first_held <= state.archived_count + 1 or most == 0:
            return []
        room = PAGE_BYTES - sum(map(visible_size, state.messages))
        if room <= 0:
            return []
        owner = workflow_id(session_id)
        try:
            return await turns_before(self._archive, owner, first_held, limit=most, max_bytes=room, until=until)
        except StoreUnavailableError:
            if not state.messages:
                raise
            return []

    async def _newest_that_fit(
        self, session_id: str, turns: Sequence[ConversationMessage], after: int, until: float
    ) -> list[ConversationMessage]:
        """Return of `turns`, numbered up to `after`, as many of the newest, with all their steps, as fit in a page.

        One at least.
        """
        shown, room = list[ConversationMessage](), PAGE_BYTES
        for number, turn in zip(count(after - 1, -1), reversed(turns), strict=False):
            whole = turn
            if turn.is_complete:
                whole = await with_moved_steps(self._archive, workflow_id(session_id), number, turn, until=until)
            room -= len(whole.model_dump_json().encode())
            if shown and room < 0:
                break
            shown.append(whole)
        return shown[::-1]

    async def refuse_forgotten(self, session_id: str) -> None:
        """Pass an id that a session may be started with. Raises 409 where the archive has one that Temporal forgot.

        Temporal keeps ended sessions for a while only; ids are never used again (API-1).
        """
        try:
            archived = await read_store(
                self._archive.count(workflow_id(session_id)), until=seconds_from_now(ANSWERS_SECONDS)
            )
        except StoreUnavailableError:
            return  # a session that Temporal remembers is refused by Temporal itself
        if archived:
            try:
                await self._reader.describe(session_id)
            except problems.ProblemError as problem:
                raise problems.id_was_used(session_id) if problem.problem.status == 404 else problem from None

    async def ended_turn(self, session_id: str, message_id: str) -> ConversationMessage | None:
        receipt = await self._reader.receipt(session_id, message_id)
        turn = await self._turn_of(session_id, receipt)
        return turn if turn and turn.is_complete else None

    async def awaited_turn(
        self, session_id: str, message_id: str, *, seconds: float
    ) -> tuple[Receipt, ConversationMessage | None]:
        """Wait about `seconds` for the turn of a prompt to end; without it, return where the prompt stands.

        While no worker answers it goes on waiting: the prompt is safe. Raises what the session refused the prompt with,
        also if it is withdrawn or discarded meanwhile.
        """
        clock = asyncio.get_running_loop().time
        until, receipt = clock() + seconds, Receipt(message_id)
        async with self._reader.watches.watching(workflow_id(session_id)) as watch:
            while True:
                version = watch.version
                last = max(until, clock() + RECEIPT_SECONDS)
                found = await self._turn_in_time(session_id, message_id, until=last)
                if found and found[1] and found[1].is_complete:
                    return found
                receipt = found[0] if found else receipt
                # A change that nobody answered for is over, and no other may come: then the session is asked again.
                can_wait = found is not None and not watch.is_over
                again_at = until if can_wait else min(until, clock() + AGAIN_SECONDS)
                # A session that changes all the time must not hold its callers beyond theirs.
                if clock() >= until or (not await watch.wait_beyond(version, until=again_at) and clock() >= until):
                    return receipt, None

    async def _turn_in_time(
        self, session_id: str, message_id: str, *, until: float
    ) -> tuple[Receipt, ConversationMessage | None] | None:
        """Return where a prompt stands, and its turn once there is one; `None` where that can't be said in time."""
        try:
            async with asyncio.timeout_at(until):
                receipt = await self._reader.receipt(session_id, message_id)
                turn = await self._turn_of(session_id, receipt)
        except TimeoutError:
            return None
        except ProblemError as problem:
            if problem.problem.status not in (503, 504):
                raise
            return None
        return (receipt, turn) if turn or receipt.position else None

    async def failed_turn(self, session_id: str, message_id: str | None) -> ConversationMessage:
        """Return a turn that ended without an answer: that one, or the newest that the session holds.

        Raises 409 where it did not fail or there is none, 404 where there is no such turn.
        """
        if message_id is None:
            return await self._newest_failed_turn(session_id)
        update = await self._reader.updates(session_id, UpdatesRequest(last_seen_message_id=message_id, limit=1))
        turns = update.updated_messages
        if update.reset:
            until = seconds_from_now(REQUEST_SECONDS)
            found = await read_store(self._archive.find(workflow_id(session_id), message_id), until=until)
            if found is None:
                raise problems.unknown_turn(message_id)
            turns = [found.turn]
        if not turns or not turns[0].is_error:
            raise problems.not_failed(f"Turn {message_id!r} has not failed.")
        return turns[0]

    async def _newest_failed_turn(self, session_id: str) -> ConversationMessage:
        page = await self._reader.held_page(session_id, StateRequest())
        while page and page.messages:
            for turn in reversed(page.messages):
                if turn.is_error:
                    return turn
            page = await self._reader.held_page(session_id, StateRequest(before=page.messages[0].id))
        raise problems.not_failed("The session holds no failed turn.")

    async def _turn_of(self, session_id: str, receipt: Receipt) -> ConversationMessage | None:
        if receipt.position != 0:
            return None
        turn_id = (receipt.fate and receipt.fate.turn_id) or receipt.message_id
        update = await self._reader.updates(session_id, UpdatesRequest(last_seen_message_id=turn_id, limit=1))
        until = seconds_from_now(ANSWERS_SECONDS)
        is_gone = update.reset and receipt.fate is not None
        found = await self._archived_turn(session_id, turn_id, until) if is_gone else update.updated_messages
        whole = await self._texts.restore_answers(workflow_id(session_id), found, until=until)
        return whole[0] if whole else None

    async def _archived_turn(self, session_id: str, turn_id: str, until: float) -> list[ConversationMessage]:
        """Return, in a list, a turn that was moved before those who wait for it were told; none if it can't be read."""
        try:
            found = await read_store(self._archive.find(workflow_id(session_id), turn_id), until=until)
        except StoreUnavailableError:
            return []
        return [found.turn] if found else []
