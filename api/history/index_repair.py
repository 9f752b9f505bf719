"""Compares our index of sessions with Temporal's list, and corrects it (API-1, docs/decisions/0049).

A session writes its own row. It has none, or an open one after its end, if it was started by hand and has had no turn,
if it was terminated, or if the store was down when it ended. When it starts and once a minute, each gateway compares
the sessions that have started or ended since the last comparison of any gateway; the first time, all of them. Once an
hour it also looks for sessions that are listed as open and that Temporal no longer has. A comparison reads pages, and
is repeated without harm; two gateways may do it at once.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import compress

from temporalio.client import Client

from turnkeeper.api.history.visible_sessions import changed_since, retained
from turnkeeper.api.problems import ProblemError
from turnkeeper.api.temporal.temporal_calls import NO_SESSION, call_temporal
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.deletion import deletion_id
from turnkeeper.models.ids import WorkflowId
from turnkeeper.stores.cancellation import cancel_until_done
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.session_index import IndexedSession, SessionIndex

PAGE_PAUSE_SECONDS = 0.05
"""Between two pages of a comparison, so that it takes little of anything."""

OVERLAP = timedelta(seconds=60)
"""How much of the time before the last comparison is compared again: Temporal's list lags, and clocks differ."""

FORGOTTEN_AFTER = timedelta(hours=1)
"""A session that is listed as open, without activity for this time, is looked for in Temporal."""

FORGOTTEN_EVERY = 60
"""Comparisons between two searches for such sessions; the first comparison has one."""

BATCH = 50

_log = logging.getLogger(__name__)


class IndexRepair:
    """Repairs the index in the background. Only `close` waits."""

    def __init__(self, client: Client, index: SessionIndex, timeouts: Timeouts) -> None:
        self._client = client
        self._timeouts = timeouts
        self._index = index
        self._task: asyncio.Task[None] | None = None
        self._comparisons = 0

    def start(self) -> None:
        """Begin to compare; also a gateway without requests does it."""
        self._task = asyncio.create_task(self._compare_for_ever())

    async def close(self) -> None:
        await cancel_until_done([self._task] if self._task else [])

    async def compare(self) -> None:
        """Compare all that has changed since the last comparison of any gateway; the first time, everything.

        Raises `ProblemError` or `StoreUnavailableError`: the next one begins where this one began.
        """
        began, name = datetime.now(UTC), self._client.namespace
        before = await self._index.compared_until(name)
        async for page in changed_since(self._client, self._timeouts, before and before - OVERLAP):
            await self._correct(page)
            await asyncio.sleep(PAGE_PAUSE_SECONDS)
        if self._comparisons % FORGOTTEN_EVERY == 0:
            await self._close_forgotten()
        self._comparisons += 1
        await self._index.note_compared(name, began)

    async def _compare_for_ever(self) -> None:
        await asyncio.sleep(self._timeouts.repair_start)
        while True:
            try:
                await self.compare()
            except (ProblemError, StoreUnavailableError) as error:
                _log.info("The index of sessions can't be compared with Temporal's list now: %s", error)
            except Exception:  # noqa: BLE001  # the comparisons go on: nothing else would start them again
                _log.exception("The comparison of the index of sessions with Temporal's list has failed")
            await asyncio.sleep(self._timeouts.repair_pause)

    async def _correct(self, page: Sequence[IndexedSession]) -> None:
        missing = await self._index.missing([row.session_id for row in page])
        await self._add_missing([row for row in page if row.session_id in missing])
        await self._index.close([row for row in page if row.closed_at])

    async def _add_missing(self, rows: Sequence[IndexedSession]) -> None:
        """Store rows, unless their sessions are deleted: one that is being deleted is listed until the end of that.

        Whether it is, is asked afterwards, since a deletion clears the index only once. Raises `ProblemError` if
        Temporal doesn't answer; then none of them has a row.
        """
        await self._index.add_missing(rows)
        try:
            are_deleted = [await self._is_deletion_begun(row) for row in rows]
        except ProblemError:
            await self._index.remove_added(rows)
            raise
        await self._index.remove_added(list(compress(rows, are_deleted)))

    async def _is_deletion_begun(self, row: IndexedSession) -> bool:
        deletion = self._client.get_workflow_handle(deletion_id(row.session_id))
        try:
            description = await call_temporal(
                deletion.describe(rpc_timeout=self._timeouts.rpc), NO_SESSION, seconds=self._timeouts.call
            )
        except ProblemError as problem:
            if problem.problem.status == 404:
                return False
            raise
        return description.start_time >= row.started_at

    async def _close_forgotten(self) -> None:
        """Close the rows of sessions that are listed as open, and that Temporal no longer has."""
        after, idle_since = WorkflowId(""), datetime.now(UTC) - FORGOTTEN_AFTER
        while rows := await self._index.open_rows(after=after, limit=BATCH, idle_since=idle_since):
            listed = await retained(self._client, self._timeouts, [row.session_id for row in rows])
            forgotten = [row for row in rows if row.session_id not in listed]
            await self._index.close([replace(row, status="ended", closed_at=row.last_activity_at) for row in forgotten])
            after = rows[-1].session_id
            await asyncio.sleep(PAGE_PAUSE_SECONDS)
