"""The archive: turns that a session no longer holds, and the early steps of its long turns (SES-15).

Theory of operation. A session drops turns once they are here, so what is here is the only copy, and it has no holes:
turns are numbered from 1, steps of a turn from 0, and nothing is written unless all before it is there. A file that is
new, or another session's place, so refuses the tail of a transcript instead of swallowing it.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import to_json
from sqlalchemy import ColumnElement, Connection, Row, Table, func, select

from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.trajectory import Step
from turnkeeper.models.transcript.transcript import visible_size
from turnkeeper.models.wire import Frozen
from turnkeeper.stores.database.database import Database, StoreUnavailableError
from turnkeeper.stores.database.rows import delete_rows, insert_missing
from turnkeeper.stores.database.tables import STEPS, TURNS

LEAST_TURN_BYTES = 256
"""A turn's JSON, as it is shown, never has less: names alone take more."""

_STEP: TypeAdapter[Step] = TypeAdapter(Step)


class ArchiveGapError(StoreUnavailableError):
    """The archive does not hold all that comes before: it is not the one this session was moved to."""


class ArchiveConflictError(StoreUnavailableError):
    """The archive holds other turns of this session in these places: it is not the one it was moved to."""


class ArchivedTurn(Frozen):
    """A turn, and its place in the session's whole transcript, from 1."""

    number: int = Field(ge=1)
    turn: ConversationMessage


