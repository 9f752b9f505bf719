"""New SQLite files come with their tables: to migrate each takes 30 ms, and a run makes thousands of them.

Tests of the migrations, and processes that are not forked, run the migrations."""

import os
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from uuid import uuid4

from sqlalchemy import create_engine

from turnkeeper.stores.database import engines
from turnkeeper.stores.private_files import private_opener

create_empty_file = engines._create_file


def make_files_with_tables() -> None:
    """Create this process's SQLite files as copies of one that is migrated once."""
    engines._create_file = create_file_with_tables


def create_file_with_tables(file: Path) -> None:
    """Create the file at once with all it has to contain; an existing one stays unchanged."""
    if file.exists():
        return
    part = file.with_name(f"{file.name}.{uuid4()}")
    create_empty_file(part)
    try:
        with open(part, "wb", opener=private_opener) as new:
            new.write(migrated_file())
        with suppress(FileExistsError):
            os.link(part, file)
    finally:
        part.unlink()


@cache
def migrated_file() -> bytes:
    """Return the bytes of a file after all migrations."""
    from turnkeeper.stores.database.database import migrate  # Alembic is slow to load

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "archive.db"
        engine = create_engine(f"sqlite:///{file}")
        with engine.begin() as connection:
            migrate(connection)
        engine.dispose()
        return file.read_bytes()
