"""The SQLite file may be broken, away, locked or full: callers get an error, and none once it is fixed (SES-15)."""

import asyncio
import shutil
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import event

from tests.stores.builders import archived, turns
from tests.stores.processes import SECONDS, line_of, output_of, start
from turnkeeper.stores.archive import Archive, ArchiveGapError
from turnkeeper.stores.blobs import Blobs
from turnkeeper.stores.database.database import Database, StoreUnavailableError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "archive.db"


@pytest.fixture
def archive(file: Path) -> Archive:
    return Archive(Database.of_file(file))


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


async def test_ses_15_files_are_created_at_first_use_and_are_private(archive: Archive, file: Path):
    assert not file.parent.exists()
    assert await archive.count("s1") == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["a b?c=d#e%20f.db", "ü'\".db"])
async def test_ses_15_any_file_name_works(tmp_path: Path, name: str):
    await Archive(Database.of_file(tmp_path / name)).put_turns("s1", turns(1, 2))
    assert [path.name for path in tmp_path.iterdir()] == [name]


async def test_ses_15_a_relative_path_is_relative_to_the_starting_directory(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    archive = Archive(Database("sqlite:///archive.db"))
    monkeypatch.chdir("/")
    await archive.put_turns("s1", turns(1, 1))
    assert (tmp_path / "archive.db").exists()


async def test_ses_15_a_closed_store_is_one_file_that_can_be_copied(archive: Archive, file: Path, tmp_path: Path):
    await archive.put_turns("s1", turns(1, 3))
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    shutil.copy(file, tmp_path / "copy.db")
    assert await Archive(Database.of_file(tmp_path / "copy.db")).count("s1") == 3


async def test_ses_15_a_missing_file_is_an_error_until_it_is_back(archive: Archive, file: Path, tmp_path: Path):
    await archive.put_turns("s1", turns(1, 3))
    file.rename(tmp_path / "away")
    for attempt in (archive.count("s1"), archive.put_turns("s1", turns(4, 4))):
        with pytest.raises(StoreUnavailableError, match="is missing or can't be opened"):
            await attempt
    assert not file.exists()
    (tmp_path / "away").rename(file)
    await archive.put_turns("s1", turns(4, 4))
    assert await archive.count("s1") == 4


async def test_ses_15_a_new_file_in_place_of_the_old_one_accepts_no_later_turns(archive: Archive, file: Path):
    await archive.put_turns("s1", turns(1, 3))
    file.unlink()
    file.touch()
    with pytest.raises(StoreUnavailableError, match="does not have our tables"):
        await archive.put_turns("s1", turns(4, 4))
    restarted = Archive(Database.of_file(file))
    with pytest.raises(ArchiveGapError):
        await restarted.put_turns("s1", turns(4, 4))


@pytest.mark.parametrize("used_before", [True, False])
async def test_ses_15_a_folder_in_place_of_the_file_is_an_error_until_it_is_removed(
    archive: Archive, file: Path, tmp_path: Path, used_before: bool
):
    if used_before:
        await archive.put_turns("s1", turns(1, 1))
        file.rename(tmp_path / "away")
    file.mkdir(parents=True)
    with pytest.raises(StoreUnavailableError, match="can't be opened"):
        await archive.put_turns("s1", turns(1, 2))
    file.rmdir()
    if used_before:
        (tmp_path / "away").rename(file)
    await archive.put_turns("s1", turns(1, 2))


async def test_ses_15_a_file_in_place_of_the_folder_is_an_error(archive: Archive, file: Path):
    file.parent.touch()
    with pytest.raises(StoreUnavailableError, match=r"^The store's file can't be opened: [A-Z][a-z ]+\.$"):
        await archive.count("s1")


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
async def test_ses_15_a_file_with_other_content_is_an_error_and_unchanged(archive: Archive, file: Path, content: bytes):
    file.parent.mkdir()
    file.write_bytes(content)
    with pytest.raises(StoreUnavailableError, match=r"^The store's file is (not a database|damaged)"):
        await archive.count("s1")
    assert file.read_bytes() == content


async def test_ses_15_a_lock_held_for_seconds_is_an_error_that_blocks_no_others(archive: Archive, file: Path):
    await archive.put_turns("s1", turns(1, 3))
    loop = asyncio.get_running_loop()
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        attempts = {loop.create_task(archive.count("s1")), loop.create_task(archive.put_turns("s1", turns(4, 4)))}
        looks = 0
        while (await asyncio.wait(attempts, timeout=0.01))[1]:
            looks += 1
        assert looks > 10, "the loop went on meanwhile"
        for attempt in attempts:
            assert str(attempt.exception()) == "The store's file is locked by another process (SQLITE_BUSY)."
        other.execute("ROLLBACK")
    await archive.put_turns("s1", turns(4, 4))
    assert await archive.count("s1") == 4


def lock_once(file: Path) -> None:
    """Request the lock after the waiting connection, with a shorter timeout."""
    with closing(sqlite3.connect(file, isolation_level=None, timeout=0.05)) as late:
        late.execute("BEGIN IMMEDIATE")


async def test_ses_15_a_lock_that_is_soon_released_is_waited_for(archive: Archive, file: Path):
    await archive.put_turns("s1", turns(1, 3))
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        began, engine = asyncio.Event(), archive._database._backend.transactions.engine
        in_loop = asyncio.get_running_loop().call_soon_threadsafe
        event.listen(engine, "connect", lambda *_: in_loop(began.set), insert=True)
        writing = asyncio.create_task(archive.put_turns("s1", turns(4, 4)))
        await asyncio.wait_for(began.wait(), SECONDS)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await asyncio.to_thread(lock_once, file)
        assert not writing.done()
        other.execute("ROLLBACK")
        await asyncio.wait_for(writing, SECONDS)
    assert await archive.count("s1") == 4


async def test_ses_15_a_full_disk_is_an_error_and_stored_data_stays(tmp_path: Path):
    with mounted(tmp_path / "small", "size=320k"):
        archive = Archive(Database.of_file(tmp_path / "small" / "archive.db"))
        await archive.put_turns("s1", turns(1, 3))
        ballast = tmp_path / "small" / "ballast"
        ballast.write_bytes(b"x" * 100_000)
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match="the disk is full"):
                await archive.put_turns("s1", [archived(4, text="x" * 200_000)])
        assert await archive.count("s1") == 3
        ballast.unlink()
        await archive.put_turns("s1", [archived(4, text="x" * 50_000)])
        assert await archive.count("s1") == 4


