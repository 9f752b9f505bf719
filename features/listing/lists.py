"""Lists of sessions, from our own index (API-1, docs/decisions/0049).

A cursor is the place in the index where its page ended, with a checksum that finds what is no cursor of ours. Anybody
can compute it, so the place can still be anything.

Compares our index of sessions with Temporal's list, and corrects it (API-1, docs/decisions/0049).

A session writes its own row. It has none, or an open one after its end, if it was started by hand and has had no turn,
if it was terminated, or if the store was down when it ended. When it starts and once a minute, each gateway compares
the sessions that have started or ended since the last comparison of any gateway; the first time, all of them. Once an
hour it also looks for sessions that are listed as open and that Temporal no longer has. A comparison reads pages, and
is repeated without harm; two gateways may do it at once.
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import compress
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError
from temporalio.client import Client

from turnkeeper.api.history.visible_sessions import changed_since, retained
from turnkeeper.api.problems import ProblemError, invalid, problem
from turnkeeper.api.temporal.temporal_calls import NO_SESSION, call_temporal
from turnkeeper.api.timeouts import Timeouts, read_store, seconds_from_now
from turnkeeper.models.http_responses import ListedSession, SessionList
from turnkeeper.models.ids import WorkflowId, session_id_of
from turnkeeper.models.session.messages import deletion_id
from turnkeeper.models.transcript.conversation import NO_PARENT
from turnkeeper.models.transcript.model_call import IndexStatus
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.session_index import IndexedSession, IndexPosition, IndexQuery, SessionIndex, position_of
from turnkeeper.stores.stores import Stores
from turnkeeper.stores.waiting import cancel_until_done

PAGE = 50
"""Sessions of a page."""

MAX_MOMENT = 2**62
"""Later than all times, in microseconds since 1970; databases have room for twice as much."""

_CHECKSUM_BYTES = 12

_POSITION = TypeAdapter(
    tuple[
        Annotated[int, Field(strict=True, ge=-MAX_MOMENT, le=MAX_MOMENT)],
        Annotated[str, Field(pattern=r"^[^\x00]*$")],
    ]
)


class SessionLists:
    """Lists the sessions of a tenant. Methods raise `ProblemError`."""

    def __init__(self, stores: Stores, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._stores = stores

    async def sessions(
        self, query: IndexQuery, *, status: IndexStatus | None = None, cursor: str | None = None
    ) -> SessionList:
        """Return a page of sessions, those with the latest activity first; `open` has those that wait for a person."""
        statuses: list[IndexStatus] = [status] if status else []
        if status == "open":
            statuses.append("awaiting_approval")
        rows, next_cursor = await self.rows(replace(query, statuses=statuses), limit=PAGE, cursor=cursor)
        return SessionList(sessions=[_listed(row) for row in rows], next_cursor=next_cursor)

    async def rows(
        self, query: IndexQuery, *, limit: int, cursor: str | None
    ) -> tuple[list[IndexedSession], str | None]:
        """Return a page of at most `limit` rows, and the cursor of the next one."""
        after = position_in(cursor) if cursor is not None else None
        until = seconds_from_now(self._timeouts.request)
        try:
            await read_store(self._stores.index_writer.flush(), until=until)  # a caller finds what it has just started
            rows = await read_store(self._stores.index.page(query, limit=limit + 1, after=after), until=until)
        except StoreUnavailableError as error:
            raise problem("archive-unavailable", reason=error) from error
        return rows[:limit], cursor_at(position_of(rows[limit - 1])) if len(rows) > limit else None


def _listed(row: IndexedSession) -> ListedSession:
    return ListedSession(
        workflow_id=session_id_of(row.session_id),
        title=row.title,
        user=row.user,
        model=row.model,
        status=row.status,
        turn_count=row.turn_count,
        cost=row.cost,
        preview=row.preview,
        parent=parent_of(row),
        started_at=row.started_at,
        last_activity_at=row.last_activity_at,
        closed_at=row.closed_at,
    )


def parent_of(row: IndexedSession) -> str | None:
    """Return the session that a task was started for, if there is one."""
    return None if row.parent == NO_PARENT else row.parent


def cursor_at(position: IndexPosition) -> str:
    """Return the cursor of the page after `position`."""
    token = _POSITION.dump_json((position.last_activity_at, position.session_id))
    return base64.urlsafe_b64encode(_checksum(token) + token).decode()


def position_in(cursor: str) -> IndexPosition:
    """Return the place that a cursor stands for. Raises `ProblemError` 422 for what is no cursor of ours."""
    try:
        decoded = base64.b64decode(cursor, altchars=b"-_", validate=True)
        checksum, token = decoded[:_CHECKSUM_BYTES], decoded[_CHECKSUM_BYTES:]
        moment, workflow_id = _POSITION.validate_json(token)
    except (binascii.Error, ValidationError, ValueError) as error:
        raise invalid("cursor", "is not a cursor of this list") from error
    if checksum != _checksum(token):
        raise invalid("cursor", "is not a cursor of this list")
    return IndexPosition(moment, WorkflowId(workflow_id))


def _checksum(token: bytes) -> bytes:
    return sha256(b"turnkeeper:index:" + token).digest()[:_CHECKSUM_BYTES]


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
        self._unfinished: list[datetime | None] = []
        """Where the last comparison began, if it failed: it may have removed rows that another gateway has seen."""

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
        before = self._unfinished[0] if self._unfinished else await self._index.compared_until(name)
        self._unfinished = [before]
        async for page in changed_since(self._client, self._timeouts, before and before - OVERLAP):
            await self._correct(page)
            await asyncio.sleep(PAGE_PAUSE_SECONDS)
        if self._comparisons % FORGOTTEN_EVERY == 0:
            await self._close_forgotten()
        self._comparisons += 1
        await self._index.note_compared(name, began)
        self._unfinished = []

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
