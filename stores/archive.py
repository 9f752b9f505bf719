"""The archive: oldest turns of sessions, early steps of long turns, parked prompts, forgotten fates (SES-6, SES-15).

A session drops turns after they are stored, so the archive has the only copy, without gaps: turns are numbered from 1,
steps of a turn from 0, and nothing is written unless everything before it is there. So an empty or wrong database
rejects the tail of a transcript instead of accepting it.

A session gives each parked prompt a new number. Only the session knows the order of its queue; in `Prompts` they are
ordered by number. A prompt that the session has fetched stays there until the session has recorded that.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import to_json
from sqlalchemy import ColumnElement, Connection, Row, Table, func, select

from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.prompts import Fate, Prompt, text_bytes
from turnkeeper.models.transcript.conversation import ConversationMessage, Step
from turnkeeper.models.transcript.transcript import visible_size
from turnkeeper.models.wire import Frozen
from turnkeeper.stores.database.database import Database, StoreUnavailableError
from turnkeeper.stores.database.rows import delete_rows, insert_missing, microseconds, put_rows
from turnkeeper.stores.database.tables import FATES, PARKED, STEPS, TURNS

MISSING_TURNS = "The archive lacks turns that the session has moved to it."
"""It is not the one that the session uses, such as an empty new one."""

MIN_TURN_BYTES = 256
"""Minimum of a turn's JSON: its field names alone need more."""

_STEP: TypeAdapter[Step] = TypeAdapter(Step)


class ArchiveGapError(StoreUnavailableError):
    """Earlier turns or steps are missing: this is not the archive that the session uses."""


class ArchiveConflictError(StoreUnavailableError):
    """Other turns or steps are in these places: this is not the archive that the session uses."""


class ArchivedTurn(Frozen):
    """A turn and its number in the session's transcript, from 1."""

    number: int = Field(ge=1)
    turn: ConversationMessage


