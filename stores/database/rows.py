"""Writes rows so that a second attempt does no harm, and deletes rows by session, in any table."""

from collections.abc import Callable, Sequence
from functools import partial

from sqlalchemy import ColumnElement, Connection, Table, delete, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from turnkeeper.stores.database.database import Database

DELETE_BATCH_ROWS = 100
"""Rows deleted in one transaction, which overwrites them and must stay short for every session."""

INSERTS: dict[str, Callable[[Table], postgresql.Insert | sqlite.Insert]] = {
    "postgresql": postgresql.insert,
    "sqlite": sqlite.insert,
}
"""By dialect: `insert` with `on_conflict_do_update`."""


def insert_missing(connection: Connection, table: Table, rows: Sequence[dict[str, object]]) -> None:
    """Insert the rows whose keys are not in `table` yet.

    A check before the insert would not be enough: two attempts of one activity may write at the same time.
    """
    insert = INSERTS[connection.dialect.name]
    connection.execute(insert(table).on_conflict_do_nothing(), rows)


def put_rows(
    connection: Connection, table: Table, rows: Sequence[dict[str, object]], *, newest_by: str | None = None
) -> None:
    """Insert the rows into `table`, or replace the rows with the same keys.

    With `newest_by`, a row with a greater value in that column stays, so a late second attempt undoes nothing.
    """
    insert = INSERTS[connection.dialect.name](table)
    keys = [column.name for column in table.primary_key]
    values = {column.name: insert.excluded[column.name] for column in table.columns if column.name not in keys}
    where = None if newest_by is None else insert.excluded[newest_by] >= table.c[newest_by]
    connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=values, where=where), rows)


async def delete_rows(
    database: Database, table: Table, session_id: str, *, where: ColumnElement[bool] | None = None
) -> int:
    """Delete the session's rows in `table`; return how many were deleted. Raises `StoreUnavailableError`.

    With `where`, only matching rows are deleted. After a failure half-way, the rows with the smallest keys are left, so
    turns have no gaps.
    """
    matches = table.c.session_id == session_id
    if where is not None:
        matches &= where
    deleted = 0
    while count := await database.write(partial(_delete_last, table=table, matches=matches)):
        deleted += count
    return deleted


def _delete_last(connection: Connection, *, table: Table, matches: ColumnElement[bool]) -> int:
    keys = list(table.primary_key)
    last = select(*keys).where(matches).order_by(*(key.desc() for key in keys)).limit(DELETE_BATCH_ROWS)
    return connection.execute(delete(table).where(matches, tuple_(*keys).in_(last))).rowcount
