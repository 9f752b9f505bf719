"""Writes rows so that a second attempt does no harm, and deletes rows by session, in any table.

Moments are whole numbers, which every database stores and compares exactly.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, Table, delete, select, tuple_

from turnkeeper.stores.database.database import Database

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(moment: datetime) -> int:
    """Return the microseconds since 1970.

    >>> moment_of(microseconds(datetime(2026, 1, 1, tzinfo=UTC)))
    datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)
    """
    return (moment - _EPOCH) // timedelta(microseconds=1)


def moment_of(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


DELETE_BATCH_ROWS = 100
"""Rows deleted in one transaction, which overwrites them and must stay short for every session."""


def insert_into(dialect_name: str, table: Table) -> "postgresql.Insert | sqlite.Insert":
    """Return an insert with `on_conflict_do_update`, of a connection's dialect; other dialects stay unloaded."""
    dialect: Any = import_module(f"sqlalchemy.dialects.{dialect_name}")
    insert: postgresql.Insert | sqlite.Insert = dialect.insert(table)
    return insert


def insert_missing(connection: Connection, table: Table, rows: Sequence[dict[str, object]]) -> None:
    """Insert the rows whose keys are not in `table` yet.

    A check before the insert would not be enough: two attempts of one activity may write at the same time.
    """
    connection.execute(insert_into(connection.dialect.name, table).on_conflict_do_nothing(), rows)


def put_rows(
    connection: Connection, table: Table, rows: Sequence[dict[str, object]], *, newest_by: str | None = None
) -> None:
    """Insert the rows into `table`, or replace the rows with the same keys.

    With `newest_by`, a row with a greater value in that column stays, so a late second attempt undoes nothing.
    """
    insert = insert_into(connection.dialect.name, table)
    keys = [column.name for column in table.primary_key]
    values = {column.name: insert.excluded[column.name] for column in table.columns if column.name not in keys}
    where = None if newest_by is None else insert.excluded[newest_by] >= table.c[newest_by]
    connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=values, where=where), rows)


async def delete_rows(
    database: Database,
    table: Table,
    session_id: str,
    *,
    where: ColumnElement[bool] | None = None,
    batch_rows: int | None = None,
) -> int:
    """Delete the session's rows in `table`; return how many were deleted. Raises `StoreUnavailableError`.

    `batch_rows` are deleted in one transaction, by default `DELETE_BATCH_ROWS`. With `where`, only matching rows are
    deleted. After a failure half-way, the rows with the smallest keys are left, so turns have no gaps.
    """
    matches = table.c.session_id == session_id
    if where is not None:
        matches &= where
    deleted = 0
    while count := await database.write(
        partial(_delete_last, table=table, matches=matches, rows=batch_rows or DELETE_BATCH_ROWS)
    ):
        deleted += count
    return deleted


def _delete_last(connection: Connection, *, table: Table, matches: ColumnElement[bool], rows: int) -> int:
    keys = list(table.primary_key)
    last = select(*keys).where(matches).order_by(*(key.desc() for key in keys)).limit(rows)
    return connection.execute(delete(table).where(matches, tuple_(*keys).in_(last))).rowcount
