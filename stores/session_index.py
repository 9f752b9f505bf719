"""The index of sessions, by which they are listed and searched (API-1, docs/decisions/0049).

Many write, in any order, and late: gateways at a start, workers with each model call and at the end, gateways again
when they compare the index with Temporal's list of sessions. A row that a session itself has sent has the session's
revision. It is replaced by a row of the same session with the same or a later revision, or by one of a session that has
started later with the same id. All others only add what is missing: a row where there is none (revision 0), or the end
of a session that is listed as open.

The index is never the only copy of anything: a lost write is repaired later, and no session waits for it.

**Writing** is in the background: a turn never waits for the index, and never fails by it. The rows that arrive while a
transaction runs go into the next one, and of a session only the newest is written. So a busy process needs few
transactions a second, for any number of sessions.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Executable, Row, case, func, or_, select, tuple_, update

from turnkeeper.models.ids import WorkflowId, session_id_of, tenant_of
from turnkeeper.models.legible import searchable
from turnkeeper.models.transcript.conversation import HandOffReport, TaskStatus
from turnkeeper.models.transcript.model_call import IndexEntry, IndexStatus
from turnkeeper.stores.database.database import Database, StoreUnavailableError
from turnkeeper.stores.database.rows import delete_rows, insert_into, insert_missing, microseconds, moment_of
from turnkeeper.stores.database.tables import INDEX_REPAIRS, MAX_ID_CHARS, SESSIONS


@dataclass(frozen=True)
class IndexedSession:
    """A row of the index."""

    session_id: WorkflowId
    started_at: datetime
    last_activity_at: datetime
    status: IndexStatus = "open"
    title: str | None = None
    user: str | None = None
    model: str | None = None
    turn_count: int = 0
    cost: float | None = None
    preview: str | None = None
    parent: str | None = None
    """A task's parent, or `NO_PARENT`; the next four fields too are a task's."""
    task_status: TaskStatus | None = None
    percent: int | None = None
    message: str | None = None
    hand_off: HandOffReport | None = None
    closed_at: datetime | None = None
    revision: int = 0
    """The session's; 0: nothing that the session itself has sent."""

    @classmethod
    def of_entry(cls, session_id: WorkflowId, entry: IndexEntry, *, now: datetime) -> "IndexedSession":
        """Return the row that a session's entry stands for, as of `now`."""
        values = {name: value for name, value in entry if name != "created_at"}
        closed_at = None if entry.status in ("open", "awaiting_approval") else now
        return cls(session_id, entry.created_at, now, closed_at=closed_at, **values)

    def with_cost(self, cost: float | None) -> "IndexedSession":
        """Return the row with `cost` added; `None`: it is unknown."""
        return self if cost is None else replace(self, cost=(self.cost or 0.0) + cost)


@dataclass(frozen=True)
class IndexQuery:
    """Which sessions a list has: of one tenant, and all that the other fields say."""

    tenant: str
    statuses: Sequence[IndexStatus] = ()
    user: str | None = None
    text: str | None = None
    """In the id, the title or the preview."""
    parent: str | None = None
    is_task: bool = False
    """Only tasks, with a parent or without one."""
    task_status: TaskStatus | None = None


@dataclass(frozen=True)
class IndexPosition:
    """The end of a page: the next one has the sessions after it."""

    last_activity_at: int
    """In microseconds since 1970."""
    session_id: WorkflowId


def position_of(session: IndexedSession) -> IndexPosition:
    return IndexPosition(microseconds(session.last_activity_at), session.session_id)


