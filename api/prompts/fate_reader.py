"""The fate of any prompt that was ever accepted, and its turn, from session and archive (SES-6).

The session has the queue and the last fates. What it has forgotten is in the archive: a turn as a turn, any other fate
by the prompt's id. A fate is archived before the session forgets it, so the session is queried first. Without a worker
the archive answers as far as it can. But an archived rejection counts only after the session has answered: the id may
have been sent again, and become a turn that is not archived yet.
"""

import asyncio
from contextlib import suppress
from functools import partial

from temporalio.client import WorkflowExecutionStatus

from turnkeeper.api.history.text_restorer import TextRestorer
from turnkeeper.api.http.closing import Closing
from turnkeeper.api.problems import ProblemError, problem, rejected
from turnkeeper.api.store_calls import read_store, seconds_from_now
from turnkeeper.api.temporal.deletions import raise_if_deleted
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.models.http_responses import PromptFate
from turnkeeper.models.ids import WorkflowId, session_id_of
from turnkeeper.models.session.messages import UpdatesRequest
from turnkeeper.models.session.prompts import Fate
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.stores import Stores

QUEUE_CLOSED = "The session was closed before the prompt was processed."

RETRY_SECONDS = 1.0
"""Pause while waiting for a turn, after a query that nobody could answer."""


class FateReader:
    """Reads the fates of prompts, and waits for them. Methods raise `ProblemError`."""

    def __init__(self, reader: SessionReader, stores: Stores, texts: TextRestorer, closing: Closing) -> None:
        self._reader = reader
        self._stores = stores
        self._texts = texts
        self._closing = closing

    async def fate_of(self, workflow_id: WorkflowId, message_id: str) -> PromptFate:
        """Return the fate of a prompt; `waiting` while it has none.

        Raises 404 if there is no such prompt, 504 if only a worker has the answer and none is there, and
        `StoreUnavailableError` if only the archive has it.
        """
        silence: ProblemError | None = None
        try:
            if fate := await self._from_session(workflow_id, message_id):
                return fate
        except ProblemError as error:
            if error.problem.status not in (404, 503, 504):
                raise
            silence = error
        is_final = silence is None or silence.problem.status == 404
        if silence is not None and is_final:
            await raise_if_deleted(self._reader.client, workflow_id, self._reader.timeouts)
        try:
            # The prompt may have been archived meanwhile, or Temporal may no longer have the session.
            fate = await self._from_archive(workflow_id, message_id)
        except StoreUnavailableError:
            if silence is None or is_final:
                raise
            raise silence from None
        if fate is None or not (is_final or fate.fate != "rejected"):
            raise silence or problem("unknown-prompt", message_id=message_id)
        return fate

    async def ended_turn(self, workflow_id: WorkflowId, message_id: str) -> ConversationMessage | None:
        """Return the turn of a prompt once it has ended; `None` before.

        Raises 422 if the session rejected the prompt, and 409 if it was withdrawn or discarded.
        """
        fate = await self.fate_of(workflow_id, message_id)
        if fate.fate == "waiting":
            return None
        if fate.fate == "rejected":
            raise rejected(fate.refusal or "invalid", fate.reason or "The prompt was rejected.", field="message")
        if fate.turn_id is None:
            raise problem("not-waiting", message_id=message_id, fate=fate.fate)
        turn = await self._turn(workflow_id, fate.turn_id)
        return turn if turn and turn.is_complete else None

    async def wait_for_turn(
        self, workflow_id: WorkflowId, message_id: str, *, seconds: float
    ) -> ConversationMessage | None:
        """Return the turn of a prompt as soon as it has ended; `None` if it has not after about `seconds`.

        It keeps waiting while no worker answers, or the session is being copied, since the prompt is safe. Raises as
        `ended_turn` does.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        async with self._reader.watches.watching(workflow_id) as watch:
            while True:
                version, is_answered = watch.version, True
                try:
                    async with self._closing.time_limit(until):
                        if turn := await self.ended_turn(workflow_id, message_id):
                            return turn
                except (TimeoutError, ProblemError) as error:
                    if isinstance(error, ProblemError) and not await self._is_safe(workflow_id, error):
                        raise
                    is_answered = False
                # After a change that no worker answered for, no other change may come: so the session is queried again.
                can_wait = is_answered and not watch.is_over
                again_at = until if can_wait else min(until, clock() + RETRY_SECONDS)
                # A session that changes all the time must not delay its callers beyond their time.
                is_time_up, has_changed = self._closing.is_time_up, partial(watch.is_beyond, version)
                if is_time_up(until) or (
                    not await self._closing.wait_for(watch, has_changed, until=again_at) and is_time_up(until)
                ):
                    return None
                await self._closing.wait_for(watch, lambda: watch.may_read, until=min(until, watch.next_read_at))

    async def _is_safe(self, workflow_id: WorkflowId, error: ProblemError) -> bool:
        """Return whether a prompt is safe although its fate can't be read: nobody answers, or a copy is being made."""
        if not error.problem.type.endswith(":unknown-session"):
            return error.problem.status in (503, 504)
        with suppress(ProblemError):
            return (await self._reader.describe(workflow_id)).status == WorkflowExecutionStatus.RUNNING
        return False

    async def _from_session(self, workflow_id: WorkflowId, message_id: str) -> PromptFate | None:
        """Return the fate from the session; `None` if it has nothing."""
        result = await self._reader.queue_result(workflow_id, [message_id])
        position = result.view.positions.get(message_id)
        if position is not None and result.closed is not None:
            return _fate(workflow_id, message_id, fate="discarded", reason=QUEUE_CLOSED)
        if position is not None:
            return _fate(workflow_id, message_id, fate="waiting", position=position)
        if result.view.fates:
            return _fate_of(workflow_id, result.view.fates[0])
        update = await self._reader.updates(workflow_id, UpdatesRequest(last_seen_message_id=message_id, limit=1))
        return None if update.reset else _fate(workflow_id, message_id, fate="started", turn_id=message_id)

    async def _from_archive(self, workflow_id: WorkflowId, message_id: str) -> PromptFate | None:
        """Return the fate from the archive. Raises `StoreUnavailableError`."""
        until = seconds_from_now(self._reader.timeouts.restore)
        if await read_store(self._stores.archive.number_of(workflow_id, message_id), until=until) is not None:
            return _fate(workflow_id, message_id, fate="started", turn_id=message_id)
        fate = await read_store(self._stores.prompts.fate_of(workflow_id, message_id), until=until)
        return None if fate is None else _fate_of(workflow_id, fate)

    async def _turn(self, workflow_id: WorkflowId, turn_id: str) -> ConversationMessage | None:
        """Return a turn from the session or, with its texts, from the archive; `None` if it can't be read."""
        update = await self._reader.updates(workflow_id, UpdatesRequest(last_seen_message_id=turn_id, limit=1))
        until, turns = seconds_from_now(self._reader.timeouts.restore), update.updated_messages
        if update.reset:
            try:
                archived_turn = await read_store(self._stores.archive.find(workflow_id, turn_id), until=until)
            except StoreUnavailableError:
                return None
            turns = [archived_turn.turn] if archived_turn else []
        whole = await self._texts.restore_answers(workflow_id, turns, until=until)
        return whole[0] if whole else None


def _fate_of(workflow_id: WorkflowId, fate: Fate) -> PromptFate:
    return _fate(workflow_id, fate.id, **dict(fate))


def _fate(workflow_id: WorkflowId, message_id: str, **fields: object) -> PromptFate:
    return PromptFate.model_validate({"workflow_id": session_id_of(workflow_id), "message_id": message_id, **fields})
