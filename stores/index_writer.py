"""Writes rows of the index in the background: a turn never waits for the index, and never fails by it (API-1).

The rows that arrive while a transaction runs go into the next one, and of a session only the newest is written. So a
busy process needs few transactions a second, for any number of sessions.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from turnkeeper.models.ids import WorkflowId
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.session_index import IndexedSession, SessionIndex

PAUSE_SECONDS = 0.25
"""Between two transactions."""

MAX_WAIT_SECONDS = 8.0
"""How long a row waits for a store that is down; after that it is dropped. A deletion waits longer before it clears the
stores for the last time (`DELETION_QUIET`)."""

MAX_ROWS = 2_000
"""Rows that wait at most; the next ones are dropped."""

MAX_ROWS_AT_ONCE = 200
"""Rows of one transaction, which other writers wait for."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Waiting:
    session: IndexedSession
    since: float
    """On the event loop's clock."""


class IndexWriter:
    """Stores rows in the index soon. No method raises because of the store."""

    def __init__(self, index: SessionIndex) -> None:
        self._index = index
        self._newest: dict[WorkflowId, _Waiting] = {}
        self._missing: dict[WorkflowId, _Waiting] = {}
        self._writing: asyncio.Task[None] | None = None

    def put(self, session: IndexedSession) -> None:
        """Store a row that a session has sent."""
        before = self._newest.get(session.session_id)
        is_late = before is not None and before.session.started_at == session.started_at
        if before and is_late and before.session.revision > session.revision:
            return
        self._add(self._newest, session)

    def add_missing(self, session: IndexedSession) -> None:
        """Store a row unless the session has one."""
        self._add(self._missing, session)

    def forget(self, session_id: WorkflowId) -> None:
        """Drop what waits of a session that is being deleted."""
        self._newest.pop(session_id, None)
        self._missing.pop(session_id, None)

    async def flush(self) -> None:
        """Write what waits now, for a reader in the same process."""
        if self._newest or self._missing:
            await self._write()

    async def close(self) -> None:
        """Write what waits, if the store works."""
        if self._writing:
            self._writing.cancel()
            with suppress(asyncio.CancelledError):
                await self._writing
        await self.flush()

    def _add(self, waiting: dict[WorkflowId, _Waiting], session: IndexedSession) -> None:
        if len(waiting) >= MAX_ROWS and session.session_id not in waiting:
            return
        waiting[session.session_id] = _Waiting(session, asyncio.get_running_loop().time())
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())

    async def _write_all(self) -> None:
        while self._newest or self._missing:
            await self._write()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _write(self) -> None:
        # First the rows of sessions themselves: they have more, and then nothing is missing.
        await self._write_some(self._newest, self._index.put)
        await self._write_some(self._missing, self._index.add_missing)

    async def _write_some(
        self, waiting: dict[WorkflowId, _Waiting], write: Callable[[list[IndexedSession]], Awaitable[None]]
    ) -> None:
        rows = {name: waiting[name] for name in list(waiting)[:MAX_ROWS_AT_ONCE]}
        if not rows:
            return
        try:
            await write([row.session for row in rows.values()])
        except StoreUnavailableError as error:
            _log.debug("the index of sessions can't be written: %s", error)
            oldest = asyncio.get_running_loop().time() - MAX_WAIT_SECONDS
            rows = {name: row for name, row in rows.items() if row.since < oldest}
        for name, row in rows.items():
            if waiting.get(name) is row:
                del waiting[name]
