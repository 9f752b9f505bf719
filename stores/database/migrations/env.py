"""Alembic's migration environment: it always uses the caller's connection and open transaction."""

from alembic import context

from turnkeeper.stores.database.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
context.run_migrations()
