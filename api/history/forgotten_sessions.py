"""Sessions that can't be asked, read from the archive and the index (API-1, OPS-13, SES-15).

Temporal deletes an ended session after the retention of its namespace. The archive has its turns, so the session is put
together again from there, and answers every query itself, with the same rules as when it was running. What only its
workflow had is lost: which turns the model saw, and a turn that a termination interrupted.

In the same way, the turns of a session that no worker answers for are read, as of the last one that was archived.
"""

import asyncio
from collections.abc import Sequence

from temporalio.client import Client

from turnkeeper.api.problems import ProblemError, problem
from turnkeeper.api.store_calls import read_store, seconds_from_now
from turnkeeper.api.temporal.deletions import find_deletion, find_first_run
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.ids import WorkflowId, session_id_of
from turnkeeper.models.session.messages import CarriedState, SessionInput
from turnkeeper.models.session.queue.prompt_queue import QueueState
from turnkeeper.models.session.queue.prompts import Fate
from turnkeeper.models.session.session import Session, SessionPart
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.task_view import NO_PARENT, TaskView
from turnkeeper.models.transcript.trajectory import Usage
from turnkeeper.models.transcript.transcript import TranscriptState
from turnkeeper.stores.archive import ArchivedTurn
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.session_index import IndexedSession
from turnkeeper.stores.stores import Stores

PAGE_BYTES = 1_000_000
"""JSON of the newest turns that a session has in itself; the archive has the others."""

MAX_FATES = 200


class ForgottenSessions:
    """Finds sessions by what the stores have of them."""

    def __init__(self, client: Client, stores: Stores, timeouts: Timeouts) -> None:
        self._client = client
        self._timeouts = timeouts
        self._stores = stores

    async def find(self, workflow_id: WorkflowId) -> Session | None:
        """Return a session that Temporal has forgotten; `None`: there is none, or it is being deleted.

        Raises 410 if its turns are lost too, 503 if the archive or Temporal can't be reached.
        """
        try:
            row, turns = await self._stored(workflow_id)
            if row is None and not turns:
                return None
            newest_fates = self._stores.prompts.newest_fates(workflow_id, limit=MAX_FATES)
            is_forgotten, fates = await asyncio.gather(self._is_forgotten(workflow_id), newest_fates)
        except StoreUnavailableError as error:
            raise problem("archive-unavailable", reason=error) from error
        if not is_forgotten:
            return None
        if row is not None and row.turn_count and not turns:
            raise problem("no-longer-retained", workflow_id=workflow_id)
        return _session(workflow_id, row, turns, fates)

    async def find_archived(self, workflow_id: WorkflowId) -> Session | None:
        """Return a session that Temporal still has as the archive has it; `None` if that has no turns of it now."""
        try:
            row, turns = await self._stored(workflow_id)
            deletion = await find_deletion(self._client, workflow_id, self._timeouts) if turns else None
        except (StoreUnavailableError, ProblemError):
            return None
        if not turns or (deletion and not deletion.is_done):
            return None
        session = _session(workflow_id, row, turns, [])
        session.closed = None
        return session

    async def exists(self, workflow_id: WorkflowId) -> bool:
        """Return whether the stores have a session that Temporal has forgotten; it may be a 410. Raises 503."""
        try:
            row, turns = await self._stored(workflow_id, limit=1)
        except StoreUnavailableError as error:
            raise problem("archive-unavailable", reason=error) from error
        if not (row or turns):
            return False
        return await self._is_forgotten(workflow_id)

    async def _stored(
        self, workflow_id: WorkflowId, *, limit: int | None = None
    ) -> tuple[IndexedSession | None, list[ArchivedTurn]]:
        """Return the row and at most `limit` of the newest turns. Raises `StoreUnavailableError`."""
        page = self._stores.archive.page(workflow_id, before=None, limit=limit, max_bytes=PAGE_BYTES)
        both = asyncio.gather(self._stores.index.find(workflow_id), page)
        row, turns = await read_store(both, until=seconds_from_now(self._timeouts.restore))
        return row, turns

    async def _is_forgotten(self, workflow_id: WorkflowId) -> bool:
        first_run_id, deletion = await asyncio.gather(
            find_first_run(self._client, workflow_id, self._timeouts),
            find_deletion(self._client, workflow_id, self._timeouts),
        )
        # Otherwise it is being deleted, or another session has just started with the id.
        return first_run_id is None and (deletion is None or deletion.is_done)


class _EndedTask(SessionPart):
    """The task that a session was, as far as the index has it."""

    def __init__(self, view: TaskView) -> None:
        self._view = view

    @property
    def task(self) -> TaskView:
        return self._view


def _session(
    workflow_id: WorkflowId, row: IndexedSession | None, archived: Sequence[ArchivedTurn], fates: Sequence[Fate]
) -> Session:
    """Return the session with its newest turns, as it was when it had ended."""
    turns = [one.turn for one in archived]
    began_at = row.started_at if row else turns[0].timestamp
    carried = CarriedState(
        created_at=began_at,
        revision=max([row.revision if row else 0, *(turn.revision for turn in turns)]),
        usage=_usage(row, turns),
        tasks_usage=sum((turn.tasks_usage for turn in turns if turn.tasks_usage), Usage()),
        transcript=TranscriptState(turns=turns, archived=archived[0].number - 1 if archived else 0),
        queue=QueueState(fates=_last_fates(turns, fates)),
    )
    session = Session(session_id_of(workflow_id), _input(row, carried), now=began_at)
    if row and row.parent:
        parent = None if row.parent == NO_PARENT else row.parent
        session.parts.append(_EndedTask(TaskView(parent=parent, context=row.hand_off)))
    session.closed = row.status if row and row.status in ("cancelled", "terminated") else "ended"
    return session


def _last_fates(turns: Sequence[ConversationMessage], others: Sequence[Fate]) -> list[Fate]:
    started = [Fate(id=turn.id, fate="started", turn_id=turn.id, at=turn.timestamp) for turn in turns]
    return sorted([*others, *started], key=lambda fate: fate.at)[-MAX_FATES:]


def _input(row: IndexedSession | None, carried: CarriedState) -> SessionInput:
    if row is None:
        return SessionInput(carried=carried)
    return SessionInput(
        title=row.title,
        user=row.user,
        carried=carried,
        **({"model": row.model} if row.model else {}),
    )


def _usage(row: IndexedSession | None, turns: Sequence[ConversationMessage]) -> Usage:
    """Return the tokens of the newest turns, and the cost of all."""
    usage = sum((turn.usage for turn in turns if turn.usage), Usage())
    return usage.model_copy(update={"cost": row.cost}) if row else usage
