"""A conversation as a task stores it (CTX-11)."""

from collections.abc import Mapping, Sequence

from pydantic import model_validator

from turnkeeper.models.tasks.history_policy import HistoryRole
from turnkeeper.models.tasks.timestamps import is_timestamp, moment_of
from turnkeeper.models.wire import Frozen

OMITTED = "... (earlier messages omitted for brevity)\n\n"
"""Begins the first message that is kept where older ones were dropped."""

OVERHEAD_CHARS = 10
"""What a message counts beyond its content, role and timestamp (seed 3)."""


class HistoryMessage(Frozen):
    """A message that is handed over. `original_length` counts the characters of its trimmed content before any cut."""

    role: HistoryRole
    content: str
    timestamp: str
    truncated: bool
    original_length: int

    @property
    def size(self) -> int:
        """What the message counts towards the total size, in characters."""
        return len(self.content) + len(self.role) + len(self.timestamp) + OVERHEAD_CHARS


class HistoryMetadata(Frozen):
    """When the history was collected, and the timestamps, as given, that are oldest and newest by time."""

    collection_time: str
    oldest_message: str
    newest_message: str

    @classmethod
    def of(cls, timestamps: Sequence[str], *, collection_time: str | None = None) -> "HistoryMetadata":
        """Date messages with these timestamps, of which there is at least one; None: collected with the newest."""
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
    metadata: HistoryMetadata

    @model_validator(mode="before")
    @classmethod
    def _with_metadata(cls, given: object) -> object:
        """Read a history without `metadata`, as seed 1's tests have it: it is as old as its newest message."""
        if not isinstance(given, Mapping) or "metadata" in given:
            return given
        messages = given.get("messages")
        messages = messages if isinstance(messages, list) else []
        written = [message.get("timestamp") for message in messages if isinstance(message, Mapping)]
        timestamps = [text for text in written if isinstance(text, str) and is_timestamp(text)]
        return {**given, "metadata": HistoryMetadata.of(timestamps)} if timestamps else given

    @classmethod
    def of(cls, messages: Sequence[HistoryMessage], *, collection_time: str) -> "ConversationHistory":
        """Count and date `messages`, of which there is at least one."""
        timestamps = [message.timestamp for message in messages]
        return cls(
            messages=list(messages),
            total_messages=len(messages),
            truncated_count=sum(message.truncated for message in messages),
            metadata=HistoryMetadata.of(timestamps, collection_time=collection_time),
        )

    def without_oldest(self, count: int) -> "ConversationHistory | None":
        """Return the history without its first `count` messages, which the next one's text tells; None if none is left.

        `count` 0 changes nothing.
        """
        if not count or count >= len(self.messages):
            return None if count else self
        first, *rest = self.messages[count:]
        told = first.model_copy(update={"content": OMITTED + first.content})
        return ConversationHistory.of([told, *rest], collection_time=self.metadata.collection_time)
