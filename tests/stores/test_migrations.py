"""The first use creates the tables: once, by the first caller, and as the code defines them (SES-15)."""

import asyncio
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from tests.stores.builders import turns
from tests.stores.processes import line_of, output_of, start
from tests.stores.ready_files import create_empty_file
from turnkeeper.stores.archive import Archive
from turnkeeper.stores.database import NEWEST
from turnkeeper.stores.database.database import MIGRATIONS, Database, StoreUnavailableError, migrate
from turnkeeper.stores.database.tables import METADATA


@pytest.fixture(autouse=True)
def _files_are_migrated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnkeeper.stores.database.engines._create_file", create_empty_file)


async def test_ses_15_the_migrations_create_the_tables_that_the_code_uses(database: Database):
    differences = await database.read(
        lambda connection: compare_metadata(MigrationContext.configure(connection), METADATA)
    )
    assert differences == []


def test_ses_15_the_migrations_form_one_line_that_ends_with_the_newest():
    script = ScriptDirectory(str(MIGRATIONS))
    assert script.get_heads() == [NEWEST]
    assert len(script.get_bases()) == 1


async def test_ses_15_migrating_again_changes_nothing(database: Database):
    archive = Archive(database)
    await archive.put_turns("s1", turns(1, 3))
    await database.write(migrate)
    assert await archive.count("s1") == 3


async def test_ses_15_existing_tables_are_not_written_to(tmp_path: Path):
    file = tmp_path / "archive.db"
    await Archive(Database.of_file(file)).put_turns("s1", turns(1, 3))
    before = file.stat().st_mtime_ns
    assert await Archive(Database.of_file(file)).count("s1") == 3
    assert file.stat().st_mtime_ns == before


async def test_ses_15_processes_started_at_once_without_tables_all_succeed(url: str):
    script = """
async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    await archive.put_turns("s1", turns(1, 3))
    print(await archive.count("s1"))
asyncio.run(main())
"""
    processes = [await start(script, url) for _ in range(3)]
    for process in processes:
        assert await line_of(process) == "ready"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
    assert [await output_of(process) for process in processes] == ["3"] * 3


async def test_ses_15_concurrent_first_uses_in_one_process_all_succeed(tmp_path: Path):
    files = [tmp_path / f"{number}.db" for number in range(4)] * 3
    counts = await asyncio.gather(*(Archive(Database.of_file(file)).count("s1") for file in files))
    assert counts == [0] * len(files)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE alembic_version SET version_num = '0007'",
        "DELETE FROM alembic_version",
        "ALTER TABLE sessions ADD COLUMN mood TEXT",
        "DROP TABLE fates",
    ],
)
async def test_ses_15_a_store_of_another_version_is_left_unchanged(change: str, url: str, database: Database):
    await database.write(lambda connection: connection.execute(text("SELECT 1")))
    await database.write(lambda connection: connection.execute(text(change)))
    other = Database(url)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="made by another version of Turnkeeper: delete it"):
            await Archive(other).count("s1")
    assert await other.are_tables_other()
    await other.close()


async def test_ses_15_a_store_without_tables_is_not_of_another_version(url: str):
    new = Database(url)
    assert not await new.are_tables_other()
    assert await Archive(new).count("s1") == 0
    assert not await new.are_tables_other()
    await new.close()
