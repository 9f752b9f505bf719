"""Everything that routes can use: built once when the gateway starts, and passed to each route as one object.

A feature adds to it, and to the rest of the gateway, by its `GatewayFeature`.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Self, TypeVar

from fastapi import APIRouter, FastAPI
from temporalio.client import Client

from turnkeeper.api.changes import ChangeObserver
from turnkeeper.api.history.approval_reader import ApprovalReader
from turnkeeper.api.history.ended_sessions import ForgottenSessions, SessionDeleter
from turnkeeper.api.history.transcript_reader import ReplayTextReader, TextRestorer, TranscriptReader
from turnkeeper.api.http.authentication import Authenticator
from turnkeeper.api.http.streams import Closing
from turnkeeper.api.live.feed import UpdateFeed
from turnkeeper.api.markdown import MarkdownRenderer
from turnkeeper.api.new_sessions import AgentSource, NewSessions
from turnkeeper.api.prompts import AttachmentKeeper, FateReader, PromptSender
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


class GatewayFeature:
    """The hooks of the gateway. Each one adds nothing, unless a feature overrides it."""

    routers: Sequence[APIRouter] = ()

    def authenticator(self, settings: Settings, stores: Stores, timeouts: Timeouts) -> Authenticator | None:
        """Return what says who sends a request, if this feature does; otherwise everybody is the local admin."""
        return None

    def services(self, services: Services) -> Iterable[object]:
        """Return the feature's own services, which its routes get with `services.get(ItsType)`.

        Features that it needs have added theirs before. One that is a `ChangeObserver` sees what all requests change.
        """
        return ()

    def install(self, app: FastAPI, settings: Settings) -> None:
        """Add to the application what is no route of FastAPI."""

    def running(self, app: FastAPI, services: Services) -> AbstractAsyncContextManager[None]:
        """Return a context that is open while the gateway serves requests."""
        return nullcontext()
