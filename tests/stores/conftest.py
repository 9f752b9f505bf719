"""The databases that archive and large texts are tested with: a new SQLite file, and a new database in PostgreSQL.

PostgreSQL is started once, where its programs are installed; where they are not, its tests are skipped.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.stores.postgresql import HOST, SUPERUSER, PostgreSQL, find_programs, running
from turnkeeper.stores.archive import Archive
from turnkeeper.stores.blobs import Blobs
from turnkeeper.stores.database.database import Database


@pytest.fixture(scope="session")
def server() -> Iterator[PostgreSQL]:
    pytest.importorskip("asyncpg", reason="the package asyncpg is not installed: turnkeeper[postgres]")
    programs = find_programs()
    if programs is None:
        pytest.skip("no PostgreSQL is installed: apt-get install postgresql")
    with running(programs) as server:
        yield server


@pytest.fixture
def postgresql_url(server: PostgreSQL) -> Iterator[str]:
    with server.new_database() as name:
        yield f"postgresql://{SUPERUSER}:{quote(server.password, safe='')}@{HOST}:{server.port}/{name}"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Name a database that is empty."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/archive.db"
    return request.getfixturevalue("postgresql_url")


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    database = Database(url)
    yield database
    await database.close()


@pytest.fixture
def archive(database: Database) -> Archive:
    return Archive(database)


@pytest.fixture
def blobs(database: Database) -> Blobs:
    return Blobs(database)