class Archive:
    """The archived turns of all sessions. Every method raises `StoreUnavailableError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_turns(self, session_id: WorkflowId, turns: Sequence[ArchivedTurn]) -> None:
        """Store all of these consecutive turns, or none; a repetition changes nothing.

        Raises `ValueError` if they are not consecutive.

        Raises:
            ArchiveGapError: An earlier turn is missing.
            ArchiveConflictError: Another turn has the number of one of them.
        """
        if any(later.number != earlier.number + 1 for earlier, later in pairwise(turns)):
            raise ValueError(f"turns numbered {[archived.number for archived in turns]!r:.80} do not follow each other")
        if turns:
            await self._database.write(partial(_insert_turns, session_id=session_id, turns=turns))

    async def page(
        self, session_id: WorkflowId, *, before: int | None, limit: int | None, max_bytes: int
    ) -> list[ArchivedTurn]:
        """Return the newest turns with a number below `before` (`None`: of all), oldest first.

        At most `limit` turns (`None`: any number) with at most `max_bytes` of JSON together, but at least one if there
        is any.
        """
        read = partial(_read_page, session_id=session_id, before=before, limit=limit, max_bytes=max_bytes)
        return [_archived(row) for row in await self._database.read(read)]

    async def range(self, session_id: WorkflowId, first: int, last: int) -> list[ArchivedTurn]:
        """Return the turns with the numbers `first` to `last`, oldest first; missing ones are left out."""
        query = select(TURNS.c.number, TURNS.c.turn).where(
            _of_session(TURNS, session_id), TURNS.c.number.between(first, last)
        )
        query = query.order_by(TURNS.c.number)
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return [_archived(row) for row in rows]

    async def find(self, session_id: WorkflowId, turn_id: str) -> ArchivedTurn | None:
        """Return the newest turn with this id, or `None`."""
        query = select(TURNS.c.number, TURNS.c.turn).where(_is_turn(session_id, turn_id))
        query = query.order_by(TURNS.c.number.desc()).limit(1)
        row = await self._database.read(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else _archived(row)

    async def number_of(self, session_id: WorkflowId, turn_id: str) -> int | None:
        """Return the number of the newest turn with this id, from 1, or `None`."""
        query = select(func.max(TURNS.c.number)).where(_is_turn(session_id, turn_id))
        return await self._database.read(lambda connection: connection.scalar(query))

    async def count(self, session_id: WorkflowId) -> int:
        return await self._database.read(lambda connection: _count(connection, TURNS, _of_session(TURNS, session_id)))

    async def put_steps(self, session_id: WorkflowId, turn_number: int, first: int, steps: Sequence[Step]) -> None:
        """Store all of `steps` of turn `turn_number`, or none, at positions from `first` on, counted from 0.

        A repetition changes nothing.

        Raises:
            ArchiveGapError: An earlier step is missing.
            ArchiveConflictError: Another step has the position of one of them.
        """
        if steps:
            forms = [to_json(step.model_dump(mode="json", exclude_defaults=True)).decode() for step in steps]
            rows: list[dict[str, object]] = [
                {"session_id": session_id, "turn_number": turn_number, "position": position, "step": form}
                for position, form in enumerate(forms, start=first)
            ]
            is_own = _of_session(STEPS, session_id) & (STEPS.c.turn_number == turn_number)
            await self._database.write(partial(_insert_steps, is_own=is_own, first=first, rows=rows))

    async def steps(
        self, session_id: WorkflowId, turn_number: int, *, first: int = 0, count: int | None = None
    ) -> list[Step]:
        """Return the archived steps of a turn from the position `first` on, at most `count` (None: all)."""
        is_own = _of_session(STEPS, session_id) & (STEPS.c.turn_number == turn_number)
        query = select(STEPS.c.step).where(is_own, STEPS.c.position >= first).order_by(STEPS.c.position).limit(count)
        steps = await self._database.read(lambda connection: connection.scalars(query).all())
        return [_step(step) for step in steps]

    async def delete(self, session_id: WorkflowId) -> int:
        """Delete all turns and steps of the session; return the number of turns."""
        await delete_rows(self._database, STEPS, session_id)
        return await delete_rows(self._database, TURNS, session_id)


def _insert_turns(connection: Connection, *, session_id: WorkflowId, turns: Sequence[ArchivedTurn]) -> None:
    first, last = turns[0].number, turns[-1].number
    is_own = _of_session(TURNS, session_id)
    _require_contiguous(connection, TURNS, is_own & (TURNS.c.number < first), expected=first - 1)
    insert_missing(connection, TURNS, [_turn_row(session_id, archived) for archived in turns])
    stored = select(TURNS.c.number, TURNS.c.turn_id).where(is_own, TURNS.c.number.between(first, last))
    places = {archived.number: archived.turn.id for archived in turns}
    if {row.number: row.turn_id for row in connection.execute(stored)} != places:
        raise ArchiveConflictError(
            f"The archive holds other turns of this session at {first} to {last}: "
            "it is not the one the session was moved to."
        )


def _insert_steps(
    connection: Connection, *, is_own: ColumnElement[bool], first: int, rows: list[dict[str, object]]
) -> None:
    _require_contiguous(connection, STEPS, is_own & (STEPS.c.position < first), expected=first)
    insert_missing(connection, STEPS, rows)
    stored = select(STEPS.c.step).where(is_own, STEPS.c.position.between(first, first + len(rows) - 1))
    if connection.scalars(stored.order_by(STEPS.c.position)).all() != [row["step"] for row in rows]:
        raise ArchiveConflictError(
            "The archive holds other steps of this turn: it is not the one the session was moved to."
        )


def _require_contiguous(connection: Connection, table: Table, before: ColumnElement[bool], *, expected: int) -> None:
    count = _count(connection, table, before)
    if count != expected:
        raise ArchiveGapError(
            f"The archive holds {count} earlier {table.name} where there are {expected}: "
            "it is not the one the session was moved to."
        )


def _read_page(
    connection: Connection, *, session_id: WorkflowId, before: int | None, limit: int | None, max_bytes: int
) -> Sequence[Row[Any, Any]]:
    is_own = _of_session(TURNS, session_id)
    older = is_own if before is None else is_own & (TURNS.c.number < before)
    max_turns = max(0, max_bytes) // MIN_TURN_BYTES + 1
    newest_first = (
        select(TURNS.c.number, TURNS.c.shown_bytes)
        .where(older)
        .order_by(TURNS.c.number.desc())
        .limit(max_turns if limit is None else max(1, min(limit, max_turns)))
    )
    fitting = _rows_within(connection.execute(newest_first).all(), max_bytes)
    if not fitting:
        return []
    query = select(TURNS.c.number, TURNS.c.turn).where(is_own, TURNS.c.number.between(fitting[-1], fitting[0]))
    return connection.execute(query.order_by(TURNS.c.number)).all()


def _rows_within(newest_first: Sequence[Row[Any, Any]], max_bytes: int) -> list[int]:
    fitting: list[int] = []
    for number, size in newest_first:
        max_bytes -= size
        if fitting and max_bytes < 0:
            break
        fitting.append(number)
    return fitting


def _count(connection: Connection, table: Table, condition: ColumnElement[bool]) -> int:
    return connection.execute(select(func.count()).select_from(table).where(condition)).scalar_one()


def _of_session(table: Table, session_id: WorkflowId) -> ColumnElement[bool]:
    return table.c.session_id == session_id


def _is_turn(session_id: WorkflowId, turn_id: str) -> ColumnElement[bool]:
    return _of_session(TURNS, session_id) & (TURNS.c.turn_id == turn_id)


def _turn_row(session_id: WorkflowId, archived: ArchivedTurn) -> dict[str, object]:
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
        raise StoreUnavailableError(f"The archive holds turn {row.number} in a form this version can't read.") from None


def _step(text: str) -> Step:
    try:
        return _STEP.validate_json(text)
    except ValidationError:
        raise StoreUnavailableError("The archive holds a step in a form this version can't read.") from None


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
        return None if text is None else _parse(Fate, text)

    async def newest_fates(self, session_id: WorkflowId, *, limit: int) -> list[Fate]:
        """Return the session's last fates that are no turn, newest last."""
        query = select(FATES.c.fate).where(_is_of(FATES, session_id))
        query = query.order_by(FATES.c.decided_at.desc(), FATES.c.message_id).limit(limit)
        stored = await self._database.read(lambda connection: connection.scalars(query).all())
        return [_parse(Fate, text) for text in reversed(stored)]

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
        return [_parse(Prompt, row.prompt) for row in rows]

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


def _parse(model: type[Stored], text: str) -> Stored:
    try:
        return model.model_validate_json(text)
    except ValidationError:
        raise StoreUnavailableError("The archive holds a prompt in a form this version can't read.") from None
