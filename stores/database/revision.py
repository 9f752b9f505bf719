"""Which tables a database has, by Alembic's table and their columns."""

from typing import Literal

from sqlalchemy import Connection, column, inspect, select, table

from turnkeeper.stores.database import NEWEST
from turnkeeper.stores.database.tables import METADATA

_VERSIONS = table("alembic_version", column("version_num"))


def tables_in_place(connection: Connection) -> Literal["none", "current", "other"]:
    """Return whether the database has the tables of this code; `other`: tables of other code, which it can't use."""
    inspector = inspect(connection)
    if not inspector.has_table(_VERSIONS.name):
        return "none"
    if set(connection.scalars(select(_VERSIONS.c.version_num))) != {NEWEST}:
        return "other"
    columns = {name: {row["name"] for row in rows} for (_, name), rows in inspector.get_multi_columns().items()}
    is_current = all(columns.get(name) == set(own.columns.keys()) for name, own in METADATA.tables.items())
    return "current" if is_current else "other"
