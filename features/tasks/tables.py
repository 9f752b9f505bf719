"""Task handles of the Model Context Protocol: their owners, and the prompts that they stand for (TSK-6).

A handle is a random name for one prompt in one session, and only its owner can use it. It is stored as a row, so any
gateway can read it, also after a restart.
"""

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import BigInteger, Column, Connection, Index, String, Table, delete, select

from turnkeeper.models.ids import WorkflowId
from turnkeeper.stores.database.database import Database
from turnkeeper.stores.database.rows import insert_missing, microseconds, moment_of
from turnkeeper.stores.database.tables import DELETED_WITH_SESSION, MAX_ID_CHARS, METADATA

TASK_HANDLES = Table(
    "task_handles",
    METADATA,
    Column("handle", String(64), primary_key=True),
    Column("owner", String(MAX_ID_CHARS), nullable=False),
    Column("session_id", String(MAX_ID_CHARS), nullable=False),
    Column("message_id", String(MAX_ID_CHARS)),
    # Microseconds since 1970.
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    # For deleting by session and by expiry.
    Index(None, "session_id"),
    Index(None, "expires_at"),
    info=DELETED_WITH_SESSION,
)


LIFETIME = timedelta(days=30)
"""How long a handle can be used. The task itself exists as long as its session."""

RANDOM_BYTES = 24

MAX_EXPIRED_AT_ONCE = 100
"""How many expired handles are deleted when a new one is created."""


@dataclass(frozen=True)
class TaskHandle:
    """A handle of a session's prompt; if `message_id` is `None`, of the first prompt of a task."""

    id: str
    owner: str
    session_id: WorkflowId
    message_id: str | None
    created_at: datetime
    expires_at: datetime


class TaskHandles:
    """The handles of all sessions. Every method raises `StoreUnavailableError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, session_id: WorkflowId, message_id: str | None, *, owner: str, now: datetime) -> TaskHandle:
        """Create and store a handle of a prompt."""
        handle = TaskHandle(secrets.token_urlsafe(RANDOM_BYTES), owner, session_id, message_id, now, now + LIFETIME)
        await self._database.write(lambda connection: _insert(connection, handle, now))
        return handle

    async def find(self, handle: str, *, owner: str, now: datetime) -> TaskHandle | None:
        """Return a handle; `None` if it is unknown, expired, or of another owner."""
        is_own = (TASK_HANDLES.c.handle == handle) & (TASK_HANDLES.c.owner == owner)
        query = select(TASK_HANDLES).where(is_own, TASK_HANDLES.c.expires_at > microseconds(now))
        row = await self._database.read(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            return None
        created_at, expires_at = moment_of(row.created_at), moment_of(row.expires_at)
        return TaskHandle(row.handle, row.owner, row.session_id, row.message_id, created_at, expires_at)


def _insert(connection: Connection, handle: TaskHandle, now: datetime) -> None:
    key = TASK_HANDLES.c.handle
    expired = select(key).where(TASK_HANDLES.c.expires_at <= microseconds(now)).limit(MAX_EXPIRED_AT_ONCE)
    # Transactions that delete the same rows in different orders would deadlock.
    connection.execute(delete(TASK_HANDLES).where(key.in_(expired.with_for_update(skip_locked=True))))
    row: dict[str, object] = {
        "handle": handle.id,
        "owner": handle.owner,
        "session_id": handle.session_id,
        "message_id": handle.message_id,
        "created_at": microseconds(handle.created_at),
        "expires_at": microseconds(handle.expires_at),
    }
    insert_missing(connection, TASK_HANDLES, [row])
