"""The audit: who changed what, when, and with what outcome; rows are added and never changed (API-4).

A request has an entry for each change that it asks for, written before the change, and each entry has an outcome,
written afterwards. Entries without an outcome are of requests whose gateway stopped in the middle.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, FromClause, Row, ScalarSelect, and_, func, or_, select, tuple_

from turnkeeper.stores.database.database import Database
from turnkeeper.stores.database.moments import microseconds, moment_of
from turnkeeper.stores.database.rows import insert_missing
from turnkeeper.stores.database.tables import AUDIT, AUDIT_OUTCOMES

REPEATABLE = ("prompt", "retry", "message_task", "withdraw", "cancel", "approve", "reject", "allow")
"""Actions on one prompt or call, which happen once however often they are requested."""

REPEATABLE_ON_SESSION = ("delete", "create_task", "cancel_task")


@dataclass(frozen=True)
class AuditRow:
    """A change that a request asks for. `number` counts the changes of one request from 0."""

    request_id: str
    number: int
    at: datetime
    tenant: str
    caller: str
    user: str | None
    role: str
    operation: str
    action: str
    session_id: str | None
    message_id: str | None
    call_id: str | None
    fields: tuple[str, ...] = ()
    key_id: str | None = None


@dataclass(frozen=True)
class OutcomeRow:
    """What became of a change: the status that answers it, and the ids that the gateway has chosen."""

    request_id: str
    status: int
    session_id: str | None = None
    message_id: str | None = None
    number: int = 0
    """Of the change in its request."""


@dataclass(frozen=True)
class RecordedChange:
    """An entry with its outcome. `repeats`: the first accepted request for the same thing."""

    row: AuditRow
    status: int | None
    repeats: str | None


@dataclass(frozen=True)
class AuditFilter:
    """Which entries of a tenant; None: all."""

    tenant: str
    session_id: str | None = None
    user: str | None = None
    action: str | None = None
    since: datetime | None = None


Position = tuple[int, str, int]
"""Of an entry in the list: its time in microseconds since 1970, its request and number."""


class Audit:
    """All entries. Every method raises `StoreUnavailableError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, rows: Sequence[AuditRow], outcomes: Sequence[OutcomeRow]) -> None:
        """Add entries and outcomes, in one transaction; those that are there stay as they are."""
        await self._database.write(lambda connection: insert_entries(connection, rows, outcomes))

    async def page(self, which: AuditFilter, *, before: Position | None, limit: int) -> list[RecordedChange]:
        """Return at most `limit` entries, newest first, from `before` on."""
        query = (
            select(AUDIT, _SESSION, _MESSAGE, AUDIT_OUTCOMES.c.status, _repeats().label("repeats"))
            .outerjoin(AUDIT_OUTCOMES, _is_outcome_of(AUDIT_OUTCOMES, AUDIT))
            .where(*_conditions(which))
            .order_by(AUDIT.c.at.desc(), AUDIT.c.request_id.desc(), AUDIT.c.number.desc())
            .limit(limit)
        )
        if before:
            query = query.where(tuple_(AUDIT.c.at, AUDIT.c.request_id, AUDIT.c.number) < before)
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return [_recorded(row) for row in rows]


_SESSION = func.coalesce(AUDIT.c.session_id, AUDIT_OUTCOMES.c.session_id).label("the_session")
_MESSAGE = func.coalesce(AUDIT_OUTCOMES.c.message_id, AUDIT.c.message_id).label("the_message")


def position_of(change: RecordedChange) -> Position:
    """Return where the page after `change` begins."""
    return (microseconds(change.row.at), change.row.request_id, change.row.number)


def _conditions(which: AuditFilter) -> list[ColumnElement[bool]]:
    conditions = [AUDIT.c.tenant == which.tenant]
    if which.session_id is not None:
        session_id = which.session_id
        conditions.append(or_(AUDIT.c.session_id == session_id, AUDIT_OUTCOMES.c.session_id == session_id))
    if which.user is not None:
        conditions.append(AUDIT.c.user == which.user)
    if which.action is not None:
        conditions.append(AUDIT.c.action == which.action)
    if which.since is not None:
        conditions.append(AUDIT.c.at >= microseconds(which.since))
    return conditions


def _is_outcome_of(outcome: FromClause, entry: FromClause) -> ColumnElement[bool]:
    return and_(outcome.c.request_id == entry.c.request_id, outcome.c.number == entry.c.number)


def _repeats() -> ScalarSelect[str]:
    """Return the first accepted request before this one that asked for the same thing."""
    first, outcome = AUDIT.alias(), AUDIT_OUTCOMES.alias()
    of_one = and_(AUDIT.c.action.in_(REPEATABLE), or_(AUDIT.c.message_id.is_not(None), AUDIT.c.call_id.is_not(None)))
    return (
        select(first.c.request_id)
        .join(outcome, _is_outcome_of(outcome, first))
        .where(
            or_(of_one, AUDIT.c.action.in_(REPEATABLE_ON_SESSION)),
            first.c.tenant == AUDIT.c.tenant,
            first.c.session_id == AUDIT.c.session_id,
            first.c.action == AUDIT.c.action,
            first.c.message_id.is_not_distinct_from(AUDIT.c.message_id),
            first.c.call_id.is_not_distinct_from(AUDIT.c.call_id),
            tuple_(first.c.at, first.c.request_id) < tuple_(AUDIT.c.at, AUDIT.c.request_id),
            outcome.c.status < 400,
        )
        .order_by(first.c.at, first.c.request_id)
        .limit(1)
        .correlate(AUDIT)
        .scalar_subquery()
    )


def insert_entries(connection: Connection, rows: Sequence[AuditRow], outcomes: Sequence[OutcomeRow]) -> None:
    """Add entries and outcomes in this transaction; those that are there stay as they are."""
    if rows:
        values = [{**asdict(row), "at": microseconds(row.at), "fields": ",".join(row.fields)} for row in rows]
        insert_missing(connection, AUDIT, values)
    if outcomes:
        insert_missing(connection, AUDIT_OUTCOMES, [asdict(outcome) for outcome in outcomes])


def _recorded(row: Row[tuple[object, ...]]) -> RecordedChange:
    entry = AuditRow(
        request_id=row.request_id,
        number=row.number,
        at=moment_of(row.at),
        tenant=row.tenant,
        caller=row.caller,
        user=row.user,
        role=row.role,
        operation=row.operation,
        action=row.action,
        session_id=row.the_session,
        message_id=row.the_message,
        call_id=row.call_id,
        key_id=row.key_id,
        fields=tuple(name for name in row.fields.split(",") if name),
    )
    return RecordedChange(entry, row.status, row.repeats)
