"""Compares our index of sessions with Temporal's list, and adds what is missing (API-1, docs/decisions/0049).

A session has no row, or an open one after its end, if it was started by hand or terminated, or if the store was down.
Each gateway looks for such sessions when it starts, since the last comparison or from the very beginning; then once a
minute, and after a request for a list. Each comparison reads Temporal's list in pages, and is repeated without harm;
two gateways may do it at once.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import compress
from typing import Any

from temporalio.client import Client

from turnkeeper.api.problems import ProblemError
from turnkeeper.api.temporal.lists.visibility import (
    VisibleSession,
    changed_since,
    find_visible,
    is_deletion_begun,
    sessions_in_deletion,
)
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.ids import WorkflowId
from turnkeeper.stores.cancellation import cancel_until_done
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.session_index import IndexedSession as Row
from turnkeeper.stores.session_index import SessionClosure, SessionIndex

PAGE_PAUSE_SECONDS = 0.05
"""Between two pages of a comparison, so that it takes little of anything."""

CATCH_UP_SECONDS = 1.0
"""Between two comparisons that requests cause."""

CATCH_UP_OVERLAP = timedelta(seconds=10)
"""How much of the time before the last one such a comparison covers again; the minute's comparison covers more."""

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
        self._tasks: set[asyncio.Task[None]] = set()
        self._caught_up = datetime.now(UTC) - OVERLAP
        self._catch_up: asyncio.Task[None] | None = None
        self._comparisons = 0

    def start(self) -> None:
        """Begin to compare; also a gateway without requests does it."""
        self._begin(self._compare_for_ever())

    def catch_up_soon(self) -> None:
        """Compare what has changed in the last moments, unless that has just been done."""
        if self._catch_up is None or self._catch_up.done():
            self._catch_up = self._begin(self._catch_up_once())

    def note_differences(self, rows: Sequence[Row], visible: Mapping[WorkflowId, VisibleSession]) -> None:
        """Store what Temporal knows better about rows of sessions that are listed as open."""
        closures = [one.closure for one in visible.values() if one.closure]
        renamed = [
            visible[row.session_id]
            for row in rows
            if row.session_id in visible and _is_renamed(row, visible[row.session_id])
        ]
        if closures or renamed:
            self._begin(self._store_differences(closures, renamed))

    async def close(self) -> None:
        await cancel_until_done(self._tasks)

    # ---- comparisons

    async def compare(self) -> None:
        """Compare all that has changed since the last comparison of any gateway; the first time, everything.

        Raises `ProblemError` or `StoreUnavailableError`: the next one begins where this one began.
        """
        began, name = datetime.now(UTC), self._client.namespace
        before = await self._index.compared_until(name)
        await self._compare_since(before and before - OVERLAP)
        if self._comparisons % FORGOTTEN_EVERY == 0:
            await self._close_forgotten()
        self._comparisons += 1
        await self._index.note_compared(name, began)

    async def _compare_for_ever(self) -> None:
        await asyncio.sleep(self._timeouts.repair_start)
        while True:
            await _unless_failing(self.compare())
            await asyncio.sleep(self._timeouts.repair_pause)

    async def _catch_up_once(self) -> None:
        began = datetime.now(UTC)
        if await _unless_failing(self._compare_since(self._caught_up - CATCH_UP_OVERLAP)):
            self._caught_up = began
        await asyncio.sleep(CATCH_UP_SECONDS)

    async def _compare_since(self, since: datetime | None) -> None:
        async for page in changed_since(self._client, self._timeouts, since):
            await self._store(page)
            await asyncio.sleep(PAGE_PAUSE_SECONDS)

    async def _store(self, page: Sequence[VisibleSession]) -> None:
        missing = await self._index.missing([session.session_id for session in page])
        new = [session for session in page if session.session_id in missing]
        if any(session.closed_at for session in new):
            # A session that is being deleted is listed until Temporal has deleted it, and has no row any more.
            in_deletion = await sessions_in_deletion(self._client, self._timeouts)
            new = [session for session in new if session.session_id not in in_deletion]
        await self._add_missing(new)
        await self._index.close([session.closure for session in page if session.closure])

    async def _add_missing(self, sessions: Sequence[VisibleSession]) -> None:
        """Store rows, unless their sessions are deleted meanwhile: a deletion clears the index only once.

        Raises `ProblemError` if Temporal doesn't answer; then none of them has a row.
        """
        rows = [session.as_indexed for session in sessions]
        await self._index.add_missing(rows)
        try:
            are_deleted = [await is_deletion_begun(self._client, self._timeouts, session) for session in sessions]
        except ProblemError:
            await self._index.remove_added(rows)
            raise
        await self._index.remove_added(list(compress(rows, are_deleted)))

    async def _close_forgotten(self) -> None:
        """Close the rows of sessions that are listed as open, and that Temporal no longer has."""
        after, idle_since = WorkflowId(""), datetime.now(UTC) - FORGOTTEN_AFTER
        while ids := await self._index.open_ids(after=after, limit=BATCH, idle_since=idle_since):
            visible = await find_visible(self._client, self._timeouts, ids)
            for session_id in ids:
                row = None if session_id in visible else await self._index.find(session_id)
                if row is not None:
                    await self._index.close([SessionClosure(session_id, "ended", row.last_activity_at)])
            after = ids[-1]
            await asyncio.sleep(PAGE_PAUSE_SECONDS)

    # ----

    async def _store_differences(self, closures: Sequence[SessionClosure], renamed: Sequence[VisibleSession]) -> None:
        with suppress(StoreUnavailableError):
            await self._index.close(closures)
            for session in renamed:
                await self._index.configure(session.session_id, title=session.title, model=session.model)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _unless_failing(comparison: Coroutine[Any, Any, None]) -> bool:
    """Return whether a comparison could be made; otherwise it is repeated later, whatever has failed."""
    try:
        await comparison
    except (ProblemError, StoreUnavailableError) as error:
        _log.info("The index of sessions can't be compared with Temporal's list now: %s", error)
        return False
    except Exception:  # noqa: BLE001  # the comparisons go on: nothing else would start them again
        _log.exception("The comparison of the index of sessions with Temporal's list has failed")
        return False
    return True


def _is_renamed(row: Row, visible: VisibleSession) -> bool:
    """Return whether the row of a session that has sent none yet lacks a title."""
    return visible.closed_at is None and visible.title is not None and row.title is None
