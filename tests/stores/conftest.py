"""The database that archive and large texts are tested with: a new SQLite file, or PostgreSQL where it is asked for.

`STORE_TEST_URL=postgresql://… pytest tests/stores` runs what is not about files there; every test finds it empty.
"""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stores.archive import Archive
from stores.blobs import Blobs
from stores.database import Database
from stores.tables import METADATA


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    url = os.environ.get("STORE_TEST_URL")
    database = Database(url) if url else Database.of_file(tmp_path / "archive.db")
    if url:
        await database.write(
            lambda connection: [connection.execute(table.delete()) for table in METADATA.tables.values()]
        )
    yield database
    await database.close()


@pytest.fixture
def archive(database: Database) -> Archive:
    return Archive(database)


@pytest.fixture
def blobs(database: Database) -> Blobs:
    return Blobs(database)
