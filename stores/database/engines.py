"""SQLite and PostgreSQL, each as one `Backend`; no other module depends on the differences between them.

SQLite: worker and gateway use the file at the same time, and people copy it, move it and run out of disk.

- Every transaction opens and closes the file (`NullPool`). So a moved, replaced or damaged file is noticed at once, and
  a restored one works without a restart. That costs about a millisecond.
- Opening never creates the file: once a process has seen the tables, a missing file is an error. A new, empty file
  would hide the loss of a transcript's archived part.
- The journal is SQLite's default, a rollback journal that is deleted at commit. A write-ahead log would let readers
  work beside a writer, but writes take only milliseconds. It would also leave two files beside this one: without them
  the store can't be moved or read from a read-only file system, and they contain deleted text while the file is open.
- `synchronous=EXTRA` makes commits durable. With `FULL`, a power cut just after a commit can restore the deleted
  journal, and with it the earlier state, although the session has already dropped the archived turns.
- `secure_delete` overwrites deleted data.
- A whole transaction runs in one thread. SQLAlchemy's asyncio extension would need a thread for each connection, wake
  the event loop for every statement, and load the ORM (docs/decisions/0057).

PostgreSQL has pooled connections, each pinged before it is used.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event
from sqlalchemy.exc import DBAPIError

from turnkeeper.stores.database import MAX_OPERATIONS
from turnkeeper.stores.private_files import make_private_folder, private_opener

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

Result = TypeVar("Result")


class Transactions(Protocol):
    """Runs functions in transactions of one database."""

    async def run(
        self, work: Callable[[Connection], Result], *, begin: str | None, may_commit: Callable[[], bool]
    ) -> Result:
        """Return what `work` returns. Nothing is committed if it raises, or `may_commit` returns False after it.

        `begin` is the transaction's first statement; `None`: the driver begins it.
        """

    async def close(self) -> None:
        """Close what is open, without waiting for transactions."""


@dataclass(frozen=True)
class Backend:
    """Transactions, and what is specific to the database."""

    transactions: Transactions
    max_writers: int
    """Maximum concurrent writing transactions of this process."""
    begin_reading: str | None
    """First statement of a transaction; `None`: the driver begins it."""
    begin_writing: str | None
    begin_migrating: str
    """First statement of a migration; it locks out migrations by other processes."""
    create: Callable[[], None]
    """Create what the first connection needs; blocks. Raises `OSError`."""
    explain: Callable[[Exception], str]
    """Return, in a sentence, why the store can't be used: no paths, no passwords, no SQL."""


BUSY_SECONDS = 2.0
"""How long a transaction waits for other processes' transactions."""

THREAD_NAME = "store"

_PRAGMAS = "PRAGMA synchronous=EXTRA; PRAGMA secure_delete=ON;"

_REASONS = {
    "SQLITE_BUSY": "is locked by another process",
    "SQLITE_CANTOPEN": "is missing or can't be opened",
    "SQLITE_CORRUPT": "is damaged",
    "SQLITE_ERROR": "does not have our tables",
    "SQLITE_FULL": "can't grow: the disk is full",
    "SQLITE_IOERR": "can't be read or written",
    "SQLITE_NOTADB": "is not a database",
    "SQLITE_PERM": "can't be opened: permission denied",
    "SQLITE_READONLY": "can't be written",
}
"""The meaning of SQLite's error codes for the file; an extended code begins with the name of its code."""


def sqlite_backend(path: Path) -> Backend:
    """Return the backend of the file `path`, without opening it yet."""
    file = path.absolute()
    engine = create_engine(
        URL.create("sqlite", database=file.as_uri(), query={"uri": "true", "mode": "rw"}),
        poolclass=NullPool,
        # A connection is closed after its only transaction, so it needs no reset.
        pool_reset_on_return=None,
        # Texts of conversations must not appear in error messages.
        hide_parameters=True,
        # Without an isolation level the driver begins no transactions itself; it would do so only before writes.
        connect_args={"timeout": BUSY_SECONDS, "isolation_level": None},
    )
    event.listen(engine, "connect", _set_up)
    return Backend(
        transactions=ThreadedTransactions(engine),
        # Waiting inside the process is cheaper and fairer than waiting for SQLite's lock.
        max_writers=1,
        begin_reading="BEGIN",
        # Two transactions that first read and then write would deadlock.
        begin_writing="BEGIN IMMEDIATE",
        begin_migrating="BEGIN IMMEDIATE",
        create=lambda: _create_file(file),
        explain=_explain_sqlite,
    )


