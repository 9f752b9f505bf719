"""Whatever the database does, callers get an error in time, and nothing stays behind (SES-15)."""

import asyncio
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, insert, text

from tests.stores.builders import hash_of, turns
from tests.waiting import BOUND
from turnkeeper.stores.archive import Archive
from turnkeeper.stores.blobs import Blobs
from turnkeeper.stores.database import database as module
from turnkeeper.stores.database.database import MAX_OPERATIONS, Database, StoreUnavailableError
from turnkeeper.stores.database.engines import THREAD_NAME
from turnkeeper.stores.database.tables import BLOBS


class Hanging:
    """A database whose SQL function `hang()` returns as late as a read from a dead disk: once it is released."""

    def __init__(self, file: Path) -> None:
        self.folder = file.parent
        self.database = Database.of_file(file)
        self.entered, self.released = threading.Event(), threading.Event()
        event.listen(self.database._backend.transactions.engine, "connect", self._prepare)

    def hang(self, connection: Connection) -> None:
        connection.execute(insert(BLOBS).values(session_id="s1", hash="half", content=b""))
        connection.execute(text("SELECT hang()"))

    def _prepare(self, connection, _record) -> None:
        connection.create_function("hang", 0, self._hang)

    def _hang(self) -> bool:
        self.entered.set()
        return self.released.wait(2 * BOUND)


@pytest.fixture
async def hanging(tmp_path: Path) -> AsyncIterator[Hanging]:
    hanging = Hanging(tmp_path / "archive.db")
    await Archive(hanging.database).count("s1")
    yield hanging
    hanging.released.set()
    await hanging.database.close()


@pytest.fixture(autouse=True)
def earlier_threads() -> Iterator[None]:
    """Leave out the threads of stores that other tests share."""
    EARLIER_THREADS.update(_store_threads())
    yield
    EARLIER_THREADS.clear()


EARLIER_THREADS: set[threading.Thread] = set()


def threads() -> list[threading.Thread]:
    return [thread for thread in _store_threads() if thread not in EARLIER_THREADS]


def _store_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_NAME)]


def open_files(folder: Path) -> list[str]:
    opened = [descriptor.readlink() for descriptor in Path("/proc/self/fd").iterdir() if descriptor.is_symlink()]
    return [path.name for path in opened if path.parent == folder]


async def nothing_stays_behind(hanging: Hanging) -> None:
    hanging.released.set()
    await hanging.database.close()
    for thread in threads():
        thread.join(BOUND)
    assert threads() == []
    assert hanging.database._operations == set()
    assert open_files(hanging.folder) == []


async def test_ses_15_a_database_uses_few_threads_and_none_after_it_is_closed(tmp_path: Path):
    database = Database.of_file(tmp_path / "archive.db")
    await asyncio.gather(*(Blobs(database).put("s1", [f"{number}"]) for number in range(30)))
    assert 0 < len(threads()) <= MAX_OPERATIONS
    await database.close()
    for thread in threads():
        thread.join(BOUND)
    assert threads() == []


@pytest.mark.parametrize("transact", [Database.read, Database.write])
async def test_ses_15_a_hanging_database_times_out_and_works_again_later(
    hanging: Hanging, monkeypatch, transact: Callable
):
    monkeypatch.setattr(module, "OPERATION_SECONDS", 0.3)
    with pytest.raises(StoreUnavailableError, match=r"^The store did not answer within 0\.3 s\.$"):
        await asyncio.wait_for(transact(hanging.database, hanging.hang), BOUND)
    monkeypatch.undo()
    await nothing_stays_behind(hanging)
    assert await Blobs(hanging.database).get("s1", ["half"]) == {}
    await Blobs(hanging.database).put("s1", ["whole"])


async def test_ses_15_at_most_a_few_threads_wait_for_a_hanging_database(hanging: Hanging, monkeypatch):
    monkeypatch.setattr(module, "OPERATION_SECONDS", 0.3)

    def hang(connection: Connection) -> None:
        connection.execute(text("SELECT hang()"))

    for _ in range(2):
        attempts = (hanging.database.read(hang) for _ in range(MAX_OPERATIONS))
        assert {type(end) for end in await asyncio.gather(*attempts, return_exceptions=True)} == {StoreUnavailableError}
        assert 0 < len(threads()) <= MAX_OPERATIONS
    monkeypatch.undo()
    await nothing_stays_behind(hanging)
    assert await Archive(hanging.database).count("s1") == 0


async def test_ses_15_a_cancelled_caller_returns_at_once_and_writes_nothing(hanging: Hanging):
    writing = asyncio.create_task(hanging.database.write(hanging.hang))
    assert await asyncio.to_thread(hanging.entered.wait, BOUND)
    writing.cancel()
    await asyncio.wait({writing}, timeout=BOUND)
    assert writing.cancelled()
    await nothing_stays_behind(hanging)
    assert await Blobs(hanging.database).get("s1", ["half"]) == {}


async def test_ses_15_a_write_that_fails_half_way_is_rolled_back(database: Database):
    def write_half(connection: Connection) -> None:
        connection.execute(insert(BLOBS).values(session_id="s1", hash="half", content=b""))
        raise LookupError

    with pytest.raises(LookupError):
        await database.write(write_half)
    assert await Blobs(database).get("s1", ["half"]) == {}


async def test_ses_15_an_error_shows_no_path_no_sql_and_no_text_even_in_its_traceback(tmp_path: Path):
    database = Database.of_file(tmp_path / "archive.db")
    await Archive(database).count("s1")
    (tmp_path / "archive.db").write_bytes(b"")
    secret = hash_of("anything")
    with pytest.raises(StoreUnavailableError) as failed:
        await Blobs(database).put("s1", [secret])
    assert str(failed.value) == "The store's file does not have our tables (SQLITE_ERROR)."
    assert failed.value.__cause__ is None
    text = "".join(traceback.format_exception(failed.value))
    assert not [word for word in ("INSERT", secret, hash_of(secret), str(tmp_path)) if word in text]


async def test_ses_15_a_closed_database_can_be_used_again(database: Database):
    await Archive(database).put_turns("s1", turns(1, 1))
    await database.close()
    assert await Archive(database).count("s1") == 1


@pytest.mark.parametrize(
    "url",
    [
        "mysql://user:hunter2@host/name",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///archive.db?mode=memory",
        "postgresql+psycopg://user:hunter2@host/name",
        "postgresql://user:hunter2@host/name?application_name=x",
        "postgresql://user:hunter2@host:port/name",
        "hunter2",
        "",
    ],
)
def test_ses_15_an_invalid_store_url_is_rejected_and_not_repeated(url: str):
    with pytest.raises(ValueError, match="URL") as refused:
        Database(url)
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


def test_ses_15_postgresql_without_its_driver_names_the_package_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ValueError, match=r"install turnkeeper\[postgres\]"):
        Database("postgresql://user:hunter2@host/name")
