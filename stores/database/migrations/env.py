"""What Alembic runs to migrate: here always over a connection that is given, in a transaction that has begun."""

from alembic import context

from turnkeeper.stores.database.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
context.run_migrations()