class SessionIndex:
    """The index of all sessions. Every method raises `StoreUnavailableError` and can be repeated."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # ---- reading

    async def page(self, query: IndexQuery, *, limit: int, after: IndexPosition | None = None) -> list[IndexedSession]:
        """Return at most `limit` sessions, those with the latest activity first."""
        key = tuple_(SESSIONS.c.last_activity_at, SESSIONS.c.session_id)
        rows = select(SESSIONS).where(*_conditions(query))
        if after is not None:
            rows = rows.where(key < tuple_(after.last_activity_at, after.session_id))
        rows = rows.order_by(SESSIONS.c.last_activity_at.desc(), SESSIONS.c.session_id.desc()).limit(limit)
        return [_session(row) for row in await self._database.read(lambda connection: connection.execute(rows).all())]

    async def find(self, session_id: WorkflowId) -> IndexedSession | None:
        query = select(SESSIONS).where(SESSIONS.c.session_id == session_id)
        row = await self._database.read(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else _session(row)

    async def missing(self, session_ids: Sequence[WorkflowId]) -> set[WorkflowId]:
        """Return which of these sessions have no row."""
        query = select(SESSIONS.c.session_id).where(SESSIONS.c.session_id.in_(session_ids))
        stored = await self._database.read(lambda connection: connection.scalars(query).all())
        return set(session_ids) - set(stored)

    async def open_rows(self, *, after: WorkflowId, limit: int, idle_since: datetime) -> list[IndexedSession]:
        """Return sessions listed as open, without activity since `idle_since`, with ids after `after`."""
        is_open = SESSIONS.c.closed_at.is_(None) & (SESSIONS.c.last_activity_at < microseconds(idle_since))
        query = select(SESSIONS).where(is_open, SESSIONS.c.session_id > after)
        query = query.order_by(SESSIONS.c.session_id).limit(limit)
        return [_session(row) for row in await self._database.read(lambda connection: connection.execute(query).all())]

    # ---- writing

    async def put(self, sessions: Sequence[IndexedSession]) -> None:
        """Store rows that sessions themselves have sent; a row of a later revision, or of a later session, stays."""
        rows = _rows(sessions)
        if rows:
            await self._database.write(
                lambda connection: connection.execute(_put_statement(connection.dialect.name), rows)
            )

    async def add_missing(self, sessions: Sequence[IndexedSession]) -> None:
        """Store the rows whose sessions have none."""
        rows = _rows(sessions)
        if rows:
            await self._database.write(lambda connection: insert_missing(connection, SESSIONS, rows))

    async def remove_added(self, sessions: Sequence[IndexedSession]) -> None:
        """Delete rows that `add_missing` has stored, unless their sessions have sent one since."""
        for session in sessions:
            is_added = (SESSIONS.c.revision == 0) & (SESSIONS.c.started_at == microseconds(session.started_at))
            await delete_rows(self._database, SESSIONS, session.session_id, where=is_added)

    async def close(self, closed: Sequence[IndexedSession]) -> None:
        """Store the ends of these closed sessions that are listed as open, unless a later session has the id.

        A task that had no result then was cancelled.
        """
        if closed:
            await self._database.write(lambda connection: _close(connection, closed))

    async def configure(self, session_id: WorkflowId, *, title: str | None, model: str | None) -> None:
        """Store a new title or model; `None`: it stays."""
        values = {name: value for name, value in (("title", title), ("model", model)) if value is not None}
        if values:
            await self._database.write(lambda connection: _configure(connection, session_id, values))

    async def delete(self, session_id: WorkflowId) -> int:
        """Delete the session's row; return how many there were."""
        return await delete_rows(self._database, SESSIONS, session_id)

    # ---- repairs

    async def compared_until(self, name: str) -> datetime | None:
        """Return up to when the index was compared with Temporal's list of the namespace `name`; `None`: never."""
        query = select(INDEX_REPAIRS.c.compared_until).where(INDEX_REPAIRS.c.name == name[:64])
        moment = await self._database.read(lambda connection: connection.scalar(query))
        return None if moment is None else moment_of(moment)

    async def note_compared(self, name: str, until: datetime) -> None:
        row: dict[str, object] = {"name": name[:64], "compared_until": microseconds(until)}
        await self._database.write(lambda connection: _note_compared(connection, row))


