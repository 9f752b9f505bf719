"""The transcript over both session and archive (SES-15, API-1).

Every turn has a number, from 1. The archive has at least the turns 1 to `archived_count`, the session has the turns
after them, and a session drops a turn only once the archive has it. A page is read from the session first, in one query
with both numbers, and then filled from the archive with the turns before its oldest one. So no turn is missing or
duplicated, whatever is archived meanwhile.

A page is about 1 MB of what is really sent: answers by reference and archived steps are restored first, then the page
is cut to as many of its newest turns as fit. The newest turn is always sent, whole, however long it is.

While the archive is down, a page contains what the session itself has, and the link to the page before it; a page fails
only if the session has nothing of it.
"""

from collections.abc import Sequence
from itertools import count

from turnkeeper.api.history.archived_turns import missing_turns_error, turns_before, with_archived_steps
from turnkeeper.api.history.text_restorer import TextRestorer
from turnkeeper.api.problems import ProblemError, problem
from turnkeeper.api.store_calls import read_store, seconds_from_now
from turnkeeper.api.temporal.deletions import used_id_error
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.messages import StateRequest, UpdatesRequest
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationState
from turnkeeper.models.transcript.transcript import visible_size
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.stores import Stores

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
