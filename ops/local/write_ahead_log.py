"""The write-ahead log of the embedded server's database: how its connections are set up, and when it is emptied.

Theory of operation. A rollback journal would need four times as many disk syncs (docs/decisions/0052). With a
write-ahead log, each transaction is appended to `temporal.db-wal`, and SQLite copies pages to the database from time
to time without shortening the log. So text that has been deleted from the database can still be in the log. We shorten
it every few seconds. That covers every deletion: ours, those after Temporal's retention, and those in the Web UI, some
of which the server carries out after it has confirmed them.
"""

import asyncio
import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

PRAGMAS: Mapping[str, str] = {
    "journal_mode": "wal",
    # Every commit is on the disk before the server confirms it, so an accepted prompt survives a power failure.
    "synchronous": "full",
    # Deleted rows are overwritten; otherwise their text would stay in the database's free pages.
    "secure_delete": "1",
}
"""For every connection that the server opens; it converts a database that has a rollback journal."""

INTERVAL_SECONDS = 2.0
"""The time between two truncations."""

BUSY_SECONDS = 0.1
"""How long a truncation waits for transactions of the server. Meanwhile it can hold up their next write."""


async def keep_truncating(database: Path) -> None:
    """Truncate the log every `INTERVAL_SECONDS`, unless it is empty, until cancelled."""
    while True:
        await asyncio.sleep(INTERVAL_SECONDS)
        await asyncio.to_thread(_truncate_unless_empty, database)


def truncate(database: Path) -> bool:
    """Copy the log to the database and empty it; if no server has the database open, also remove it.

    Returns False if that was not possible now, since the server was busy, say. Another attempt does no harm.
    """
    # mode=rw: a missing database is not created.
    uri = f"{database.absolute().as_uri()}?mode=rw"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)) as connection:
            (is_busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error:
        return False
    return not is_busy


def _truncate_unless_empty(database: Path) -> None:
    with suppress(FileNotFoundError):
        if database.with_name(f"{database.name}-wal").stat().st_size:
            truncate(database)
