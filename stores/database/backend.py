"""The differences between SQLite and PostgreSQL, as one value each; no other module depends on them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sqlalchemy import Connection

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
