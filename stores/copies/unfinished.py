"""Copies of sessions that have begun: turns are in the archive, and their session may not be started yet (SES-18).

Until it is, nobody sees these turns, and their id is taken. The same copy can be repeated; another one can't have the
id.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, Select, delete, select, update

from turnkeeper.models.ids import WorkflowId
from turnkeeper.stores.database.database import Database
from turnkeeper.stores.database.moments import microseconds
from turnkeeper.stores.database.rows import insert_missing
from turnkeeper.stores.database.tables import UNFINISHED_COPIES

CLAIMED = ""
"""The source of a copy whose rows are being deleted."""


class UnfinishedCopies:
    """The unfinished copies of all tenants. Every method raises `StoreUnavailableError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, session_id: WorkflowId, source: str, *, now: datetime) -> str:
        """Note that a copy of `source` begins at `now`, unless one of another source has; return the source noted."""
        row: dict[str, object] = {"session_id": session_id, "source": source, "began_at": microseconds(now)}

        def note(connection: Connection) -> str:
            insert_missing(connection, UNFINISHED_COPIES, [row])
            again = update(UNFINISHED_COPIES).values(began_at=row["began_at"])
            connection.execute(again.where(_has(session_id), UNFINISHED_COPIES.c.source == source))
            owner: str = connection.execute(_source_of(session_id)).scalar_one()
            return owner

        return await self._database.write(note)

    async def find(self, session_id: WorkflowId) -> str | None:
        """Return the source of the copy that has begun under this id; `None`: none has, or it is finished."""
        return await self._database.read(lambda connection: connection.scalar(_source_of(session_id)))

    async def finish(self, session_id: WorkflowId) -> None:
        """Forget the copy: its session has started, or its rows are deleted."""
        change = delete(UNFINISHED_COPIES).where(_has(session_id))
        await self._database.write(lambda connection: connection.execute(change))

    async def claim(self, before: datetime, *, now: datetime, limit: int) -> Sequence[WorkflowId]:
        """Return the ids of at most `limit` copies from `before` a moment, the oldest first, to delete their rows.

        Nobody can repeat them any more. They count as begun `now`, so that nobody else deletes the rows meanwhile.
        """
        query = select(UNFINISHED_COPIES.c.session_id).where(UNFINISHED_COPIES.c.began_at < microseconds(before))
        query = query.order_by(UNFINISHED_COPIES.c.began_at, UNFINISHED_COPIES.c.session_id).limit(limit)
        claims = update(UNFINISHED_COPIES).values(source=CLAIMED, began_at=microseconds(now))
        claims = claims.where(UNFINISHED_COPIES.c.began_at < microseconds(before))

        def claim(connection: Connection) -> list[WorkflowId]:
            ids = [WorkflowId(one) for one in connection.scalars(query)]
            # Another process may have claimed or repeated it since the query.
            return [one for one in ids if connection.execute(claims.where(_has(one))).rowcount]

        return await self._database.write(claim)


def _has(session_id: WorkflowId) -> ColumnElement[bool]:
    return UNFINISHED_COPIES.c.session_id == session_id


def _source_of(session_id: WorkflowId) -> Select[str]:
    return select(UNFINISHED_COPIES.c.source).where(_has(session_id))
