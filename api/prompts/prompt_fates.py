"""What became of any prompt that was ever accepted, wherever that is known (SES-6).

Theory of operation. The session knows what waits and the last fates. What it no longer remembers is in the archive: a
turn as a turn, any other fate by the prompt's id; either is put there before the session forgets it, so the session is
asked first. What Temporal has and no workflow task has taken is at the end of the history. So without a worker an
answer is given as far as archive and history have one. A rejection in the archive is none before the session has
answered: the id may have been sent again, and become a turn that the archive does not have yet.
"""

import asyncio
from contextlib import suppress

from turnkeeper.api import problems
from turnkeeper.api.problems import ProblemError
from turnkeeper.api.session_ids import workflow_id
from turnkeeper.api.store_calls import RESTORE_SECONDS, read_store, seconds_from_now
from turnkeeper.api.temporal.receipts import position_in
from turnkeeper.api.temporal.session_reader import RECEIPT_SECONDS, SessionReader
from turnkeeper.models.answers import PromptFate
from turnkeeper.models.session.queue.prompts import Fate
from turnkeeper.models.session.session import UpdatesRequest
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.stores import Stores

TAIL_PROMPTS = 10_000
TAIL_BYTES = 50_000_000
TAIL_SECONDS = 0.7

CLOSED = "The session was closed before it was processed."


class PromptFates:
    """The fates of the prompts of all sessions. Methods raise `ProblemError`."""

    def __init__(self, reader: SessionReader, stores: Stores) -> None:
        self._reader = reader
        self._stores = stores

    async def fate_of(self, session_id: str, message_id: str) -> PromptFate:
        """Return what became of a prompt, or that it waits.

        Raises 404 where there is no such prompt, 504 where only a worker could say and none answers, and
        `StoreUnavailableError` where only the archive could.
        """
        asking = asyncio.create_task(self._in_session(session_id, message_id))
        try:
            answered, _ = await asyncio.wait({asking}, timeout=RECEIPT_SECONDS)
            if not answered:
                with suppress(StoreUnavailableError):
                    if found := await self._elsewhere(session_id, message_id, is_last_word=False):
                        return found
            return await self._said(asking, session_id, message_id)
        finally:
            asking.cancel()

    async def _said(self, asking: "asyncio.Task[PromptFate | None]", session_id: str, message_id: str) -> PromptFate:
        """Return what the session says of a prompt, or what is known elsewhere once it has said that it knows nothing.

        A session that says nothing may have had the prompt moved meanwhile, or be forgotten by Temporal.
        """
        silence: ProblemError | None = None
        found: PromptFate | None = None
        try:
            found = await asking
        except ProblemError as problem:
            if problem.problem.status not in (404, 503, 504):
                raise
            if problem.problem.status == 404:
                await self._reader.raise_if_deleted(session_id)
            silence = problem
        is_last_word = silence is None or silence.problem.status == 404
        found = found or await self._elsewhere(session_id, message_id, is_last_word=is_last_word)
        if found is None:
            raise silence or problems.unknown_prompt(message_id)
        return found

    async def _in_session(self, session_id: str, message_id: str) -> PromptFate | None:
        """Return what the session knows of a prompt; `None` where it knows nothing."""
        result = await self._reader.queue_result(session_id, [message_id])
        view = result.view
        position = position_in(view, message_id)
        if position is not None:
            waits = result.closed is None
            return _waiting(session_id, message_id, position) if waits else _closed(session_id, message_id)
        if view.fates:
            return _decided(session_id, view.fates[0])
        update = await self._reader.updates(session_id, UpdatesRequest(last_seen_message_id=message_id, limit=1))
        return None if update.reset else _started(session_id, message_id)

    async def _elsewhere(self, session_id: str, message_id: str, *, is_last_word: bool) -> PromptFate | None:
        """Return what archive and history know of a prompt. Raises `StoreUnavailableError`.

        `is_last_word`: the session holds nothing of the prompt, or is forgotten. Otherwise a rejection is not final:
        the id may have been sent again, and only the session knows what became of it then.
        """
        archived, failure = None, None
        try:
            archived = await self.archived(session_id, message_id)
        except StoreUnavailableError as error:
            failure = error
        if archived is not None and archived.fate != "rejected":
            return archived
        if untaken := await self._in_history(session_id, message_id):
            return untaken
        if failure is not None:
            raise failure
        return archived if is_last_word else None

    async def archived(self, session_id: str, message_id: str) -> PromptFate | None:
        """Return what the archive knows of a prompt. Raises `StoreUnavailableError`."""
        until, owner = seconds_from_now(RESTORE_SECONDS), workflow_id(session_id)
        if await read_store(self._stores.archive.number_of(owner, message_id), until=until) is not None:
            return _started(session_id, message_id)
        fate = await read_store(self._stores.prompts.fate_of(owner, message_id), until=until)
        return None if fate is None else _decided(session_id, fate)

    async def _in_history(self, session_id: str, message_id: str) -> PromptFate | None:
        """Return that a prompt waits in the history; `None` where it does not, or where that can't be read in time."""
        try:
            tail = await self._reader.tails.read(
                session_id,
                max_prompts=TAIL_PROMPTS,
                max_bytes=TAIL_BYTES,
                seconds=TAIL_SECONDS,
                until_id=message_id,
            )
        except ProblemError:
            return None
        if message_id not in tail.sizes:
            return None
        return _closed(session_id, message_id) if tail.is_closed else _waiting(session_id, message_id, None)


def _waiting(session_id: str, message_id: str, position: int | None) -> PromptFate:
    return PromptFate(workflow_id=session_id, message_id=message_id, fate="waiting", position=position)


def _started(session_id: str, message_id: str) -> PromptFate:
    return PromptFate(workflow_id=session_id, message_id=message_id, fate="started", turn_id=message_id)


def _closed(session_id: str, message_id: str) -> PromptFate:
    return PromptFate(workflow_id=session_id, message_id=message_id, fate="discarded", reason=CLOSED)


def _decided(session_id: str, fate: Fate) -> PromptFate:
    return PromptFate(
        workflow_id=session_id,
        message_id=fate.id,
        fate=fate.fate,
        turn_id=fate.turn_id,
        reason=fate.reason,
        at=fate.at,
    )
