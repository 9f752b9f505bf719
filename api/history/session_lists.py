"""Lists of sessions, from our own index (API-1, docs/decisions/0049).

A cursor is the place in the index where its page ended, with a checksum that finds what is no cursor of ours. Anybody
can compute it, so the place can still be anything.
"""

import base64
import binascii
from dataclasses import replace
from hashlib import sha256
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from turnkeeper.api.problems import invalid, problem
from turnkeeper.api.store_calls import read_store, seconds_from_now
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.http_responses import ListedSession, SessionList
from turnkeeper.models.ids import WorkflowId, session_id_of
from turnkeeper.models.session.tasks.task_input import NO_PARENT
from turnkeeper.models.transcript.index_entry import IndexStatus
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.session_index import IndexedSession, IndexPosition, IndexQuery, position_of
from turnkeeper.stores.stores import Stores

PAGE = 50
"""Sessions of a page."""

MAX_MOMENT = 2**62
"""Later than all times, in microseconds since 1970; databases have room for twice as much."""

_CHECKSUM_BYTES = 12

_POSITION = TypeAdapter(
    tuple[
        Annotated[int, Field(strict=True, ge=-MAX_MOMENT, le=MAX_MOMENT)],
        Annotated[str, Field(pattern=r"^[^\x00]*$")],
    ]
)


class SessionLists:
    """Lists the sessions of a tenant. Methods raise `ProblemError`."""

    def __init__(self, stores: Stores, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._stores = stores

    async def sessions(
        self, query: IndexQuery, *, status: IndexStatus | None = None, cursor: str | None = None
    ) -> SessionList:
        """Return a page of sessions, those with the latest activity first; `open` has those that wait for a person."""
        statuses: list[IndexStatus] = [status] if status else []
        if status == "open":
            statuses.append("awaiting_approval")
        rows, next_cursor = await self.rows(replace(query, statuses=statuses), limit=PAGE, cursor=cursor)
        return SessionList(sessions=[_listed(row) for row in rows], next_cursor=next_cursor)

    async def rows(
        self, query: IndexQuery, *, limit: int, cursor: str | None
    ) -> tuple[list[IndexedSession], str | None]:
        """Return a page of at most `limit` rows, and the cursor of the next one."""
        after = position_in(cursor) if cursor is not None else None
        until = seconds_from_now(self._timeouts.request)
        try:
            await read_store(self._stores.index_writer.flush(), until=until)  # a caller finds what it has just started
            rows = await read_store(self._stores.index.page(query, limit=limit + 1, after=after), until=until)
        except StoreUnavailableError as error:
            raise problem("archive-unavailable", reason=error) from error
        return rows[:limit], cursor_at(position_of(rows[limit - 1])) if len(rows) > limit else None


def _listed(row: IndexedSession) -> ListedSession:
    return ListedSession(
        workflow_id=session_id_of(row.session_id),
        title=row.title,
        user=row.user,
        model=row.model,
        status=row.status,
        turn_count=row.turn_count,
        cost=row.cost,
        preview=row.preview,
        parent=parent_of(row),
        started_at=row.started_at,
        last_activity_at=row.last_activity_at,
        closed_at=row.closed_at,
    )


def parent_of(row: IndexedSession) -> str | None:
    """Return the session that a task was started for, if there is one."""
    return None if row.parent == NO_PARENT else row.parent


def cursor_at(position: IndexPosition) -> str:
    """Return the cursor of the page after `position`."""
    token = _POSITION.dump_json((position.last_activity_at, position.session_id))
    return base64.urlsafe_b64encode(_checksum(token) + token).decode()


def position_in(cursor: str) -> IndexPosition:
    """Return the place that a cursor stands for. Raises `ProblemError` 422 for what is no cursor of ours."""
    try:
        decoded = base64.b64decode(cursor, altchars=b"-_", validate=True)
        checksum, token = decoded[:_CHECKSUM_BYTES], decoded[_CHECKSUM_BYTES:]
        moment, workflow_id = _POSITION.validate_json(token)
    except (binascii.Error, ValidationError, ValueError) as error:
        raise invalid("cursor", "is not a cursor of this list") from error
    if checksum != _checksum(token):
        raise invalid("cursor", "is not a cursor of this list")
    return IndexPosition(moment, WorkflowId(workflow_id))


def _checksum(token: bytes) -> bytes:
    return sha256(b"turnkeeper:index:" + token).digest()[:_CHECKSUM_BYTES]
