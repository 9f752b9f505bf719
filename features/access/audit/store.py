"""The audit: who changed what, when, and with what outcome (API-4).

A change has one row, written before the change, which gets its outcome once and is never changed otherwise. A row
without an outcome is of a gateway that stopped in between.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, select, tuple_

from turnkeeper.features.access.tables import AUDIT
from turnkeeper.stores.database.database import Database
from turnkeeper.stores.database.moments import microseconds, moment_of
from turnkeeper.stores.database.rows import insert_into


@dataclass
class AuditRow:
    """A change that somebody asks for."""

    id: str
    at: datetime
    tenant: str
    caller: str
    user: str | None
    role: str
    operation: str
    action: str
    session_id: str | None = None
    message_id: str | None = None
    call_id: str | None = None
    key_id: str | None = None
    fields: tuple[str, ...] = ()
    status: int | None = None
    """The outcome, as the status of an answer; None: it is not known, or not yet."""


@dataclass(frozen=True)
class AuditFilter:
    """Which entries of a tenant; None: all."""

    tenant: str
    session_id: str | None = None
    user: str | None = None
    action: str | None = None
    since: datetime | None = None


Position = tuple[int, str]
"""Of an entry in the list: its time in microseconds since 1970, and its id."""


class Audit:
    """All entries. Every method raises `StoreUnavailableError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, rows: Sequence[AuditRow]) -> None:
        """Add entries, and complete those that had no outcome, in one transaction; all others stay as they are."""
        values = [_values(row) for row in rows]
        if values:
            await self._database.write(lambda connection: _put(connection, values))

    async def page(self, which: AuditFilter, *, before: Position | None, limit: int) -> list[AuditRow]:
        """Return at most `limit` entries, newest first, from `before` on."""
        query = select(AUDIT).where(*_conditions(which)).order_by(AUDIT.c.at.desc(), AUDIT.c.id.desc()).limit(limit)
        if before:
            query = query.where(tuple_(AUDIT.c.at, AUDIT.c.id) < before)
        return [_entry(row) for row in await self._database.read(lambda connection: connection.execute(query).all())]


def position_of(row: AuditRow) -> Position:
    """Return where the page after `row` begins."""
    return (microseconds(row.at), row.id)


def put_entry(connection: Connection, row: AuditRow) -> None:
    """Add an entry in this transaction."""
    _put(connection, [_values(row)])


def _put(connection: Connection, values: Sequence[dict[str, Any]]) -> None:
    insert = insert_into(connection.dialect.name, AUDIT)
    completed = {name: insert.excluded[name] for name in ("session_id", "message_id", "status")}
    has_no_outcome = AUDIT.c.status.is_(None)
    connection.execute(
        insert.on_conflict_do_update(index_elements=["id"], set_=completed, where=has_no_outcome), values
    )


def _conditions(which: AuditFilter) -> list[ColumnElement[bool]]:
    values = {"session_id": which.session_id, "user": which.user, "action": which.action}
    conditions = [AUDIT.c.tenant == which.tenant]
    conditions += [AUDIT.c[name] == value for name, value in values.items() if value is not None]
    if which.since is not None:
        conditions.append(AUDIT.c.at >= microseconds(which.since))
    return conditions


def _values(row: AuditRow) -> dict[str, Any]:
    return {**asdict(row), "at": microseconds(row.at), "fields": ",".join(row.fields)}


def _entry(row: Row[Any]) -> AuditRow:
    values = row._asdict()
    return AuditRow(**{**values, "at": moment_of(row.at), "fields": tuple(filter(None, row.fields.split(",")))})
