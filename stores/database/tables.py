"""The tables of the store, as the newest migration leaves them (SES-15). Those of features are in their `tables.py`.

Turns and steps are stored as JSON text, large texts as bytes. Values that queries need have their own columns.
"""

from sqlalchemy import BigInteger, Column, Float, Index, Integer, LargeBinary, MetaData, String, Table, Text

MAX_ID_CHARS = 255
"""Longer than our own ids, since names derived from a session's id are stored too."""

METADATA = MetaData(naming_convention={"pk": "pk_%(table_name)s", "ix": "ix_%(table_name)s_%(column_0_N_name)s"})

DELETED_WITH_SESSION = {"deleted_with_session": True}
"""The `info` of a feature's table whose rows are a session's, by `session_id`, and go when it is deleted."""

TURNS = Table(
    "turns",
    METADATA,
    Column("session_id", String(MAX_ID_CHARS), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("turn_id", String(MAX_ID_CHARS), nullable=False),
    Column("shown_bytes", Integer, nullable=False),
    Column("turn", Text, nullable=False),
    # Not unique: a session forgets ids after 1,000 prompts; a reused id is another turn (SES-6).
    Index(None, "session_id", "turn_id"),
)

STEPS = Table(
    "steps",
    METADATA,
    Column("session_id", String(MAX_ID_CHARS), primary_key=True),
    Column("turn_number", Integer, primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("step", Text, nullable=False),
)

BLOBS = Table(
    "blobs",
    METADATA,
    Column("session_id", String(MAX_ID_CHARS), primary_key=True),
    Column("hash", String(64), primary_key=True),
    Column("content", LargeBinary, nullable=False),
)

FATES = Table(
    "fates",
    METADATA,
    Column("session_id", String(MAX_ID_CHARS), primary_key=True),
    Column("message_id", String(MAX_ID_CHARS), primary_key=True),
    # Microseconds since 1970. If a rejected id is sent again, its later fate stays.
    Column("decided_at", BigInteger, nullable=False),
    Column("fate", Text, nullable=False),
)

PARKED = Table(
    "parked_prompts",
    METADATA,
    Column("session_id", String(MAX_ID_CHARS), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("message_id", String(MAX_ID_CHARS), nullable=False),
    Column("text_bytes", Integer, nullable=False),
    Column("prompt", Text, nullable=False),
    # Not unique: an unparked prompt stays until it is deleted, and its id may be reused later.
    Index(None, "session_id", "message_id"),
)

SESSIONS = Table(
    "sessions",
    METADATA,
    Column("session_id", String(MAX_ID_CHARS), primary_key=True),
    Column("tenant", String(MAX_ID_CHARS), nullable=False),
    Column("title", Text),
    Column("user", Text),
    Column("model", Text),
    Column("status", String(16), nullable=False),
    Column("turn_count", Integer, nullable=False),
    Column("cost", Float),
    Column("preview", Text),
    Column("parent", String(MAX_ID_CHARS)),
    # Of a task: its status, what its agent reported, and `HandOffReport` as JSON.
    Column("task_status", String(16)),
    Column("percent", Integer),
    Column("message", Text),
    Column("hand_off", Text),
    # Microseconds since 1970.
    Column("started_at", BigInteger, nullable=False),
    Column("last_activity_at", BigInteger, nullable=False),
    Column("closed_at", BigInteger),
    # The session's revision that the row is from; 0: from a start, or from Temporal's list of sessions.
    Column("revision", BigInteger, nullable=False),
    # Id, title and preview in lower case, since the databases' own functions know different alphabets.
    Column("searched_text", Text, nullable=False),
    Index(None, "tenant", "last_activity_at", "session_id"),
)

INDEX_REPAIRS = Table(
    "index_repairs",
    METADATA,
    Column("name", String(64), primary_key=True),
    # Microseconds since 1970: all sessions that started or ended before have a row.
    Column("compared_until", BigInteger, nullable=False),
)
