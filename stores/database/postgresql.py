"""The store in a PostgreSQL database: pooled connections, each pinged before it is used."""

from collections.abc import Callable

from sqlalchemy import URL, Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from turnkeeper.stores.database.backend import Backend, Result

CONNECT_SECONDS = 3.0

STATEMENT_SECONDS = 5.0
"""Timeout of one statement, so that the connection to a dead server is dropped."""

MAX_CONNECTIONS = 8
"""Per process."""

_MIGRATION_LOCK = 7_236_201_715
"""Key of the advisory lock: a number that nothing else uses in this database."""


def postgresql_backend(url: URL) -> Backend:
    """Return the backend at `url`, without connecting yet. Raises `ValueError` for an invalid `url`."""
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
        explain=_explain,
    )


class AsyncTransactions:
    """Runs transactions in the event loop."""

    def __init__(self, engine: AsyncEngine) -> None:
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


def _explain(error: Exception) -> str:
    cause = error.orig.__cause__ or error.orig if isinstance(error, DBAPIError) and error.orig else error
    problem = "can't be reached" if isinstance(cause, OSError) else "fails"
    # Only the name, since messages may contain hosts, users and rows.
    return f"The store's database {problem} ({type(cause).__name__})."
