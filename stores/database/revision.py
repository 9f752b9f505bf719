"""The revision of a database: the last migration that it has had, by Alembic's table."""

from sqlalchemy import Connection, column, inspect, select, table

NEWEST = "0007"
"""The last migration in `migrations/versions`."""

_VERSIONS = table("alembic_version", column("version_num"))


def is_current(connection: Connection) -> bool:
    """Return whether every migration of this release has been run, and no other."""
    if not inspect(connection).has_table(_VERSIONS.name):
        return False
    return set(connection.scalars(select(_VERSIONS.c.version_num))) == {NEWEST}
