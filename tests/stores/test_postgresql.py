"""PostgreSQL may hang, go away and come back: callers get an error in time, and none once it is fixed (SES-15)."""

import asyncio
import traceback
from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.restart_ports import LAST
from tests.stores.builders import archived, hash_of, turns
from tests.stores.postgresql import PostgreSQL
from tests.stores.processes import output_of, start
from tests.waiting import BOUND
from turnkeeper.stores.archive import Archive
from turnkeeper.stores.blobs import Blobs
from turnkeeper.stores.database import database as module
from turnkeeper.stores.database.database import MAX_OPERATIONS, Database, StoreUnavailableError


@pytest.fixture
async def database(postgresql_url: str) -> AsyncIterator[Database]:
    database = Database(postgresql_url)
    yield database
    await database.close()


async def test_ses_15_a_server_that_is_down_is_an_error_until_it_is_up(
    server: PostgreSQL, database: Database, archive: Archive
):
    await archive.put_turns("s1", turns(1, 3))
    server.stop()
    assert server.port <= LAST, "or else another program may have its port when it starts again"
    try:
        for attempt in (archive.count("s1"), archive.put_turns("s1", turns(4, 4))):
            with pytest.raises(
                StoreUnavailableError, match=r"^The store's database (can't be reached|fails) \(\w+\)\.$"
            ):
                await attempt
    finally:
        server.start()
    await archive.put_turns("s1", turns(4, 4))
    assert await archive.count("s1") == 4


async def test_ses_15_a_lock_held_by_another_transaction_times_out_and_leaves_nothing(
    postgresql_url: str, archive: Archive, monkeypatch
):
    await archive.put_turns("s1", turns(1, 3))
    other = await asyncpg.connect(postgresql_url)
    locked = other.transaction()
    await locked.start()
    await other.execute("LOCK TABLE turns IN EXCLUSIVE MODE")
    monkeypatch.setattr(module, "OPERATION_SECONDS", 0.3)
    for _ in range(2):
        attempts = (archive.put_turns("s1", turns(4, 4)) for _ in range(MAX_OPERATIONS))
        ends = await asyncio.wait_for(asyncio.gather(*attempts, return_exceptions=True), BOUND)
        assert {str(end) for end in ends} == {"The store did not answer within 0.3 s."}
    monkeypatch.undo()
    await locked.rollback()
    await other.close()
    await archive._database.close()
    assert await archive.count("s1") == 3
    await archive.put_turns("s1", turns(4, 4))


async def test_ses_15_concurrent_writes_of_several_processes_all_succeed(postgresql_url: str, archive: Archive):
    script = """
async def main():
    for number in range(1, 16):
        await archive.put_turns("s1", turns(number, number))
asyncio.run(main())
"""
    for writer in [await start(script, postgresql_url) for _ in range(2)]:
        await output_of(writer)
    assert await archive.page("s1", before=None, limit=None, max_bytes=1_000_000) == turns(1, 15)


async def test_ses_15_characters_that_postgresql_text_cannot_hold_are_stored(archive: Archive, blobs: Blobs):
    await archive.put_turns("s1", [archived(1, text="a\0b")])
    await blobs.put("s1", ["a\0b"])
    assert (await archive.find("s1", "m1")) == archived(1, text="a\0b")
    assert await blobs.get("s1", [hash_of("a\0b")]) == {hash_of("a\0b"): "a\0b"}


async def test_ses_15_an_error_shows_no_host_no_sql_and_no_text_even_in_its_traceback(
    server: PostgreSQL, postgresql_url: str, blobs: Blobs
):
    await blobs.put("s1", ["anything"])
    server.run_sql("DROP TABLE blobs", database=postgresql_url.rpartition("/")[2])
    with pytest.raises(StoreUnavailableError) as failed:
        await blobs.put("s1", ["anything"])
    assert str(failed.value) == "The store's database fails (UndefinedTableError)."
    text = "".join(traceback.format_exception(failed.value))
    assert not [word for word in ("INSERT", hash_of("anything"), server.password, str(server.port)) if word in text]


@pytest.mark.parametrize(
    ("right", "wrong", "error"),
    [
        ("/test_", "/nowhere_", "InvalidCatalogNameError"),
        ("//tests:", "//tests:x", "InvalidPasswordError"),
        ("//tests:", "//nobody:", "InvalidPasswordError"),
    ],
)
async def test_ses_15_a_database_that_denies_access_is_an_error(
    postgresql_url: str, right: str, wrong: str, error: str
):
    with pytest.raises(StoreUnavailableError) as failed:
        await Archive(Database(postgresql_url.replace(right, wrong))).count("s1")
    assert str(failed.value) == f"The store's database fails ({error})."


async def test_ses_15_required_encryption_is_never_skipped(postgresql_url: str):
    with pytest.raises(StoreUnavailableError, match=r"^The store's database can't be reached \(\w+\)\.$"):
        await Archive(Database(f"{postgresql_url}?sslmode=require")).count("s1")