def _conditions(query: IndexQuery) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [SESSIONS.c.tenant == query.tenant]
    if query.statuses:
        conditions.append(SESSIONS.c.status.in_(query.statuses))
    if query.user is not None:
        conditions.append(SESSIONS.c.user == query.user)
    if query.parent is not None:
        conditions.append(SESSIONS.c.parent == query.parent)
    if query.is_task:
        conditions.append(SESSIONS.c.parent.is_not(None))
    if query.text is not None:
        conditions.append(SESSIONS.c.searched_text.contains(searchable(query.text), autoescape=True))
    if query.task_status is not None:
        conditions.append(SESSIONS.c.task_status == query.task_status)
    return conditions


@cache
def _put_statement(dialect_name: str) -> Executable:
    """Return the statement of `put`. Building it would take longer than running it."""
    insert = insert_into(dialect_name, SESSIONS)
    new, stored = insert.excluded, SESSIONS.c
    is_same_session = new.started_at == stored.started_at
    is_later = or_(
        stored.revision == 0,
        new.started_at > stored.started_at,
        is_same_session & (new.revision >= stored.revision),
    )
    values: dict[str, Any] = {column.name: new[column.name] for column in SESSIONS.columns if not column.primary_key}
    # A second row of the same revision has a title that may have been changed since it was made.
    is_second = is_same_session & (new.revision == stored.revision)
    for name in ("title", "model", "searched_text"):
        values[name] = case((is_second, stored[name]), else_=new[name])
    return insert.on_conflict_do_update(index_elements=["session_id"], set_=values, where=is_later)


def _close(connection: Connection, closed: Sequence[IndexedSession]) -> None:
    is_unfinished = SESSIONS.c.task_status.in_(("working", "input_required"))
    for row in _rows(closed):
        is_open = SESSIONS.c.closed_at.is_(None) & (SESSIONS.c.started_at <= row["closed_at"])
        values = {
            "status": row["status"],
            "closed_at": row["closed_at"],
            "last_activity_at": _greater(connection, SESSIONS.c.last_activity_at, row["closed_at"]),
            "turn_count": _greater(connection, SESSIONS.c.turn_count, row["turn_count"]),
            "task_status": case((is_unfinished, "cancelled"), else_=SESSIONS.c.task_status),
        }
        connection.execute(update(SESSIONS).where(SESSIONS.c.session_id == row["session_id"], is_open).values(values))


def _greater(connection: Connection, column: ColumnElement[int], value: int) -> ColumnElement[int]:
    """Return the greater of a column and a value: SQLite calls that `max`, PostgreSQL `greatest`."""
    function = func.greatest if connection.dialect.name == "postgresql" else func.max
    greater: ColumnElement[int] = function(column, value)
    return greater


def _configure(connection: Connection, session_id: WorkflowId, values: dict[str, str]) -> None:
    is_own = SESSIONS.c.session_id == session_id
    row = connection.execute(select(SESSIONS).where(is_own)).one_or_none()
    if row is not None:
        text = _searched_text(session_id, values.get("title", row.title), row.preview)
        connection.execute(update(SESSIONS).where(is_own).values({**values, "searched_text": text}))


def _note_compared(connection: Connection, row: dict[str, object]) -> None:
    insert = insert_into(connection.dialect.name, INDEX_REPAIRS)
    new = insert.excluded.compared_until
    is_later = new > INDEX_REPAIRS.c.compared_until
    values = {"compared_until": new}
    connection.execute(insert.on_conflict_do_update(index_elements=["name"], set_=values, where=is_later), row)


def _rows(sessions: Sequence[IndexedSession]) -> list[dict[str, Any]]:
    # Sorted: two transactions that lock the same rows in different orders would deadlock.
    ordered = sorted(sessions, key=lambda session: session.session_id)
    return [_row(session) for session in ordered if len(session.session_id) <= MAX_ID_CHARS]


