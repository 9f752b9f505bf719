"""A conversation as a task stores it (CTX-11)."""

from collections.abc import Mapping, Sequence

from pydantic import Field, model_validator

from turnkeeper.models.tasks.history_policy import HistoryRole
from turnkeeper.models.tasks.timestamps import is_timestamp, moment_of
from turnkeeper.models.transcript.attachments import Attachment
from turnkeeper.models.wire import Frozen, Items

OMITTED = "... (earlier messages omitted for brevity)\n\n"
"""Precedes the first message if older ones were dropped."""

OVERHEAD_CHARS = 10
"""Added to the size of a message for its envelope."""


class HistoryMessage(Frozen):
    """A message that was handed off. `original_length` is that of its trimmed content before it was cut."""

    role: HistoryRole
    content: str
    timestamp: str
    truncated: bool
    """Whether the content is shorter than it was: cut, or condensed by the model."""
    original_length: int
    condensed: bool = Field(False, exclude_if=lambda condensed: not condensed)
    """Whether the content is the model's, in place of a cut text (CTX-15)."""
    attachments: Items[Attachment] = Field([], exclude_if=lambda attachments: not attachments)
    """By reference; the latest of the history are attachments of the task's first prompt (CTX-16)."""

    @property
    def size(self) -> int:
        """The message's share of the total size, in characters."""
        return len(self.content) + len(self.role) + len(self.timestamp) + OVERHEAD_CHARS


class HistoryMetadata(Frozen):
    """When the history was collected, and its oldest and newest timestamps, as they were written."""

    collection_time: str
    oldest_message: str
    newest_message: str

    @classmethod
    def of(cls, timestamps: Sequence[str], *, collection_time: str | None = None) -> "HistoryMetadata":
        """Return the metadata of at least one timestamp; `collection_time` defaults to the newest."""
        newest = max(timestamps, key=moment_of)
        return cls(
            collection_time=newest if collection_time is None else collection_time,
            oldest_message=min(timestamps, key=moment_of),
            newest_message=newest,
        )


class ConversationHistory(Frozen):
    """A conversation as a task stores it, oldest message first; never empty (CTX-11)."""

    messages: list[HistoryMessage]
    total_messages: int
    truncated_count: int
    """How many texts are cut; condensed ones don't count."""
    metadata: HistoryMetadata
    left_out: int = Field(0, ge=0, exclude_if=lambda left_out: not left_out)
    """How many messages between these were left out, since they matter less to the task (CTX-15)."""

    @model_validator(mode="before")
    @classmethod
    def _with_metadata(cls, value: object) -> object:
        """Add missing `metadata`: other programs may store a history without it."""
        if not isinstance(value, Mapping) or "metadata" in value:
            return value
        messages = value.get("messages")
        messages = messages if isinstance(messages, list) else []
        texts = [message.get("timestamp") for message in messages if isinstance(message, Mapping)]
        timestamps = [text for text in texts if isinstance(text, str) and is_timestamp(text)]
        return {**value, "metadata": HistoryMetadata.of(timestamps)} if timestamps else value

    @classmethod
    def of(cls, messages: Sequence[HistoryMessage], *, collection_time: str) -> "ConversationHistory":
        """Return the history of at least one message."""
        timestamps = [message.timestamp for message in messages]
        return cls(
            messages=list(messages),
            total_messages=len(messages),
            truncated_count=sum(message.truncated and not message.condensed for message in messages),
            metadata=HistoryMetadata.of(timestamps, collection_time=collection_time),
        )

    def without_oldest(self, count: int) -> "ConversationHistory | None":
        """Return the history without its first `count` messages; `None` if none is left.

        The first remaining text says so, unless `count` is 0.
        """
        if not count or count >= len(self.messages):
            return None if count else self
        first, *rest = self.messages[count:]
        marked = first.model_copy(update={"content": OMITTED + first.content})
        return self.with_messages([marked, *rest])

    def with_messages(self, messages: Sequence[HistoryMessage]) -> "ConversationHistory":
        """Return the history with at least one of these messages in place of its own."""
        history = ConversationHistory.of(messages, collection_time=self.metadata.collection_time)
        return history.model_copy(update={"left_out": self.left_out}) if self.left_out else history
