"""Other processes that use a store at the same time."""

import asyncio
import os
from pathlib import Path

from tests.processes.forked import PIPE, ROOT, ForkedProcess, fork

SECONDS = 60.0
"""Bound of everything a process does here."""

_BEGINNING = """
import asyncio, sys
from turnkeeper.stores.archive import Archive
from turnkeeper.stores.database.database import Database, StoreUnavailableError
from tests.stores.builders import archived, turns

database = Database(sys.argv[1])
archive = Archive(database)
"""


async def start(script: str, store: Path | str) -> ForkedProcess:
    """Start a process that runs `script`, which has `database` and `archive` of the file or URL `store`."""
    url = f"sqlite:///{store}" if isinstance(store, Path) else store
    return await fork(
        "tests.processes.script",
        _BEGINNING + script,
        url,
        env=os.environ,
        cwd=ROOT,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )


async def output_of(process: ForkedProcess) -> str:
    """Return what the process printed, once it has ended well."""
    printed, errors = await asyncio.wait_for(process.communicate(), SECONDS)
    assert process.returncode == 0, errors.decode()
    return printed.decode().strip()


async def line_of(process: ForkedProcess) -> str:
    """Return the next line that the process prints."""
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), SECONDS)).decode().strip()
