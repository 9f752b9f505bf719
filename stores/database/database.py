"""The database of archive and large texts (SES-15).

A store can fail in any way at any time without harm to a session: every failure becomes one exception, and so does an
operation that takes longer than `OPERATION_SECONDS`. A thread that reads from a dead disk can't be stopped. So an
operation is a task of its own: its caller stops waiting, and the task later commits nothing and closes its connection.
It keeps its slot until then, so at most `MAX_OPERATIONS` wait for a dead disk.

A running operation is not cancelled: the traceback of the cancellation would refer to the statement, and SQLite would
keep its file open and locked until garbage collection.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import URL, Connection, column, inspect, make_url, select, table
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.stores.database import MAX_OPERATIONS, NEWEST, OPERATION_SECONDS, OTHER_TABLES
from turnkeeper.stores.database.engines import Backend, Result, postgresql_backend, sqlite_backend
from turnkeeper.stores.database.tables import METADATA

_VERSIONS = table("alembic_version", column("version_num"))


def tables_in_place(connection: Connection) -> Literal["none", "current", "other"]:
    """Return whether the database has the tables of this code; `other`: tables of other code, which it can't use."""
    inspector = inspect(connection)
    if not inspector.has_table(_VERSIONS.name):
        return "none"
    if set(connection.scalars(select(_VERSIONS.c.version_num))) != {NEWEST}:
        return "other"
    columns = {name: {row["name"] for row in rows} for (_, name), rows in inspector.get_multi_columns().items()}
    is_current = all(columns.get(name) == set(own.columns.keys()) for name, own in METADATA.tables.items())
    return "current" if is_current else "other"


MIGRATIONS = Path(__file__).with_name("migrations")


def migrate(connection: Connection) -> None:
    """Run, in the transaction of `connection`, every migration that has not been run; safe to repeat.

    Alembic keeps what is being migrated in globals: one at a time in a process.
    """
    # Alembic takes 12 MB and a tenth of a second to load, and few processes need it.
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    # The configuration is an INI file, in which a "%" begins something.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    command.upgrade(config, "head")


_IN_MEMORY = (None, "", ":memory:")
"""Names that SQLite treats as in-memory databases: nothing would outlive the operation."""

_log = logging.getLogger(__name__)

_migrating = asyncio.Lock()
"""Alembic uses globals during a migration, so only one can run at a time."""


class StoreUnavailableError(TurnkeeperError):
    """The store can't be read or written now; the message is a short sentence: no paths, no passwords, no SQL."""


class Database:
    """Runs functions in transactions of one database. Its tables are put in place at the first use."""

    def __init__(self, url: str | URL) -> None:
        """Use `sqlite:///<path>` or `postgresql://<user>:<password>@<host>/<database>`; nothing is opened yet.

        Raises `ValueError` where `url` is neither; the message does not repeat it, it may hold a password.
        """
        self._backend = _make_backend(url)
        self._slots = asyncio.Semaphore(MAX_OPERATIONS)
        self._writers = asyncio.Semaphore(self._backend.max_writers)
        self._operations: set[asyncio.Task[Any]] = set()
        self._has_tables = False

    @classmethod
    def of_file(cls, path: Path) -> "Database":
        """Keep everything in the SQLite file `path`; it and its folder are created at the first use."""
        return cls(URL.create("sqlite", database=str(path)))

    async def read(self, work: Callable[[Connection], Result]) -> Result:
        """Return what `work` returns, run in a transaction. Raises `StoreUnavailableError`."""
        return await self._bounded(lambda caller: self._transact(work, self._backend.begin_reading, caller))

    async def write(self, work: Callable[[Connection], Result]) -> Result:
        """Return what `work` returns, run in a transaction that is committed then, and not if it raises.

        Raises `StoreUnavailableError`: it may have been committed all the same, so `work` can be repeated safely.
        """
        return await self._bounded(lambda caller: self._write(work, caller))

    async def are_tables_other(self) -> bool:
        """Return whether other code has made the tables; False if the store can't be read. Nothing is written."""
        try:
            return await self._bounded(self._find_tables) == "other"
        except StoreUnavailableError:
            return False

    async def close(self) -> None:
        """Close all connections, after the pending operations."""
        if self._operations:
            await asyncio.wait(self._operations, timeout=OPERATION_SECONDS)
        await self._backend.transactions.close()

    async def _bounded(self, operation: "Callable[[_Caller], Coroutine[Any, Any, Result]]") -> Result:
        caller = _Caller()
        task = asyncio.create_task(self._explained(operation(caller)))
        self._operations.add(task)
        task.add_done_callback(self._forget)
        try:
            done, _ = await asyncio.wait({task}, timeout=OPERATION_SECONDS)
        finally:
            caller.waits = False
            if not caller.has_slot:
                task.cancel()
        if not done:
            raise StoreUnavailableError(f"The store did not answer within {OPERATION_SECONDS:g} s.")
        return task.result()

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._operations.discard(task)
        if not task.cancelled():
            # Looked at, or asyncio reports what nobody waits for any longer.
            task.exception()

    async def _explained(self, operation: Coroutine[Any, Any, Result]) -> Result:
        try:
            return await operation
        except (SQLAlchemyError, OSError) as error:
            _log.debug("the store fails", exc_info=error)
            # Without its cause: that holds SQL and paths, and causes are written into a session's history.
            raise StoreUnavailableError(self._backend.explain(error)) from None

    async def _write(self, work: Callable[[Connection], Result], caller: "_Caller") -> Result:
        async with self._writers:
            return await self._transact(work, self._backend.begin_writing, caller)

    async def _transact(self, work: Callable[[Connection], Result], begin: str | None, caller: "_Caller") -> Result:
        async with self._slots:
            caller.has_slot = True
            if not self._has_tables:
                await self._put_tables_in_place(caller)
            return await self._run(work, begin, caller)

    async def _find_tables(self, caller: "_Caller") -> str:
        async with self._slots:
            caller.has_slot = True
            return await self._run(tables_in_place, self._backend.begin_reading, caller)

    async def _put_tables_in_place(self, caller: "_Caller") -> None:
        async with _migrating:
            if self._has_tables:
                return
            await asyncio.to_thread(self._backend.create)
            # Most often nothing is to do: then no lock is taken, and a file that can't be written can be read.
            tables = await self._run(tables_in_place, self._backend.begin_reading, caller)
            if tables == "other":
                raise StoreUnavailableError(OTHER_TABLES)
            if tables == "none":
                await self._run(migrate, self._backend.begin_migrating, caller)
            self._has_tables = caller.waits

    async def _run(self, work: Callable[[Connection], Result], begin: str | None, caller: "_Caller") -> Result:
        return await self._backend.transactions.run(work, begin=begin, may_commit=lambda: caller.waits)


@dataclass
class _Caller:
    """Shared state of an operation and its caller."""

    waits: bool = True
    """Whether the caller still waits; otherwise nothing is committed."""
    has_slot: bool = False
    """Whether the operation has begun; before that, it can be cancelled."""


def _make_backend(url: str | URL) -> Backend:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ValueError("The URL of a store can't be read.") from None
    if parsed.drivername in ("postgresql", "postgresql+asyncpg"):
        return postgresql_backend(parsed)
    if parsed.drivername in ("sqlite", "sqlite+aiosqlite") and parsed.database not in _IN_MEMORY and not parsed.query:
        return sqlite_backend(Path(parsed.database or ""))
    raise ValueError("The URL of a store is sqlite:///<path> or postgresql://<user>:<password>@<host>/<database>.")
