"""Copies rows of a session to another one inside the database: their contents never leave it (SES-18).

Rows that the other session has already stay as they are, so every copy can be repeated.
"""

from collections.abc import Callable, Iterable

from sqlalchemy import ColumnElement, Connection, Table, literal, select

from turnkeeper.models.ids import WorkflowId
from turnkeeper.stores.blobs import Blobs
from turnkeeper.stores.copies.batches import batches
from turnkeeper.stores.database.database import Database
from turnkeeper.stores.database.rows import insert_into
from turnkeeper.stores.database.tables import BLOBS, STEPS, TURNS

TURNS_AT_ONCE = 100
BLOB_BYTES_AT_ONCE = 5_000_000
"""What is copied in one transaction, which must stay short for every session. A blob may have some megabytes."""


class RowCopies:
    """Copies rows from session to session. Every method raises `StoreUnavailableError`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._blobs = Blobs(database)

    async def copy_turns(self, source: WorkflowId, target: WorkflowId, *, last: int) -> None:
        """Copy the archived turns 1 to `last`, with their archived steps."""
        for first in range(1, last + 1, TURNS_AT_ONCE):
            stop = min(last, first + TURNS_AT_ONCE - 1)
            await self._database.write(_row_copy(TURNS, source, target, TURNS.c.number.between(first, stop)))
            await self._database.write(_row_copy(STEPS, source, target, STEPS.c.turn_number.between(first, stop)))

    async def copy_steps(self, source: WorkflowId, target: WorkflowId, *, turn_number: int) -> None:
        """Copy the archived steps of a turn that is itself in the session."""
        await self._database.write(_row_copy(STEPS, source, target, STEPS.c.turn_number == turn_number))

    async def copy_blobs(self, source: WorkflowId, target: WorkflowId, hashes: Iterable[str]) -> None:
        """Copy the texts, or the data of attachments, with these hashes. `source`, `target`: their owners."""
        sizes = await self._blobs.sizes_of(source, hashes)
        names = sorted(sizes)
        for some in batches(names, (sizes[name] for name in names), max_size=BLOB_BYTES_AT_ONCE):
            await self._database.write(_row_copy(BLOBS, source, target, BLOBS.c.hash.in_(some)))


def _row_copy(
    table: Table, source: WorkflowId, target: WorkflowId, which: ColumnElement[bool]
) -> Callable[[Connection], None]:
    others = [column for column in table.columns if column.name != "session_id"]
    # Sorted: two transactions that lock the same rows in different orders would deadlock.
    rows = select(literal(target), *others).where(table.c.session_id == source, which).order_by(*table.primary_key)
    names = ["session_id", *(column.name for column in others)]

    def copy(connection: Connection) -> None:
        insert = insert_into(connection.dialect.name, table)
        connection.execute(insert.from_select(names, rows).on_conflict_do_nothing())

    return copy
