"""The fate of any prompt that was ever accepted, from session, archive and history (SES-6).

The session has the queue and the last fates. What it has forgotten is in the archive: a turn as a turn, any other fate
by the prompt's id. A fate is archived before the session forgets it, so the session is queried first. A prompt that
Temporal has and no workflow task has processed is at the end of the history. So without a worker, archive and history
answer as far as they can. An archived rejection counts only after the session has answered: the id may have been sent
again, and become a turn that is not archived yet.
"""

import asyncio
from contextlib import suppress

from turnkeeper.api.problems import ProblemError, problem
from turnkeeper.api.store_calls import read_store, seconds_from_now
from turnkeeper.api.temporal.receipts import position_in
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.models.http_responses import PromptFate
from turnkeeper.models.ids import WorkflowId, session_id_of
from turnkeeper.models.session.messages import UpdatesRequest
from turnkeeper.models.session.queue.prompts import Fate
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.stores import Stores

TAIL_PROMPTS = 10_000
TAIL_BYTES = 50_000_000
TAIL_SECONDS = 0.7


class FateReader:
    """Reads the fates of prompts. Methods raise `ProblemError`."""

    def __init__(self, reader: SessionReader, stores: Stores) -> None:
        self._reader = reader
        self._stores = stores

    async def fate_of(self, workflow_id: WorkflowId, message_id: str) -> PromptFate:
        """Return the fate of a prompt; `waiting` while it has none.

        Raises 404 if there is no such prompt, 504 if only a worker has the answer and none is there, and
        `StoreUnavailableError` if only the archive has it.
        """
        session_query = asyncio.create_task(self._from_session(workflow_id, message_id))
        try:
            done, _ = await asyncio.wait({session_query}, timeout=self._reader.timeouts.receipt)
            if not done:
                with suppress(StoreUnavailableError):
                    if fate := await self._from_stores(workflow_id, message_id, is_final=False):
                        return fate
            return await self._from_session_first(session_query, workflow_id, message_id)
        finally:
            session_query.cancel()

    async def _from_session_first(
        self, session_query: "asyncio.Task[PromptFate | None]", workflow_id: WorkflowId, message_id: str
    ) -> PromptFate:
        """Return the fate from the session, or else from the stores.

        If the session has nothing, the prompt may have been archived meanwhile, or Temporal may no longer have the
        session.
        """
        failure_to_answer: ProblemError | None = None
        fate: PromptFate | None = None
        try:
            fate = await session_query
        except ProblemError as error:
            if error.problem.status not in (404, 503, 504):
                raise
            if error.problem.status == 404:
                await self._reader.raise_if_deleted(workflow_id)
            failure_to_answer = error
        is_final = failure_to_answer is None or failure_to_answer.problem.status == 404
        fate = fate or await self._from_stores(workflow_id, message_id, is_final=is_final)
        if fate is None:
            raise failure_to_answer or problem("unknown-prompt", message_id=message_id)
        return fate

    async def _from_session(self, workflow_id: WorkflowId, message_id: str) -> PromptFate | None:
        """Return the fate from the session; `None` if it has nothing."""
        result = await self._reader.queue_result(workflow_id, [message_id])
        view = result.view
        position = position_in(view, message_id)
        if position is not None:
            waits = result.closed is None
            return _waiting_fate(workflow_id, message_id, position) if waits else _closed_fate(workflow_id, message_id)
        if view.fates:
            return _fate_of(workflow_id, view.fates[0])
        update = await self._reader.updates(workflow_id, UpdatesRequest(last_seen_message_id=message_id, limit=1))
        return None if update.reset else _started_fate(workflow_id, message_id)

    async def _from_stores(self, workflow_id: WorkflowId, message_id: str, *, is_final: bool) -> PromptFate | None:
        """Return the fate from archive or history. Raises `StoreUnavailableError`.

        `is_final`: the session has nothing of the prompt, or no longer exists. Otherwise a rejection doesn't count:
        the id may have been sent again, and only the session has that prompt's fate.
        """
        archived_fate, failure = None, None
        try:
            archived_fate = await self.archived_fate(workflow_id, message_id)
        except StoreUnavailableError as error:
            failure = error
        if archived_fate is not None and archived_fate.fate != "rejected":
            return archived_fate
        if fate_in_history := await self._from_history(workflow_id, message_id):
            return fate_in_history
        if failure is not None:
            raise failure
        return archived_fate if is_final else None

    async def archived_fate(self, workflow_id: WorkflowId, message_id: str) -> PromptFate | None:
        """Return the fate from the archive. Raises `StoreUnavailableError`."""
        until = seconds_from_now(self._reader.timeouts.restore)
        if await read_store(self._stores.archive.number_of(workflow_id, message_id), until=until) is not None:
            return _started_fate(workflow_id, message_id)
        fate = await read_store(self._stores.prompts.fate_of(workflow_id, message_id), until=until)
        return None if fate is None else _fate_of(workflow_id, fate)

    async def _from_history(self, workflow_id: WorkflowId, message_id: str) -> PromptFate | None:
        """Return the fate of a prompt that waits in the history; `None` if it doesn't, or can't be read in time."""
        try:
            tail = await self._reader.tails.read(
                workflow_id,
                max_prompts=TAIL_PROMPTS,
                max_bytes=TAIL_BYTES,
                seconds=TAIL_SECONDS,
                until_id=message_id,
            )
        except ProblemError:
            return None
        if message_id not in tail.sizes:
            return None
        return _closed_fate(workflow_id, message_id) if tail.is_closed else _waiting_fate(workflow_id, message_id, None)


def _waiting_fate(workflow_id: WorkflowId, message_id: str, position: int | None) -> PromptFate:
    return PromptFate(workflow_id=session_id_of(workflow_id), message_id=message_id, fate="waiting", position=position)


def _started_fate(workflow_id: WorkflowId, message_id: str) -> PromptFate:
    return PromptFate(workflow_id=session_id_of(workflow_id), message_id=message_id, fate="started", turn_id=message_id)


def _closed_fate(workflow_id: WorkflowId, message_id: str) -> PromptFate:
    return PromptFate(
        workflow_id=session_id_of(workflow_id),
        message_id=message_id,
        fate="discarded",
        reason="The session was closed before the prompt was processed.",
    )


def _fate_of(workflow_id: WorkflowId, fate: Fate) -> PromptFate:
    return PromptFate(
        workflow_id=session_id_of(workflow_id),
        message_id=fate.id,
        fate=fate.fate,
        turn_id=fate.turn_id,
        reason=fate.reason,
        at=fate.at,
    )
