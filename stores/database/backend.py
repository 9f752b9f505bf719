"""The differences between SQLite and PostgreSQL, as one value each; no other module depends on them."""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine

from turnkeeper.models.errors import TurnkeeperError


class NewerTablesError(TurnkeeperError):
    """A newer release has migrated the database."""


@dataclass(frozen=True)
class Backend:
    """An engine, and what is specific to it."""

    engine: AsyncEngine
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
