"""Everything that routes can use: built once when the gateway starts, and passed to each route as one object."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self, TypeVar

from temporalio.client import Client

from turnkeeper.api.changes import ChangeObserver
from turnkeeper.api.history.approval_reader import ApprovalReader
from turnkeeper.api.history.deletion import SessionDeleter
from turnkeeper.api.history.forgotten_sessions import ForgottenSessions
from turnkeeper.api.history.replay_text import ReplayTextReader
from turnkeeper.api.history.text_restorer import TextRestorer
from turnkeeper.api.history.transcript_reader import TranscriptReader
from turnkeeper.api.http.closing import Closing
from turnkeeper.api.live.feed import UpdateFeed
from turnkeeper.api.markdown import MarkdownRenderer
from turnkeeper.api.new_sessions import AgentSource, NewSessions
from turnkeeper.api.prompts.attachments import AttachmentKeeper
from turnkeeper.api.prompts.fate_reader import FateReader
from turnkeeper.api.prompts.prompt_sender import PromptSender
from turnkeeper.api.temporal.session_commands import SessionCommands
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.partials.carrier import PartialCarrier
from turnkeeper.stores.stores import Stores

Service = TypeVar("Service")


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
    observers: list[ChangeObserver]
    """The features' services that watch what requests change."""

    # Reading and changing sessions, over Temporal
    reader: SessionReader
    sessions: SessionCommands

    # Starting sessions, and sending prompts
    new_sessions: NewSessions
    attachments: AttachmentKeeper
    sender: PromptSender

    # Reading over both session and stores, and deleting from both
    texts: TextRestorer
    transcripts: TranscriptReader
    fates: FateReader
    replays: ReplayTextReader
    deleter: SessionDeleter

    approvals: ApprovalReader

    # Updates for watching and polling clients
    feed: UpdateFeed

    markdown: MarkdownRenderer

    # Those of features, by their types
    of_features: dict[type, object] = field(default_factory=dict)

    def get(self, kind: type[Service]) -> Service:
        """Return a feature's service. Raises `KeyError` if the feature is not enabled."""
        service = self.of_features[kind]
        assert isinstance(service, kind)  # noqa: S101  # for mypy; `add` has used the type
        return service

    def add(self, services: Iterable[object]) -> None:
        """Add services of a feature, which find those that were added before."""
        for service in services:
            self.of_features[type(service)] = service
            if isinstance(service, ChangeObserver):
                self.observers.append(service)
            if isinstance(service, AgentSource):
                self.new_sessions.agents = service

    @classmethod
    def of(
        cls,
        client: Client,
        settings: Settings,
        stores: Stores,
        partials: PartialCarrier,
        closing: Closing,
        timeouts: Timeouts,
        observers: list[ChangeObserver],
    ) -> Self:
        forgotten = ForgottenSessions(client, stores, timeouts)
        reader = SessionReader(client, forgotten, timeouts)
        sessions = SessionCommands(client, settings, reader, stores)
        texts = TextRestorer(stores.blobs)
        transcripts = TranscriptReader(reader, stores, texts)
        attachments = AttachmentKeeper(reader, stores, inline_bytes=settings.limits.attachments_bytes)
        sender = PromptSender(sessions, reader, attachments, stores)
        return cls(
            settings=settings,
            timeouts=timeouts,
            client=client,
            stores=stores,
            closing=closing,
            observers=observers,
            reader=reader,
            sessions=sessions,
            new_sessions=NewSessions(settings),
            attachments=attachments,
            sender=sender,
            texts=texts,
            transcripts=transcripts,
            fates=FateReader(reader, stores, texts, closing),
            replays=ReplayTextReader(reader, stores.archive, texts),
            deleter=SessionDeleter(settings, reader, stores),
            approvals=ApprovalReader(reader, texts),
            feed=UpdateFeed(reader, texts, partials, closing),
            markdown=MarkdownRenderer(timeouts),
        )

    async def close(self) -> None:
        """End all waits, streams and background tasks."""
        self.closing.begin()
        self.observers.clear()
        await self.reader.close()
