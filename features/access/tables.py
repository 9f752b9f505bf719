"""The tables of access: keys, logins, and the audit, which outlives the sessions that it names."""

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, String, Table, Text

from turnkeeper.stores.database.tables import MAX_ID_CHARS, METADATA

API_KEYS = Table(
    "api_keys",
    METADATA,
    Column("id", String(64), primary_key=True),
    # SHA-256 of the secret: 256 random bits, which no dictionary has, need no slow hash.
    Column("digest", LargeBinary, nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("user", String(MAX_ID_CHARS)),
    Column("role", String(16), nullable=False),
    # Microseconds since 1970.
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
)

LOGINS = Table(
    "logins",
    METADATA,
    # SHA-256 of the token in the browser's cookie, in hex.
    Column("digest", String(64), primary_key=True),
    # The key that was used; without one, a token of the issuer.
    Column("key_id", String(64)),
    Column("caller_id", String(MAX_ID_CHARS), nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("user", String(MAX_ID_CHARS)),
    Column("role", String(16), nullable=False),
    # Microseconds since 1970.
    Column("expires_at", BigInteger, nullable=False),
    Index(None, "expires_at"),
)

AUDIT = Table(
    "audit",
    METADATA,
    Column("id", String(64), primary_key=True),
    # Microseconds since 1970.
    Column("at", BigInteger, nullable=False),
    Column("tenant", String(MAX_ID_CHARS), nullable=False),
    Column("caller", String(MAX_ID_CHARS), nullable=False),
    Column("user", String(MAX_ID_CHARS)),
    Column("role", String(32), nullable=False),
    Column("operation", String(64), nullable=False),
    Column("action", String(32), nullable=False),
    Column("session_id", String(MAX_ID_CHARS)),
    Column("message_id", String(MAX_ID_CHARS)),
    Column("call_id", String(64)),
    Column("key_id", String(64)),
    # Names with commas between them.
    Column("fields", Text, nullable=False),
    # The outcome. Without one, the gateway stopped before it knew.
    Column("status", Integer),
    Index(None, "tenant", "at"),
    Index(None, "session_id", "at"),
)
