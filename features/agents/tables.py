"""The table of agents: every version that was ever registered."""

from sqlalchemy import BigInteger, Column, Integer, String, Table, Text

from turnkeeper.stores.database.tables import METADATA

AGENTS = Table(
    "agents",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("digest", String(64), nullable=False),
    Column("data", Text, nullable=False),
    # Microseconds since 1970.
    Column("created_at", BigInteger, nullable=False),
    # When a worker or a person named it last: the newest of these is what `weather` means.
    Column("named_at", BigInteger, nullable=False),
)
