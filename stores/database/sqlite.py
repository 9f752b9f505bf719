"""The store in one SQLite file: what is set on every connection, and why.

Theory of operation. Worker and gateway use the file at the same time, and people copy it, move it and run out of disk.

- Every use opens the file anew and closes it (`NullPool`): a file that was moved away, replaced or broken is noticed at
  once, and one that is well again works without a restart. That costs about a millisecond.
- It is opened for reading and writing, never created by opening: after a process has seen the tables, a missing file is
  an error. An empty one in its place would swallow the end of a transcript.
- The journal is SQLite's default, a rollback journal that is deleted at commit. A write-ahead log would let readers
  pass a writer, which here is done within milliseconds; but it leaves two files beside this one without which it
  can't be read from a read-only file system, must not be moved, and which keep deleted text for as long as anybody has
  the file open.
- `synchronous=EXTRA`: durable at commit. With `FULL`, a power cut just after a commit can restore the deleted journal,
  and with it the earlier state; the session would already have dropped the turns.
- `secure_delete`: what was deleted is overwritten.
"""

import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, NullPool, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from turnkeeper.stores.database.backend import Backend
from turnkeeper.stores.private_files import make_private_folder, private_opener

BUSY_SECONDS = 2.0
"""How long a transaction waits for those of other processes."""

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
"""What SQLite's error codes say of the file; an extended code begins with the name of its code."""


def sqlite_backend(path: Path) -> Backend:
    """Return the backend that keeps everything in the file `path`; nothing is opened yet."""
    file = path.absolute()
    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=file.as_uri(), query={"uri": "true", "mode": "rw"}),
        poolclass=NullPool,
        # A connection is closed after its only transaction; that ends it too.
        pool_reset_on_return=None,
        # Texts of conversations don't belong into error messages.
        hide_parameters=True,
        # Without an isolation level the driver begins no transactions by itself; it would do so only before writing.
        connect_args={"timeout": BUSY_SECONDS, "isolation_level": None},
    )
    event.listen(engine.sync_engine, "connect", _set_up)
    return Backend(
        engine=engine,
        # Waiting for each other in the process costs less, and is fairer, than at SQLite's lock.
        max_writers=1,
        begin_reading="BEGIN",
        # Two that first read and then write would wait for each other.
        begin_writing="BEGIN IMMEDIATE",
        begin_migrating="BEGIN IMMEDIATE",
        create=lambda: _create(file),
        explain=_explain,
    )


def _set_up(connection: Any, _record: object) -> None:
    connection.run_async(lambda driver: driver.executescript(_PRAGMAS))


def _create(file: Path) -> None:
    """Have the file, its owner's alone, and its folder; what is there stays as it is."""
    make_private_folder(file.parent)
    # A file that is there is not even opened: closing it would undo every lock this process has on it.
    with suppress(FileExistsError):
        os.close(private_opener(str(file), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))


def _explain(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error):
        code = getattr(cause, "sqlite_errorname", "SQLITE_UNKNOWN")
        reasons = (reason for name, reason in _REASONS.items() if code.startswith(name))
        return f"The store's file {next(reasons, 'fails')} ({code})."
    if isinstance(cause, OSError) and cause.strerror:
        return f"The store's file can't be opened: {cause.strerror}."
    return f"The store fails ({type(cause).__name__})."
