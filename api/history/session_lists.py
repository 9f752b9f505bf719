"""Lists of sessions, from our own index (API-1, docs/decisions/0049).

The index knows order, previews, turns and costs. Whether a session is open or waits for an approval is Temporal's to
say, so one call asks it about the open sessions of a page, and what the index didn't know is repaired. While the index
can't be read, Temporal's own list is shown, in its own order and without what only the index has.
"""

from dataclasses import replace

from temporalio.client import Client

from turnkeeper.api.history.index_cursors import index_cursor, index_position
from turnkeeper.api.history.index_repair import IndexRepair
from turnkeeper.api.problems import problem
from turnkeeper.api.store_calls import read_store, seconds_from_now
from turnkeeper.api.temporal.lists.listing import PAGE, ListedStatus, list_sessions
from turnkeeper.api.temporal.lists.visibility import VisibleSession, awaiting_approval, find_changed
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.http_responses import ListedSession, SessionList
from turnkeeper.models.ids import session_id_of
from turnkeeper.models.session.tasks.task_input import NO_PARENT
from turnkeeper.models.transcript.index_entry import IndexStatus
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.session_index import (
    IndexedSession,
    IndexPosition,
    IndexQuery,
    position_of,
)
from turnkeeper.stores.stores import Stores

_STATUSES: dict[ListedStatus, IndexStatus] = {
    "open": "open",
    "awaiting_approval": "open",
    "ended": "ended",
    "cancelled": "cancelled",
    "terminated": "terminated",
}


class SessionLists:
    """Lists the sessions of a tenant. Methods raise `ProblemError`."""

    def __init__(self, client: Client, stores: Stores, repair: IndexRepair, timeouts: Timeouts) -> None:
        self._client = client
        self._timeouts = timeouts
        self._stores = stores
        self._repair = repair

    async def page(
        self,
        *,
        tenant: str,
        status: ListedStatus | None = None,
        user: str | None = None,
        text: str | None = None,
        cursor: str | None = None,
    ) -> SessionList:
        """Return a page of sessions, those with the latest activity first; `text` is in id, title or preview."""
        after = index_position(cursor)
        if cursor is None or after is not None:
            self._repair.catch_up_soon()
            statuses = (_STATUSES[status],) if status else ()
            query = IndexQuery(tenant=tenant, statuses=statuses, user=user, text=text)
            try:
                page = await self._from_index(query, status, after)
                # Without any row the index may not be filled yet: Temporal's own list knows.
                if page.sessions or after or status or user or text:
                    return page
            except StoreUnavailableError as error:
                if after is not None:
                    raise problem("archive-unavailable", reason=error) from error
        return await list_sessions(
            self._client, self._timeouts, tenant=tenant, status=status, user=user, text=text, cursor=cursor
        )

    async def _from_index(
        self, query: IndexQuery, status: ListedStatus | None, after: IndexPosition | None
    ) -> SessionList:
        if status == "awaiting_approval":
            query = replace(query, ids=await awaiting_approval(self._client, self._timeouts, tenant=query.tenant))
        until = seconds_from_now(self._timeouts.restore)
        await read_store(self._stores.index_writer.flush(), until=until)  # a caller finds what it has just started
        rows = await read_store(self._stores.index.page(query, limit=PAGE + 1, after=after), until=until)
        page_rows = rows[:PAGE]
        visible = await find_changed(self._client, self._timeouts, [row for row in page_rows if row.status == "open"])
        self._repair.note_differences(page_rows, visible)
        sessions = [_listed(row, visible.get(row.session_id)) for row in page_rows]
        return SessionList(
            sessions=[session for session in sessions if status in (None, session.status) or _is_open(session, status)],
            next_cursor=index_cursor(position_of(page_rows[-1])) if len(rows) > PAGE else None,
        )


def _is_open(session: ListedSession, status: ListedStatus | None) -> bool:
    return status == "open" and session.status == "awaiting_approval"


def _listed(row: IndexedSession, visible: VisibleSession | None) -> ListedSession:
    """Return a session as Temporal and the index together have it."""
    status: ListedStatus = row.status
    if visible is not None:
        status = "awaiting_approval" if visible.awaits_approval else visible.status
    return ListedSession(
        workflow_id=session_id_of(row.session_id),
        title=row.title or (visible and visible.title),
        user=row.user,
        model=row.model or (visible and visible.model),
        status=status,
        turn_count=max(row.turn_count, visible.turn_count if visible else 0),
        cost=row.cost,
        preview=row.preview,
        parent=None if row.parent == NO_PARENT else row.parent,
        started_at=row.started_at,
        last_activity_at=row.last_activity_at,
        closed_at=row.closed_at or (visible and visible.closed_at),
    )