class ThreadedTransactions:
    """Runs each transaction in one of `MAX_OPERATIONS` threads, which end with `close`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._threads: ThreadPoolExecutor | None = None

    async def run(
        self, work: Callable[[Connection], Result], *, begin: str | None, may_commit: Callable[[], bool]
    ) -> Result:
        def transact() -> Result:
            with self.engine.connect() as connection:
                if begin is not None:
                    connection.exec_driver_sql(begin)
                result = work(connection)
                if may_commit():
                    connection.commit()
                return result

        if self._threads is None:
            self._threads = ThreadPoolExecutor(MAX_OPERATIONS, thread_name_prefix=THREAD_NAME)
        return await asyncio.get_running_loop().run_in_executor(self._threads, transact)

    async def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None


def _set_up(connection: sqlite3.Connection, _record: object) -> None:
    connection.executescript(_PRAGMAS)


def _create_file(file: Path) -> None:
    """Create the file and its folder, accessible only to their owner; existing ones stay unchanged."""
    make_private_folder(file.parent)
    # An existing file is not opened: closing it would release all locks that this process has on it.
    with suppress(FileExistsError):
        os.close(private_opener(str(file), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))


def _explain_sqlite(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error):
        code = getattr(cause, "sqlite_errorname", "SQLITE_UNKNOWN")
        reasons = (reason for name, reason in _REASONS.items() if code.startswith(name))
        return f"The store's file {next(reasons, 'fails')} ({code})."
    if isinstance(cause, OSError) and cause.strerror:
        return f"The store's file can't be opened: {cause.strerror}."
    return f"The store fails ({type(cause).__name__})."


CONNECT_SECONDS = 3.0

STATEMENT_SECONDS = 5.0
"""Timeout of one statement, so that the connection to a dead server is dropped."""

MAX_CONNECTIONS = 8
"""Per process."""

_MIGRATION_LOCK = 7_236_201_715
"""Key of the advisory lock: a number that nothing else uses in this database."""


def postgresql_backend(url: URL) -> Backend:
    """Return the backend at `url`, without connecting yet. Raises `ValueError` for an invalid `url`."""
    # SQLAlchemy's asyncio extension loads its ORM: 0.1 s and 10 MB that SQLite does not need.
    from sqlalchemy.ext.asyncio import create_async_engine

    try:
        engine = create_async_engine(
            url.set(drivername="postgresql+asyncpg", query=_query(url)),
            pool_size=MAX_CONNECTIONS,
            max_overflow=0,
            pool_pre_ping=True,
            # Texts of conversations must not appear in error messages.
            hide_parameters=True,
            connect_args={"timeout": CONNECT_SECONDS, "command_timeout": STATEMENT_SECONDS},
        )
    except ModuleNotFoundError as error:
        raise ValueError("PostgreSQL needs the package asyncpg: install turnkeeper[postgres].") from error
    return Backend(
        transactions=AsyncTransactions(engine),
        max_writers=MAX_CONNECTIONS,
        begin_reading=None,
        begin_writing=None,
        begin_migrating=f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})",
        create=lambda: None,
        explain=_explain_postgresql,
    )


class AsyncTransactions:
    """Runs transactions in the event loop."""

    def __init__(self, engine: "AsyncEngine") -> None:
        self.engine = engine

    async def run(
        self, work: Callable[[Connection], Result], *, begin: str | None, may_commit: Callable[[], bool]
    ) -> Result:
        async with self.engine.connect() as connection:
            if begin is not None:
                await connection.exec_driver_sql(begin)
            result = await connection.run_sync(work)
            if may_commit():
                await connection.commit()
            return result

    async def close(self) -> None:
        await self.engine.dispose()


def _query(url: URL) -> dict[str, str]:
    """Return the URL's options as the driver names them: `sslmode` is its `ssl`."""
    options = {"ssl" if name == "sslmode" else name: value for name, value in url.query.items()}
    if options.keys() - {"ssl"}:
        raise ValueError("The URL of a PostgreSQL store takes no options but sslmode.")
    return {name: value if isinstance(value, str) else value[-1] for name, value in options.items()}


def _explain_postgresql(error: Exception) -> str:
    cause = error.orig.__cause__ or error.orig if isinstance(error, DBAPIError) and error.orig else error
    problem = "can't be reached" if isinstance(cause, OSError) else "fails"
    # Only the name, since messages may contain hosts, users and rows.
    return f"The store's database {problem} ({type(cause).__name__})."
