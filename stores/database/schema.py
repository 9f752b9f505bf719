"""Runs the migrations that a database has not had.

`Database` imports this only if there are any (`revision.py`): Alembic takes 12 MB and a tenth of a second to load.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

MIGRATIONS = Path(__file__).with_name("migrations")


def migrate(connection: Connection) -> None:
    """Run, in the transaction of `connection`, every migration that has not been run; safe to repeat.

    Alembic keeps what is being migrated in globals: one at a time in a process.
    """
    config = Config(attributes={"connection": connection})
    # The configuration is an INI file, in which a "%" begins something.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    command.upgrade(config, "head")
