"""The store of large texts, by session and SHA-256 of the UTF-8 text (SES-15), and of attachments (CTX-16)."""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import islice
from typing import Any, Generic, TypeVar

from cachetools import LRUCache
from sqlalchemy import ColumnElement, Connection, LargeBinary, delete, func, select

from turnkeeper.models.ids import WorkflowId
from turnkeeper.stores.database.database import Database
from turnkeeper.stores.database.rows import delete_rows, insert_missing
from turnkeeper.stores.database.tables import BLOBS

DELETED_AT_ONCE = 4
"""Attachments deleted in one transaction: their bytes are overwritten, which takes time."""

READ_AT_ONCE = 500
"""Texts read by one statement, since databases limit the number of parameters."""


Content = TypeVar("Content", str, bytes)


class Blobs:
    """The large texts of all sessions. Every method raises `StoreUnavailableError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, session_id: WorkflowId, texts: Iterable[str]) -> None:
        """Store all of `texts`, or none. A repetition changes nothing."""
        await self.put_data(session_id, map(str.encode, texts))

    async def put_data(self, owner: WorkflowId, data: Iterable[bytes]) -> None:
        """Store all of `data`, or none. A repetition changes nothing."""
        contents = {sha256(content).hexdigest(): content for content in data}
        # Sorted: two transactions that lock the same rows in different orders would deadlock.
        rows: list[dict[str, object]] = [
            {"session_id": owner, "hash": name, "content": contents[name]} for name in sorted(contents)
        ]
        if rows:
            await self._database.write(lambda connection: insert_missing(connection, BLOBS, rows))

    async def get(self, session_id: WorkflowId, hashes: Iterable[str]) -> dict[str, str]:
        """Return the stored texts by hash; missing ones are left out."""
        contents = await self.get_data(session_id, hashes)
        return {name: content.decode() for name, content in contents.items()}

    async def get_data(self, owner: WorkflowId, hashes: Iterable[str]) -> dict[str, bytes]:
        """Return the stored contents by hash; missing ones are left out."""
        names = sorted(set(hashes))
        return await self._database.read(lambda connection: _read(connection, owner, names)) if names else {}

    async def read_sizes(self, owner: WorkflowId, hashes: Iterable[str]) -> dict[str, int]:
        """Return the bytes of the stored contents by hash, without reading them; missing ones are left out."""
        names = sorted(set(hashes))
        return await self._database.read(lambda connection: _sizes(connection, owner, names)) if names else {}

    async def read_heads(self, owner: WorkflowId, hashes: Iterable[str], *, max_bytes: int) -> dict[str, bytes]:
        """Return how the stored contents begin, by hash; missing ones are left out."""
        names = sorted(set(hashes))
        head = func.substr(BLOBS.c.content, 1, max_bytes, type_=LargeBinary).label("head")
        query = select(BLOBS.c.hash, head).where(BLOBS.c.session_id == owner, BLOBS.c.hash.in_(names))
        rows = await self._database.read(lambda connection: connection.execute(query).all()) if names else []
        return {row.hash: row.head for row in rows}

    async def delete_some(self, owner: WorkflowId, hashes: Iterable[str]) -> None:
        """Delete the contents of `owner` with these hashes."""
        change = delete(BLOBS).where(BLOBS.c.session_id == owner, BLOBS.c.hash.in_(sorted(set(hashes))))
        await self._database.write(lambda connection: connection.execute(change))

    async def delete(self, session_id: WorkflowId) -> int:
        """Delete all texts of the session; return their number."""
        return await delete_rows(self._database, BLOBS, session_id)

    async def delete_data(self, owner: WorkflowId) -> int:
        """Delete all attachments of `owner`, few at once, since each may have megabytes; return their number."""
        return await delete_rows(self._database, BLOBS, owner, batch_rows=DELETED_AT_ONCE)


def _read(connection: Connection, session_id: WorkflowId, hashes: Sequence[str]) -> dict[str, bytes]:
    rows = _rows(connection, session_id, hashes, BLOBS.c.content)
    return {row.hash: row.content for row in rows}


def _sizes(connection: Connection, owner: WorkflowId, hashes: Sequence[str]) -> dict[str, int]:
    rows = _rows(connection, owner, hashes, func.length(BLOBS.c.content).label("size"))
    return {row.hash: row.size for row in rows}


def _rows(
    connection: Connection, owner: WorkflowId, hashes: Sequence[str], column: ColumnElement[Any]
) -> Iterator[Any]:
    remaining = iter(hashes)
    while some := list(islice(remaining, READ_AT_ONCE)):
        query = select(BLOBS.c.hash, column).where(BLOBS.c.session_id == owner, BLOBS.c.hash.in_(some))
        yield from connection.execute(query)


class RecentTexts(LRUCache[tuple[str, str], Content], Generic[Content]):
    """A cache of texts or contents by owner and hash, of at most `max_chars` together."""

    def __init__(self, *, max_chars: int) -> None:
        super().__init__(max_chars, getsizeof=len)

    def find(self, owner: str, hashes: Iterable[str]) -> dict[str, Content]:
        return {name: self[owner, name] for name in hashes if (owner, name) in self}

    def remember(self, owner: str, texts: dict[str, Content]) -> None:
        self.update({(owner, name): text for name, text in texts.items() if len(text) <= self.maxsize})


def opaque_owner(session_id: WorkflowId) -> WorkflowId:
    """Return the owner id of a session's opaque provider state, which readers of its texts can't reach (AGT-3).

    No session can have that id: session ids have no slash.

    >>> opaque_owner(WorkflowId("s1"))
    's1/opaque'
    """
    return WorkflowId(f"{session_id}/opaque")


def attachments_owner(session_id: WorkflowId) -> WorkflowId:
    """Return the owner id of a session's attachments, whose contents are no texts (CTX-16).

    >>> attachments_owner(WorkflowId("s1"))
    's1/attachments'
    """
    return WorkflowId(f"{session_id}/attachments")


def document_owner(session_id: WorkflowId) -> WorkflowId:
    """Return the owner id of the document that a session is imported from, until it is (SES-18).

    >>> document_owner(WorkflowId("s1"))
    's1/document'
    """
    return WorkflowId(f"{session_id}/document")
