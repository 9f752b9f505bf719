"""Moving parts of a session to the archive, and parked prompts back: `move_to_archive`, `unpark` (SES-6, SES-15)."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from turnkeeper.activities.model_request.local_context_cache import MOVES, CacheKey
from turnkeeper.activities.own_workflow import (
    WorkflowSilentError,
    current_run_id,
    current_session_id,
    query_own_workflow,
)
from turnkeeper.models.errors import ARCHIVE_UNAVAILABLE
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.archive.archive_messages import (
    ArchiveMove,
    ArchiveMoveQuery,
    ArchiveOrder,
    UnparkedPrompts,
    UnparkOrder,
)
from turnkeeper.stores.archive import ArchivedTurn
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.session_index import IndexedSession
from turnkeeper.stores.stores import Stores


@contextmanager
def store_failures() -> Iterator[None]:
    """Convert `StoreUnavailableError` to the retryable failure that workflows and gateways recognise."""
    try:
        yield
    except StoreUnavailableError as error:
        raise ApplicationError(str(error), type=ARCHIVE_UNAVAILABLE) from error


class ArchiveActivities:
    """Activities of the archive."""

    def __init__(self, stores: Stores, client: Client) -> None:
        self._stores = stores
        self._client = client

    @activity.defn
    async def move_to_archive(self, order: ArchiveOrder) -> None:
        """Write exactly what the order names to the archive.

        A second attempt writes the same data to the same keys, which changes nothing: a turn is archived once (SES-15).
        """
        key = CacheKey(current_run_id(), order.move, order.digest)
        move = MOVES.get(key) or await self._ask_workflow(order)
        with store_failures():
            await self._store(current_session_id(), move)
        MOVES.discard(key)

    @activity.defn
    async def unpark(self, order: UnparkOrder) -> UnparkedPrompts:
        """Return the next parked prompts. They stay parked until the session has recorded that it has them.

        A second attempt deletes and returns the same prompts.
        """
        session_id, prompts = current_session_id(), self._stores.prompts
        with store_failures():
            await prompts.forget_parked(session_id, below=order.forget_below)
            parked = await prompts.parked(
                session_id, first=order.first, max_prompts=order.max_prompts, max_bytes=order.max_bytes
            )
        return UnparkedPrompts(prompts=parked)

    async def _store(self, session_id: WorkflowId, move: ArchiveMove) -> None:
        # The texts first: once the turns are gone, the model view refers to them.
        if move.texts:
            await self._stores.blobs.put(session_id, move.texts)
        if move.steps_of is not None:
            await self._stores.archive.put_steps(session_id, move.steps_of, move.first, move.steps)
        if move.turns:
            turns = [ArchivedTurn(number=number, turn=turn) for number, turn in enumerate(move.turns, start=move.first)]
            await self._stores.archive.put_turns(session_id, turns)
        prompts = self._stores.prompts
        await prompts.put_fates(session_id, move.fates)
        await prompts.park(session_id, first=move.first, prompts=move.prompts)
        if move.forget_below:
            await prompts.forget_parked(session_id, below=move.forget_below)
        if move.entry:
            await self._stores.index.put([IndexedSession.of_entry(session_id, move.entry, now=datetime.now(UTC))])

    async def _ask_workflow(self, order: ArchiveOrder) -> ArchiveMove:
        try:
            query = ArchiveMoveQuery(move=order.move)
            move = await query_own_workflow(self._client, "internal_archive_move", query, ArchiveMove)
        except WorkflowSilentError as error:
            raise ApplicationError(str(error), type=ARCHIVE_UNAVAILABLE) from error
        if move.digest != order.digest:
            raise ApplicationError(
                "the move has changed since it was ordered", type="digest_mismatch", non_retryable=True
            )
        return move
