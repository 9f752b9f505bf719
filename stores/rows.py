"""Rows that are written once and deleted by session, in any of the tables."""

from collections.abc import Callable, Sequence
from functools import partial

from sqlalchemy import Connection, Table, delete, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from stores.database import Database

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


async def delete_rows(database: Database, table: Table, session_id: str) -> int:
    """Have no row of the session in `table`; return how many there were. Raises `StoreUnavailableError`.

    If it fails half-way, the rows with the smallest keys are left: turns without holes.
    """
    deleted = 0
    while some := await database.write(partial(_delete_last, table=table, session_id=session_id)):
        deleted += some
    return deleted


def _delete_last(connection: Connection, *, table: Table, session_id: str) -> int:
    keys = list(table.primary_key)
    mine = table.c.session_id == session_id
    last = select(*keys).where(mine).order_by(*(key.desc() for key in keys)).limit(DELETED_AT_ONCE)
    return connection.execute(delete(table).where(mine, tuple_(*keys).in_(last))).rowcount