class Archive:
    """The archived turns of all sessions. Every method raises `StoreUnavailableError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_turns(self, session_id: str, turns: Sequence[ArchivedTurn]) -> None:
        """Have all of `turns`, which follow each other, or none; a second run changes nothing.

        Raises `ValueError` where they don't follow each other.

        Raises:
            ArchiveGapError: The turns before them are not all here.
            ArchiveConflictError: Another turn is here in the place of one of them.
        """
        if any(later.number != earlier.number + 1 for earlier, later in pairwise(turns)):
            raise ValueError(f"turns numbered {[archived.number for archived in turns]!r:.80} do not follow each other")
        if turns:
            await self._database.write(partial(_insert_turns, session_id=session_id, turns=turns))

    async def page(
        self, session_id: str, *, before: int | None, limit: int | None, max_bytes: int
    ) -> list[ArchivedTurn]:
        """Return the newest turns with a number below `before` (None: of all) that fit, oldest first.

        That are at most `limit` turns (None: any number) whose JSON, as they are shown, has at most `max_bytes`
        together; but always one, if there is any.
        """
        read = partial(_read_page, session_id=session_id, before=before, limit=limit, max_bytes=max_bytes)
        return [_archived(row) for row in await self._database.read(read)]

    async def find(self, session_id: str, turn_id: str) -> ArchivedTurn | None:
        """Return the newest turn with this id; None: it is not here."""
        wanted = select(TURNS.c.number, TURNS.c.turn).where(_is_turn(session_id, turn_id))
        wanted = wanted.order_by(TURNS.c.number.desc()).limit(1)
        row = await self._database.read(lambda connection: connection.execute(wanted).one_or_none())
        return None if row is None else _archived(row)

    async def number_of(self, session_id: str, turn_id: str) -> int | None:
        """Return the place of the newest turn with this id in the transcript, from 1; None: it is not here."""
        wanted = select(func.max(TURNS.c.number)).where(_is_turn(session_id, turn_id))
        return await self._database.read(lambda connection: connection.scalar(wanted))

    async def count(self, session_id: str) -> int:
        return await self._database.read(lambda connection: _count(connection, TURNS, _is_of(TURNS, session_id)))

    async def put_steps(self, session_id: str, turn_number: int, first: int, steps: Sequence[Step]) -> None:
        """Have all of `steps` of the turn `turn_number`, or none, the first at the position `first`, from 0.

        A second run changes nothing.

        Raises:
            ArchiveGapError: The steps before them are not all here.
            ArchiveConflictError: Another step is here in the place of one of them.
        """
        if steps:
            rows: list[dict[str, object]] = [
                {"session_id": session_id, "turn_number": turn_number, "position": position, "step": _step_json(step)}
                for position, step in enumerate(steps, start=first)
            ]
            mine = _is_of(STEPS, session_id) & (STEPS.c.turn_number == turn_number)
            await self._database.write(partial(_insert_steps, mine=mine, first=first, rows=rows))

    async def steps(self, session_id: str, turn_number: int, *, first: int = 0, count: int | None = None) -> list[Step]:
        """Return the archived steps of a turn from the position `first` on, at most `count` (None: all)."""
        mine = _is_of(STEPS, session_id) & (STEPS.c.turn_number == turn_number)
        wanted = select(STEPS.c.step).where(mine, STEPS.c.position >= first).order_by(STEPS.c.position).limit(count)
        found = await self._database.read(lambda connection: connection.scalars(wanted).all())
        return [_step(step) for step in found]

    async def delete(self, session_id: str) -> int:
        """Have no turn and no step of the session; return how many turns there were."""
        await delete_rows(self._database, STEPS, session_id)
        return await delete_rows(self._database, TURNS, session_id)


def _insert_turns(connection: Connection, *, session_id: str, turns: Sequence[ArchivedTurn]) -> None:
    first, last = turns[0].number, turns[-1].number
    mine = _is_of(TURNS, session_id)
    _require_all_before(connection, TURNS, mine & (TURNS.c.number < first), expected=first - 1)
    insert_missing(connection, TURNS, [_row_of(session_id, archived) for archived in turns])
    held = select(TURNS.c.number, TURNS.c.turn_id).where(mine, TURNS.c.number.between(first, last))
    places = {archived.number: archived.turn.id for archived in turns}
    if {row.number: row.turn_id for row in connection.execute(held)} != places:
        raise ArchiveConflictError(
            f"The archive holds other turns of this session at {first} to {last}: "
            "it is not the one the session was moved to."
        )


def _insert_steps(
    connection: Connection, *, mine: ColumnElement[bool], first: int, rows: list[dict[str, object]]
) -> None:
    _require_all_before(connection, STEPS, mine & (STEPS.c.position < first), expected=first)
    insert_missing(connection, STEPS, rows)
    held = select(STEPS.c.step).where(mine, STEPS.c.position.between(first, first + len(rows) - 1))
    if connection.scalars(held.order_by(STEPS.c.position)).all() != [row["step"] for row in rows]:
        raise ArchiveConflictError(
            "The archive holds other steps of this turn: it is not the one the session was moved to."
        )


def _require_all_before(connection: Connection, table: Table, before: ColumnElement[bool], *, expected: int) -> None:
    held = _count(connection, table, before)
    if held != expected:
        raise ArchiveGapError(
            f"The archive holds {held} earlier {table.name} where there are {expected}: "
            "it is not the one the session was moved to."
        )


def _read_page(
    connection: Connection, *, session_id: str, before: int | None, limit: int | None, max_bytes: int
) -> Sequence[Row[Any, Any]]:
    mine = _is_of(TURNS, session_id)
    older = mine if before is None else mine & (TURNS.c.number < before)
    most = max(0, max_bytes) // LEAST_TURN_BYTES + 1
    newest_first = (
        select(TURNS.c.number, TURNS.c.shown_bytes)
        .where(older)
        .order_by(TURNS.c.number.desc())
        .limit(most if limit is None else max(1, min(limit, most)))
    )
    fitting = _that_fit(connection.execute(newest_first).all(), max_bytes)
    if not fitting:
        return []
    wanted = select(TURNS.c.number, TURNS.c.turn).where(mine, TURNS.c.number.between(fitting[-1], fitting[0]))
    return connection.execute(wanted.order_by(TURNS.c.number)).all()


def _that_fit(newest_first: Sequence[Row[Any, Any]], max_bytes: int) -> list[int]:
    fitting: list[int] = []
    for number, size in newest_first:
        max_bytes -= size
        if fitting and max_bytes < 0:
            break
        fitting.append(number)
    return fitting


def _count(connection: Connection, table: Table, condition: ColumnElement[bool]) -> int:
    return connection.execute(select(func.count()).select_from(table).where(condition)).scalar_one()


def _is_of(table: Table, session_id: str) -> ColumnElement[bool]:
    return table.c.session_id == session_id


def _is_turn(session_id: str, turn_id: str) -> ColumnElement[bool]:
    return _is_of(TURNS, session_id) & (TURNS.c.turn_id == turn_id)


def _row_of(session_id: str, archived: ArchivedTurn) -> dict[str, object]:
    return {
        "session_id": session_id,
        "number": archived.number,
        "turn_id": archived.turn.id,
        "shown_bytes": visible_size(archived.turn),
        "turn": to_json(archived.turn.without_defaults()).decode(),
    }


def _archived(row: Row[Any, Any]) -> ArchivedTurn:
    try:
        return ArchivedTurn(number=row.number, turn=ConversationMessage.model_validate_json(row.turn))
    except ValidationError:
        raise StoreUnavailableError(f"The archive holds turn {row.number} in a form this release can't read.") from None


def _step_json(step: Step) -> str:
    return to_json(step.model_dump(mode="json", exclude_defaults=True)).decode()


def _step(text: str) -> Step:
    try:
        return _STEP.validate_json(text)
    except ValidationError:
        raise StoreUnavailableError("The archive holds a step in a form this release can't read.") from None