def _row(session: IndexedSession) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(session, name) for name in _FIELDS}
    for name in ("started_at", "last_activity_at", "closed_at"):
        row[name] = None if row[name] is None else microseconds(row[name])
    row["hand_off"] = session.hand_off and session.hand_off.model_dump_json()
    text = _searched_text(session.session_id, session.title, session.preview)
    return {**row, "tenant": tenant_of(session.session_id), "searched_text": text}


def _searched_text(session_id: WorkflowId, title: str | None, preview: str | None) -> str:
    return searchable("\n".join((title or "", preview or "", session_id_of(session_id))))


_FIELDS = [field.name for field in fields(IndexedSession)]


def _session(row: Row[Any, Any]) -> IndexedSession:
    values = {name: getattr(row, name) for name in _FIELDS}
    for name in ("started_at", "last_activity_at", "closed_at"):
        values[name] = None if values[name] is None else moment_of(values[name])
    values["hand_off"] = values["hand_off"] and HandOffReport.model_validate_json(values["hand_off"])
    return IndexedSession(**values)


PAUSE_SECONDS = 0.25
"""Between two transactions."""

MAX_WAIT_SECONDS = 8.0
"""How long a row waits for a store that is down; after that it is dropped. A deletion waits longer before it clears the
stores for the last time (`DELETION_QUIET`)."""

MAX_ROWS = 2_000
"""Rows that wait at most; the next ones are dropped."""

MAX_ROWS_AT_ONCE = 200
"""Rows of one transaction, which other writers wait for."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Waiting:
    session: IndexedSession
    since: float
    """On the event loop's clock."""


class IndexWriter:
    """Writes index rows in the background. No method raises because of the store."""

    def __init__(self, index: SessionIndex) -> None:
        self._index = index
        self._newest: dict[WorkflowId, _Waiting] = {}
        self._missing: dict[WorkflowId, _Waiting] = {}
        self._writing: asyncio.Task[None] | None = None

    def put(self, session: IndexedSession) -> None:
        """Store a row that a session has sent."""
        before = self._newest.get(session.session_id)
        is_late = before is not None and before.session.started_at == session.started_at
        if before and is_late and before.session.revision > session.revision:
            return
        self._add(self._newest, session)

    def add_missing(self, session: IndexedSession) -> None:
        """Store a row unless the session has one."""
        self._add(self._missing, session)

    def forget(self, session_id: WorkflowId) -> None:
        """Drop what waits of a session that is being deleted."""
        self._newest.pop(session_id, None)
        self._missing.pop(session_id, None)

    async def flush(self) -> None:
        """Write what waits now, for a reader in the same process."""
        if self._newest or self._missing:
            await self._write()

    async def close(self) -> None:
        """Write what waits, if the store works."""
        if self._writing:
            self._writing.cancel()
            with suppress(asyncio.CancelledError):
                await self._writing
        await self.flush()

    def _add(self, waiting: dict[WorkflowId, _Waiting], session: IndexedSession) -> None:
        if len(waiting) >= MAX_ROWS and session.session_id not in waiting:
            return
        waiting[session.session_id] = _Waiting(session, asyncio.get_running_loop().time())
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())

    async def _write_all(self) -> None:
        while self._newest or self._missing:
            await self._write()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _write(self) -> None:
        # First the rows of sessions themselves: they have more, and then nothing is missing.
        await self._write_some(self._newest, self._index.put)
        await self._write_some(self._missing, self._index.add_missing)

    async def _write_some(
        self, waiting: dict[WorkflowId, _Waiting], write: Callable[[list[IndexedSession]], Awaitable[None]]
    ) -> None:
        rows = {name: waiting[name] for name in list(waiting)[:MAX_ROWS_AT_ONCE]}
        if not rows:
            return
        try:
            await write([row.session for row in rows.values()])
        except StoreUnavailableError as error:
            _log.debug("the index of sessions can't be written: %s", error)
            oldest = asyncio.get_running_loop().time() - MAX_WAIT_SECONDS
            rows = {name: row for name, row in rows.items() if row.since < oldest}
        for name, row in rows.items():
            if waiting.get(name) is row:
                del waiting[name]
