"""Ended tasks that Temporal no longer has, from our own index (API-1, OPS-13)."""

from temporalio.client import Client

from turnkeeper.api.store_calls import read_store, seconds_from_now
from turnkeeper.api.temporal.lists.visibility import find_visible
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.transcript.index_entry import IndexStatus
from turnkeeper.stores.session_index import IndexedSession, IndexPosition, IndexQuery, SessionIndex, position_of

ENDED: tuple[IndexStatus, ...] = ("ended", "cancelled", "terminated")

BATCH = 50
"""Rows of the index that are compared with Temporal's list at once."""


class ForgottenTasks:
    """Finds them among the ended tasks of a tenant. Raises `ProblemError` and `StoreUnavailableError`."""

    def __init__(self, client: Client, index: SessionIndex, timeouts: Timeouts) -> None:
        self._client = client
        self._timeouts = timeouts
        self._index = index

    async def batch(
        self, *, tenant: str, parent: str | None, after: IndexPosition | None
    ) -> tuple[list[IndexedSession], IndexPosition | None]:
        """Return those among the next ended tasks, and where the batch after them begins; `None`: there is none."""
        query = IndexQuery(tenant=tenant, statuses=ENDED, parent=parent, is_task=True)
        reading = self._index.page(query, limit=BATCH + 1, after=after)
        rows = await read_store(reading, until=seconds_from_now(self._timeouts.restore))
        visible = await find_visible(self._client, self._timeouts, [row.session_id for row in rows[:BATCH]])
        forgotten = [row for row in rows[:BATCH] if row.session_id not in visible]
        return forgotten, position_of(rows[BATCH - 1]) if len(rows) > BATCH else None
