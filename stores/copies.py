"""Reading the whole transcript of a session, and copying its rows to another one (SES-15, SES-18).

Rows are copied inside the database: their contents never leave it. Those that the other session has already stay as
they are, so every copy can be repeated.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TypeVar

from sqlalchemy import ColumnElement, Connection, Table, literal, select

from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.copies.document import ExportedTurn
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.trajectory import ReasoningTrajectory
from turnkeeper.models.transcript.transcript import TranscriptState
from turnkeeper.stores.archive import Archive, ArchiveGapError
from turnkeeper.stores.blobs import Blobs
from turnkeeper.stores.database.database import Database
from turnkeeper.stores.database.rows import insert_into
from turnkeeper.stores.database.tables import BLOBS, STEPS, TURNS

Item = TypeVar("Item")

MISSING_TURNS = "The archive lacks turns that the session has moved to it."
"""It is not the one that the session uses, such as an empty new one."""

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


async def whole_turns(
    archive: Archive, owner: WorkflowId, transcript: TranscriptState, *, last: int | None = None
) -> AsyncIterator[list[ExportedTurn]]:
    """Yield the turns 1 to `last` (`None`: all) with all their steps, in parts, oldest first.

    `transcript` is that of the session, which has the turns after the archived ones.
    Raises `StoreUnavailableError` if the archive can't be read or lacks one.
    """
    turns, archived = transcript.turns, transcript.archived
    count = transcript.count if last is None else last
    for first in range(1, min(archived, count) + 1, TURNS_AT_ONCE):
        stop = min(archived, count, first + TURNS_AT_ONCE - 1)
        rows = await archive.range(owner, first, stop)
        if [row.number for row in rows] != list(range(first, stop + 1)):
            raise ArchiveGapError(MISSING_TURNS)
        yield [await _with_all_steps(archive, owner, row.number, row.turn) for row in rows]
    if count > archived:
        numbered = enumerate(turns[: count - archived], start=archived + 1)
        yield [await _with_all_steps(archive, owner, number, turn) for number, turn in numbered]


async def _with_all_steps(archive: Archive, owner: WorkflowId, number: int, turn: ConversationMessage) -> ExportedTurn:
    omitted = turn.steps_omitted
    if not omitted:
        return ExportedTurn(number=number, turn=turn)
    steps = await archive.steps(owner, number, count=omitted)
    if len(steps) != omitted:
        raise ArchiveGapError(MISSING_TURNS)
    trajectory = ReasoningTrajectory(steps=[*steps, *turn.steps])
    whole = turn.model_copy(update={"reasoning_trajectory": trajectory, "steps_omitted": 0})
    return ExportedTurn(number=number, archived_steps=omitted, turn=whole)


def batches(items: Iterable[Item], sizes: Iterable[int], *, max_size: int) -> Iterator[list[Item]]:
    """Yield the items in lists of at most `max_size` together; a larger item is in a list of its own.

    >>> list(batches("abcd", [3, 2, 9, 1], max_size=5))
    [['a', 'b'], ['c'], ['d']]
    """
    batch, room = list[Item](), max_size
    for item, size in zip(items, sizes, strict=True):
        if batch and room < size:
            yield batch
            batch, room = [], max_size
        batch.append(item)
        room -= size
    if batch:
        yield batch
