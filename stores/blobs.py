"""The store of large texts, each kept once in a session under the SHA-256 of its UTF-8 (SES-15)."""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import islice

from sqlalchemy import Connection, select

from turnkeeper.stores.database.database import Database
from turnkeeper.stores.database.rows import delete_rows, insert_missing
from turnkeeper.stores.database.tables import BLOBS

READ_AT_ONCE = 500
"""Texts asked for in one statement: databases bound its parameters."""


class Blobs:
    """The large texts of all sessions. Every method raises `StoreUnavailableError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, session_id: str, texts: Iterable[str]) -> None:
        """Have every one of `texts` kept, or none. A second run changes nothing."""
        contents = {sha256(content).hexdigest(): content for content in map(str.encode, texts)}
        # In one order everywhere: two that lock the same rows in different orders would wait for each other.
        rows: list[dict[str, object]] = [
            {"session_id": session_id, "hash": name, "content": contents[name]} for name in sorted(contents)
        ]
        if rows:
            await self._database.write(lambda connection: insert_missing(connection, BLOBS, rows))

    async def get(self, session_id: str, hashes: Iterable[str]) -> dict[str, str]:
        """Return by their hashes those of the texts that are kept."""
        wanted = sorted(set(hashes))
        return await self._database.read(lambda connection: _read(connection, session_id, wanted)) if wanted else {}

    async def delete(self, session_id: str) -> int:
        """Have no text of the session kept; return how many there were."""
        return await delete_rows(self._database, BLOBS, session_id)


def _read(connection: Connection, session_id: str, wanted: Sequence[str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    remaining = iter(wanted)
    while some := list(islice(remaining, READ_AT_ONCE)):
        found = select(BLOBS.c.hash, BLOBS.c.content).where(BLOBS.c.session_id == session_id, BLOBS.c.hash.in_(some))
        texts.update((row.hash, row.content.decode()) for row in connection.execute(found))
    return texts


def opaque_owner(session_id: str) -> str:
    """Return the owner of a session's opaque vendor state, out of reach of whoever reads the session's texts (AGT-3).

    No session has that id, since none has a slash.

    >>> opaque_owner("s1")
    's1/opaque'
    """
    return f"{session_id}/opaque"
