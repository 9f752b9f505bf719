"""The table of tasks: handles by which clients of the Model Context Protocol find them."""

from sqlalchemy import BigInteger, Column, Index, String, Table

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
