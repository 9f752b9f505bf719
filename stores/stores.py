"""The stores of one installation, shared by workers and gateways (SES-15)."""

from dataclasses import dataclass
from typing import Self

from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.settings.settings import Settings, SettingsError
from turnkeeper.stores.archive import Archive, Prompts
from turnkeeper.stores.blobs import Blobs, attachments_owner, document_owner, opaque_owner
from turnkeeper.stores.database import OTHER_TABLES
from turnkeeper.stores.database.database import Database
from turnkeeper.stores.database.rows import delete_rows
from turnkeeper.stores.database.tables import DELETED_WITH_SESSION, METADATA
from turnkeeper.stores.session_index import IndexWriter, SessionIndex


@dataclass(frozen=True)
class Stores:
    """The archive of turns, large texts and prompts, and the index of sessions, in one database.

    Use it with `async with`. Features have stores of their own in the same `database`.
    """

    database: Database
    archive: Archive
    blobs: Blobs
    prompts: Prompts
    index: SessionIndex
    index_writer: IndexWriter

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the stores that the settings name; nothing is opened yet.

        Raises:
            SettingsError: `archive_url` needs a package that is not installed.
        """
        try:
            url, file = settings.archive_url, settings.state_dir / "archive.db"
            database = Database(url) if url else Database.of_file(file)
        except ValueError as error:
            raise SettingsError(f"archive_url: {error}") from error
        index = SessionIndex(database)
        return cls(database, Archive(database), Blobs(database), Prompts(database), index, IndexWriter(index))

    async def has(self, session_id: WorkflowId) -> bool:
        """Return whether the session has archived turns or a row in the index."""
        return bool(await self.archive.count(session_id)) or await self.index.find(session_id) is not None

    async def delete(self, session_id: WorkflowId) -> int:
        """Delete everything of the session, also what features have of it; return the number of its archived turns."""
        await self.blobs.delete(session_id)
        await self.blobs.delete(opaque_owner(session_id))
        await self.blobs.delete_data(attachments_owner(session_id))
        await self.blobs.delete_data(document_owner(session_id))
        await self.prompts.delete(session_id)
        for table in METADATA.tables.values():
            if table.info == DELETED_WITH_SESSION:
                await delete_rows(self.database, table, session_id)
        await self.index.delete(session_id)
        return await self.archive.delete(session_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.index_writer.close()
        await self.database.close()


async def check_stores(settings: Settings) -> None:
    """Raise `SettingsError` if another version of Turnkeeper has made the stores. They may be unavailable now."""
    async with Stores.of(settings) as stores:
        if await stores.database.are_tables_other():
            raise SettingsError(OTHER_TABLES)