async def test_ses_15_a_file_that_cannot_grow_is_an_error_and_stored_data_stays(archive: Archive, file: Path):
    await archive.put_turns("s1", turns(1, 3))
    script = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
async def main():
    try:
        await archive.put_turns("s1", [archived(4, text="x" * 200_000)])
    except StoreUnavailableError as error:
        print(error, await archive.count("s1"))
asyncio.run(main())
"""
    printed = await output_of(await start(script, file))
    assert printed.startswith("The store's file can't")
    assert printed.endswith(" 3")
    await archive.put_turns("s1", turns(4, 4))


async def test_ses_15_a_read_only_file_system_can_be_read(tmp_path: Path):
    folder = tmp_path / "readonly"
    with mounted(folder, "size=1m"):
        file = folder / "archive.db"
        archive = Archive(Database.of_file(file))
        await archive.put_turns("s1", turns(1, 3))
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        for reader in (archive, Archive(Database.of_file(file))):
            assert await reader.page("s1", before=None, limit=None, max_bytes=100_000) == turns(1, 3)
            with pytest.raises(StoreUnavailableError, match="can't be written"):
                await reader.put_turns("s1", turns(4, 4))
        subprocess.run(["mount", "-o", "remount,rw", folder], check=True)
        await archive.put_turns("s1", turns(4, 4))


async def test_ses_15_a_read_only_file_can_be_read(archive: Archive, file: Path):
    await archive.put_turns("s1", turns(1, 3))
    chattr = shutil.which("chattr")
    if chattr is None or subprocess.run([chattr, "+i", file], capture_output=True, check=False).returncode:
        pytest.skip("needs a file system and the right to make a file immutable")
    try:
        for reader in (archive, Archive(Database.of_file(file))):
            assert await reader.count("s1") == 3
            with pytest.raises(StoreUnavailableError, match="can't be written"):
                await reader.put_turns("s1", turns(4, 4))
    finally:
        subprocess.run([chattr, "-i", file], check=True)
    await archive.put_turns("s1", turns(4, 4))


async def test_ses_15_deleted_text_is_removed_from_the_file(archive: Archive, file: Path):
    database = Database.of_file(file)
    secret = "the secret of the session"
    await archive.put_turns("s1", [archived(1, text=secret), archived(2, text=f"{secret} " * 1_000)])
    await Blobs(database).put("s1", [f"{secret} " * 1_000])
    assert secret.encode() in file.read_bytes()
    await archive.delete("s1")
    await Blobs(database).delete("s1")
    assert secret.encode() not in file.read_bytes()
    assert [path.name for path in file.parent.iterdir()] == [file.name]


async def test_ses_15_another_process_reads_while_this_one_writes(archive: Archive, file: Path):
    await archive.put_turns("s1", turns(1, 1))
    script = """
async def main():
    print("ready", flush=True)
    while (page := await archive.page("s1", before=None, limit=None, max_bytes=10_000_000))[-1].number < 30:
        assert page == turns(1, len(page))
    print(len(page))
asyncio.run(main())
"""
    reader = await start(script, file)
    assert await line_of(reader) == "ready"
    for number in range(2, 31):
        await archive.put_turns("s1", turns(number, number))
    assert await output_of(reader) == "30"


async def test_ses_15_concurrent_writes_of_two_processes_both_succeed(archive: Archive, file: Path):
    script = """
async def main():
    for number in range(1, 16):
        await archive.put_turns("s1", turns(number, number))
asyncio.run(main())
"""
    for writer in [await start(script, file) for _ in range(2)]:
        await output_of(writer)
    assert await archive.page("s1", before=None, limit=None, max_bytes=1_000_000) == turns(1, 15)


async def test_ses_15_a_half_finished_write_of_a_killed_process_is_rolled_back(archive: Archive, file: Path):
    await archive.put_turns("s1", turns(1, 3))
    script = """
from turnkeeper.stores.archive import _insert_turns
def write_half(connection):
    connection.exec_driver_sql("PRAGMA cache_size=1")
    _insert_turns(connection, session_id="s1", turns=[archived(number, text="x" * 5_000) for number in range(4, 40)])
    print("written", flush=True)
    sys.stdin.read()
asyncio.run(database.write(write_half))
"""
    writer = await start(script, file)
    assert await line_of(writer) == "written"
    size = file.stat().st_size
    writer.kill()
    await asyncio.wait_for(writer.wait(), SECONDS)
    assert size > 100_000
    assert await archive.count("s1") == 3
    await archive.put_turns("s1", turns(4, 4))
