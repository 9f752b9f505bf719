"""The store of large texts, by session and SHA-256 of the UTF-8 text (SES-15)."""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import islice

from sqlalchemy import Connection, select

from turnkeeper.models.ids import WorkflowId
from turnkeeper.stores.database.database import Database
from turnkeeper.stores.database.rows import delete_rows, insert_missing
from turnkeeper.stores.database.tables import BLOBS

READ_AT_ONCE = 500
"""Texts read by one statement, since databases limit the number of parameters."""


class Blobs:
    """The large texts of all sessions. Every method raises `StoreUnavailableError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, session_id: WorkflowId, texts: Iterable[str]) -> None:
        """Store all of `texts`, or none. A repetition changes nothing."""
        contents = {sha256(content).hexdigest(): content for content in map(str.encode, texts)}
        # Sorted: two transactions that lock the same rows in different orders would deadlock.
        rows: list[dict[str, object]] = [
            {"session_id": session_id, "hash": name, "content": contents[name]} for name in sorted(contents)
        ]
        if rows:
            await self._database.write(lambda connection: insert_missing(connection, BLOBS, rows))

    async def get(self, session_id: WorkflowId, hashes: Iterable[str]) -> dict[str, str]:
        """Return the stored texts by hash; missing ones are left out."""
        names = sorted(set(hashes))
        return await self._database.read(lambda connection: _read(connection, session_id, names)) if names else {}

    async def delete(self, session_id: WorkflowId) -> int:
        """Delete all texts of the session; return their number."""
        return await delete_rows(self._database, BLOBS, session_id)


def _read(connection: Connection, session_id: WorkflowId, hashes: Sequence[str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    remaining = iter(hashes)
    while some := list(islice(remaining, READ_AT_ONCE)):
        query = select(BLOBS.c.hash, BLOBS.c.content).where(BLOBS.c.session_id == session_id, BLOBS.c.hash.in_(some))
        texts.update((row.hash, row.content.decode()) for row in connection.execute(query))
    return texts


def opaque_owner(session_id: WorkflowId) -> WorkflowId:
    """Return the owner id of a session's opaque provider state, which readers of its texts can't reach (AGT-3).

    No session can have that id: session ids have no slash.

    >>> opaque_owner(WorkflowId("s1"))
    's1/opaque'
    """
    return WorkflowId(f"{session_id}/opaque")
