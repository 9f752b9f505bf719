"""Everything that routes can use: built once when the gateway starts, and passed to each route as one object."""

from dataclasses import dataclass
from typing import Self

from temporalio.client import Client

from turnkeeper.api.history.approval_reader import ApprovalReader
from turnkeeper.api.history.deletion import SessionDeleter
from turnkeeper.api.history.forgotten_sessions import ForgottenSessions
from turnkeeper.api.history.replay_text import ReplayTextReader
from turnkeeper.api.history.text_restorer import TextRestorer
from turnkeeper.api.history.transcript_reader import TranscriptReader
from turnkeeper.api.http.closing import Closing
from turnkeeper.api.live.feed import UpdateFeed
from turnkeeper.api.markdown import MarkdownRenderer
from turnkeeper.api.prompts.attachments import AttachmentKeeper
from turnkeeper.api.prompts.fate_reader import FateReader
from turnkeeper.api.prompts.prompt_sender import PromptSender
from turnkeeper.api.temporal.session_commands import SessionCommands
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.features.access.audit.recorder import AuditRecorder
from turnkeeper.features.access.session_limits import SessionLimits
from turnkeeper.features.copies.copying import SessionCopier
from turnkeeper.features.copies.exporting import SessionExporter
from turnkeeper.features.listing.lists import IndexRepair, SessionLists
from turnkeeper.features.tasks.api.task_reader import TaskReader
from turnkeeper.features.tasks.api.tasks import Tasks
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.partials.carrier import PartialCarrier
from turnkeeper.stores.stores import Stores


@dataclass(frozen=True)
class Services:
    """The services of one gateway. Each depends only on those above it."""

    settings: Settings
    timeouts: Timeouts
    client: Client
    """To Temporal."""
    stores: Stores
    closing: Closing
    """Ends every wait of a request when the gateway stops."""

    # What callers may change, and the record of it
    limits: SessionLimits
    audit: AuditRecorder

    # Reading and changing sessions, over Temporal
    reader: SessionReader
    sessions: SessionCommands

    # Sending prompts
    attachments: AttachmentKeeper
    sender: PromptSender

    # Reading over both session and stores, and deleting from both
    repair: IndexRepair
    lists: SessionLists
    texts: TextRestorer
    transcripts: TranscriptReader
    fates: FateReader
    replays: ReplayTextReader
    deleter: SessionDeleter

    # Copies of sessions
    exporter: SessionExporter
    copier: SessionCopier

    # Tasks
    approvals: ApprovalReader
    tasks: Tasks

    # Updates for watching and polling clients
    feed: UpdateFeed

    markdown: MarkdownRenderer

    @classmethod
    def of(
        cls,
        client: Client,
        settings: Settings,
        stores: Stores,
        partials: PartialCarrier,
        closing: Closing,
        timeouts: Timeouts,
    ) -> Self:
        forgotten = ForgottenSessions(client, stores, timeouts)
        reader = SessionReader(client, forgotten, timeouts)
        sessions = SessionCommands(client, settings, reader, stores)
        texts = TextRestorer(stores.blobs)
        transcripts = TranscriptReader(reader, stores, texts)
        attachments = AttachmentKeeper(reader, stores, inline_bytes=settings.limits.attachments_bytes)
        sender = PromptSender(sessions, reader, attachments, stores)
        exporter = SessionExporter(settings, reader, stores)
        approvals = ApprovalReader(reader, texts)
        lists = SessionLists(stores, timeouts)
        task_reader = TaskReader(settings, reader, texts, approvals, closing)
        return cls(
            settings=settings,
            timeouts=timeouts,
            client=client,
            stores=stores,
            closing=closing,
            limits=SessionLimits(settings, reader),
            audit=AuditRecorder(stores.audit),
            reader=reader,
            sessions=sessions,
            attachments=attachments,
            sender=sender,
            repair=IndexRepair(client, stores.index, timeouts),
            lists=lists,
            texts=texts,
            transcripts=transcripts,
            fates=FateReader(reader, stores, texts, closing),
            replays=ReplayTextReader(reader, stores.archive, texts),
            deleter=SessionDeleter(settings, reader, stores),
            exporter=exporter,
            copier=SessionCopier(settings, reader, sessions, transcripts, exporter, stores),
            approvals=approvals,
            tasks=Tasks(settings, reader, sessions, sender, transcripts, stores, lists, task_reader),
            feed=UpdateFeed(reader, texts, partials, closing),
            markdown=MarkdownRenderer(timeouts),
        )

    async def close(self) -> None:
        """End all waits, streams and background tasks."""
        self.closing.begin()
        await self.repair.close()
        await self.reader.close()
        await self.audit.close()
