"""Parked prompts, and fates that sessions no longer remember (SES-6).

A session gives each parked prompt a new number. Only the session knows the order of its queue; here prompts are ordered
by number. A prompt that the session has fetched stays here until the session has recorded that.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy import ColumnElement, Connection, Row, Table, select

from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.queue.prompts import Fate, Prompt, text_bytes
from turnkeeper.stores.database.database import Database, StoreUnavailableError
from turnkeeper.stores.database.moments import microseconds
from turnkeeper.stores.database.rows import delete_rows, put_rows
from turnkeeper.stores.database.tables import FATES, PARKED

Stored = TypeVar("Stored", bound=BaseModel)


class Prompts:
    """Parked prompts and fates of all sessions. Every method raises `StoreUnavailableError` and can be repeated."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_fates(self, session_id: WorkflowId, fates: Sequence[Fate]) -> None:
        """Store all of `fates`, or none; if an id already has one, the later fate stays."""
        # Sorted: two transactions that lock the same rows in different orders would deadlock.
        rows = [_fate_row(session_id, fate) for fate in sorted(fates, key=lambda fate: fate.id)]
        if rows:
            await self._database.write(lambda connection: put_rows(connection, FATES, rows, newest_by="decided_at"))

    async def fate_of(self, session_id: WorkflowId, message_id: str) -> Fate | None:
        """Return the fate of a prompt; `None` if none is stored: it started, is waiting, or was never sent."""
        query = select(FATES.c.fate).where(_is_of(FATES, session_id), FATES.c.message_id == message_id)
        text = await self._database.read(lambda connection: connection.scalar(query))
        return None if text is None else _read(Fate, text)

    async def newest_fates(self, session_id: WorkflowId, *, limit: int) -> list[Fate]:
        """Return the session's last fates that are no turn, newest last."""
        query = select(FATES.c.fate).where(_is_of(FATES, session_id))
        query = query.order_by(FATES.c.decided_at.desc(), FATES.c.message_id).limit(limit)
        stored = await self._database.read(lambda connection: connection.scalars(query).all())
        return [_read(Fate, text) for text in reversed(stored)]

    async def park(self, session_id: WorkflowId, *, first: int, prompts: Sequence[Prompt]) -> None:
        """Store all of `prompts`, or none, under numbers from `first` on."""
        rows = [_parked_row(session_id, number, prompt) for number, prompt in enumerate(prompts, start=first)]
        if rows:
            await self._database.write(lambda connection: put_rows(connection, PARKED, rows))

    async def parked(self, session_id: WorkflowId, *, first: int, max_prompts: int, max_bytes: int) -> list[Prompt]:
        """Return the parked prompts from number `first` on, by number.

        At most `max_prompts`, with at most `max_bytes` of JSON text together, but at least one if there is any.
        """
        rows = await self._database.read(
            lambda connection: _read_parked(connection, session_id, first, max_prompts, max_bytes)
        )
        return [_read(Prompt, row.prompt) for row in rows]

    async def forget_parked(self, session_id: WorkflowId, *, below: int) -> None:
        await delete_rows(self._database, PARKED, session_id, where=PARKED.c.number < below)

    async def delete(self, session_id: WorkflowId) -> None:
        await delete_rows(self._database, PARKED, session_id)
        await delete_rows(self._database, FATES, session_id)


def _read_parked(
    connection: Connection, session_id: WorkflowId, first: int, max_prompts: int, max_bytes: int
) -> Sequence[Row[Any, Any]]:
    is_own = _is_of(PARKED, session_id)
    sizes = (
        select(PARKED.c.number, PARKED.c.text_bytes)
        .where(is_own, PARKED.c.number >= first)
        .order_by(PARKED.c.number)
        .limit(max_prompts)
    )
    last: int | None = None
    for number, size in connection.execute(sizes):
        max_bytes -= size
        if last is not None and max_bytes < 0:
            break
        last = number
    if last is None:
        return []
    query = select(PARKED.c.prompt).where(is_own, PARKED.c.number.between(first, last)).order_by(PARKED.c.number)
    return connection.execute(query).all()


def _is_of(table: Table, session_id: WorkflowId) -> ColumnElement[bool]:
    return table.c.session_id == session_id


def _fate_row(session_id: WorkflowId, fate: Fate) -> dict[str, object]:
    return {
        "session_id": session_id,
        "message_id": fate.id,
        "decided_at": microseconds(fate.at),
        "fate": fate.model_dump_json(),
    }


def _parked_row(session_id: WorkflowId, number: int, prompt: Prompt) -> dict[str, object]:
    return {
        "session_id": session_id,
        "number": number,
        "message_id": prompt.id,
        "text_bytes": text_bytes(prompt),
        "prompt": prompt.model_dump_json(),
    }


def _read(model: type[Stored], text: str) -> Stored:
    try:
        return model.model_validate_json(text)
    except ValidationError:
        raise StoreUnavailableError("The archive holds a prompt in a form this version can't read.") from None
