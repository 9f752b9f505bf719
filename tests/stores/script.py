"""Runs a script of a test in a process of its own: `archive` is that of the store whose URL is the first argument."""

import sys

from tests.stores.builders import archived, turns
from turnkeeper.stores.archive import Archive
from turnkeeper.stores.database.database import Database, StoreUnavailableError

if __name__ == "__main__":
    _, url, script = sys.argv
    database = Database(url)
    names = {
        "archive": Archive(database),
        "archived": archived,
        "database": database,
        "StoreUnavailableError": StoreUnavailableError,
        "turns": turns,
    }
    exec(f"import asyncio, sys\n{script}", names)
