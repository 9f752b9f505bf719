"""Writing rows so that a second attempt does no harm, and deleting them by session, in any of the tables."""

from collections.abc import Callable, Sequence
from functools import partial

from sqlalchemy import ColumnElement, Connection, Table, delete, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from turnkeeper.stores.database.database import Database

DELETED_AT_ONCE = 100
"""Rows deleted in one transaction: it overwrites what it deletes, and has to be done in time for any session."""

_INSERTS: dict[str, Callable[[Table], postgresql.Insert | sqlite.Insert]] = {
    "postgresql": postgresql.insert,
    "sqlite": sqlite.insert,
}


def insert_missing(connection: Connection, table: Table, rows: Sequence[dict[str, object]]) -> None:
    """Have every row in `table`; one whose key is there already stays as it is.

    Asking first what is there would not do: two attempts of one activity may write at the same time.
    """
    insert = _INSERTS[connection.dialect.name]
    connection.execute(insert(table).on_conflict_do_nothing(), rows)


def put_rows(
    connection: Connection, table: Table, rows: Sequence[dict[str, object]], *, newest_by: str | None = None
) -> None:
    """Insert every row into `table`, or put it in the place of the row with its key.

    With `newest_by`, a row stays whose value in that column is greater: a late second attempt undoes nothing.
    """
    insert = _INSERTS[connection.dialect.name](table)
    keys = [column.name for column in table.primary_key]
    values = {column.name: insert.excluded[column.name] for column in table.columns if column.name not in keys}
    where = None if newest_by is None else insert.excluded[newest_by] >= table.c[newest_by]
    connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=values, where=where), rows)


async def delete_rows(
    database: Database, table: Table, session_id: str, *, where: ColumnElement[bool] | None = None
) -> int:
    """Have no row of the session in `table`; return how many there were. Raises `StoreUnavailableError`.

    With `where`, only the rows for which it holds are deleted. If it fails half-way, the rows with the smallest keys
    are left: turns without holes.
    """
    mine = table.c.session_id == session_id
    if where is not None:
        mine &= where
    deleted = 0
    while some := await database.write(partial(_delete_last, table=table, mine=mine)):
        deleted += some
    return deleted


def _delete_last(connection: Connection, *, table: Table, mine: ColumnElement[bool]) -> int:
    keys = list(table.primary_key)
    last = select(*keys).where(mine).order_by(*(key.desc() for key in keys)).limit(DELETED_AT_ONCE)
    return connection.execute(delete(table).where(mine, tuple_(*keys).in_(last))).rowcount
