"""What differs between the databases a store can be in: one value for each, and nothing else knows which it is."""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine


class NewerTablesError(Exception):
    """A newer release has migrated the database already."""


@dataclass(frozen=True)
class Backend:
    """An engine, and the few statements and judgements that are its own."""

    engine: AsyncEngine
    most_writers: int
    """Transactions of this process that may write at the same time."""
    begin_reading: str | None
    """First statement of a transaction; None: the driver begins it."""
    begin_writing: str | None
    begin_migrating: str
    """First statement of a transaction that no other process's migration runs beside."""
    create: Callable[[], None]
    """Have what the first connection needs to be there; blocks. Raises `OSError`."""
    explain: Callable[[Exception], str]
    """Say in a sentence why the store can't be used: no paths, no passwords, no SQL."""
