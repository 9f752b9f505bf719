"""Prompts that wait outside of their session, and the fates of those that a session no longer remembers (SES-6).

A session numbers the prompts that it parks, and never gives a number twice. It keeps their order itself: here they lie
in the order of their numbers. Rows of prompts that have gone back to the session stay until it has recorded that.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from sqlalchemy import ColumnElement, Connection, Row, Table, select

from turnkeeper.models.session.queue.prompts import Fate, Prompt
from turnkeeper.stores.database.database import Database, StoreUnavailableError
from turnkeeper.stores.database.rows import delete_rows, put_rows
from turnkeeper.stores.database.tables import FATES, PARKED

Kept = TypeVar("Kept", bound=BaseModel)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Prompts:
    """Parked prompts and fates of all sessions. Every method raises `StoreUnavailableError`; a second run is safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_fates(self, session_id: str, fates: Sequence[Fate]) -> None:
        """Keep all of `fates`, or none; of an id that has one already, the later of the two stays."""
        # In one order everywhere: two that lock the same rows in different orders would wait for each other.
        rows = [_fate_row(session_id, fate) for fate in sorted(fates, key=lambda fate: fate.id)]
        if rows:
            await self._database.write(lambda connection: put_rows(connection, FATES, rows, newest_by="decided_at"))

    async def fate_of(self, session_id: str, message_id: str) -> Fate | None:
        """Return what became of a prompt; `None` where no fate is kept here: it started, waits, or was never sent."""
        wanted = select(FATES.c.fate).where(_is_of(FATES, session_id), FATES.c.message_id == message_id)
        found = await self._database.read(lambda connection: connection.scalar(wanted))
        return None if found is None else _read(Fate, found)

    async def park(self, session_id: str, *, first: int, prompts: Sequence[Prompt]) -> None:
        """Keep `prompts` under the numbers from `first` on, all or none."""
        rows = [_parked_row(session_id, number, prompt) for number, prompt in enumerate(prompts, start=first)]
        if rows:
            await self._database.write(lambda connection: put_rows(connection, PARKED, rows))

    async def parked(self, session_id: str, *, first: int, max_prompts: int, max_bytes: int) -> list[Prompt]:
        """Return the parked prompts from number `first` on, in the order of their numbers.

        They are at most `max_prompts`, with at most `max_bytes` of JSON text together, but one if there is any.
        """
        rows = await self._database.read(
            lambda connection: _read_parked(connection, session_id, first, max_prompts, max_bytes)
        )
        return [_read(Prompt, row.prompt) for row in rows]

    async def forget_parked(self, session_id: str, *, below: int) -> None:
        await delete_rows(self._database, PARKED, session_id, where=PARKED.c.number < below)

    async def delete(self, session_id: str) -> None:
        await delete_rows(self._database, PARKED, session_id)
        await delete_rows(self._database, FATES, session_id)


def _read_parked(
    connection: Connection, session_id: str, first: int, max_prompts: int, max_bytes: int
) -> Sequence[Row[Any, Any]]:
    mine = _is_of(PARKED, session_id)
    sizes = (
        select(PARKED.c.number, PARKED.c.text_bytes)
        .where(mine, PARKED.c.number >= first)
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
    wanted = select(PARKED.c.prompt).where(mine, PARKED.c.number.between(first, last)).order_by(PARKED.c.number)
    return connection.execute(wanted).all()


def _is_of(table: Table, session_id: str) -> ColumnElement[bool]:
    return table.c.session_id == session_id


def _fate_row(session_id: str, fate: Fate) -> dict[str, object]:
    return {
        "session_id": session_id,
        "message_id": fate.id,
        "decided_at": (fate.at - _EPOCH) // timedelta(microseconds=1),
        "fate": fate.model_dump_json(),
    }


def _parked_row(session_id: str, number: int, prompt: Prompt) -> dict[str, object]:
    return {
        "session_id": session_id,
        "number": number,
        "message_id": prompt.id,
        "text_bytes": len(to_json(prompt.text)),
        "prompt": prompt.model_dump_json(),
    }


def _read(model: type[Kept], text: str) -> Kept:
    try:
        return model.model_validate_json(text)
    except ValidationError:
        raise StoreUnavailableError("The archive holds a prompt in a form this release can't read.") from None
