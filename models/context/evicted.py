"""The messages that have left a model view, and wait for the next summary (CTX-5)."""

from collections.abc import Iterable
from dataclasses import dataclass

from turnkeeper.models.context.eviction import Eviction
from turnkeeper.models.context.summary import EVICTED_A_SUMMARY, carries_text
from turnkeeper.models.context.view_entries import ViewEntry, ViewRef, detached, restored
from turnkeeper.models.context.window import ConversationHistoryConfig
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.transcript import Transcript
from turnkeeper.models.wire import Compact, Items


class EvictedState(Compact):
    """The carried part, flat in that of the context."""

    waiting: Items[ViewRef] = []
    """Evicted entries that are in no summary yet, oldest first."""
    evicted_since: int = 0
    """Messages evicted since the last attempt at a summary."""
    summaries_failed: int = 0
    given_up: int = 0
    """Messages that no summary will contain, since too many were waiting."""


@dataclass(frozen=True)
class EvictionCounts:
    """Numbers of messages that were evicted, and that will be in no summary, since the last call."""

    evicted: int
    given_up: int


class Evicted:
    """The evicted entries that are in no summary yet."""

    def __init__(self, state: EvictedState, transcript: Transcript) -> None:
        self.entries = [restored(ref, transcript) for ref in state.waiting]
        """Evicted entries for the next summary, oldest first."""
        self.since = state.evicted_since
        """Messages evicted since the last attempt at a summary."""
        self.summaries_failed = state.summaries_failed
        self.given_up = state.given_up
        """Number of messages that no summary will contain, since too many were waiting."""
        self._counts = EvictionCounts(0, 0)

    @property
    def state(self) -> EvictedState:
        return EvictedState(
            waiting=[entry.ref for entry in self.entries],
            evicted_since=self.since,
            summaries_failed=self.summaries_failed,
            given_up=self.given_up,
        )

    @property
    def carried_bytes(self) -> int:
        return sum(entry.carried_bytes for entry in self.entries)

    def add(self, eviction: Eviction, *, keeps: bool) -> None:
        """Count what was evicted, and keep it for a summary if summaries are on."""
        self._counts = EvictionCounts(self._counts.evicted + eviction.evicted, self._counts.given_up)
        self.since = self.since + eviction.evicted if keeps else 0
        # Sorted, since a prompt may follow its steps.
        self.entries = sorted([*self.entries, *eviction.entries], key=_place_of) if keeps else []

    def drop(self, number: int) -> None:
        """Leave the entries of a turn that is replaced out of the next summary."""
        self.entries = [entry for entry in self.entries if entry.ref.number != number]

    def bound(self, max_bytes: int) -> None:
        """Give up the oldest entries until the rest has at most `max_bytes`."""
        waiting_bytes = self.carried_bytes
        while waiting_bytes > max_bytes:
            oldest = self.entries.pop(0)
            waiting_bytes -= oldest.carried_bytes
            self.given_up += len(oldest.messages)
            self._counts = EvictionCounts(self._counts.evicted, self._counts.given_up + len(oldest.messages))

    def pop_counts(self) -> EvictionCounts:
        """Return the counts since the last call, and reset them."""
        counts, self._counts = self._counts, EvictionCounts(0, 0)
        return counts

    def is_summary_due(self, config: ConversationHistoryConfig) -> bool:
        """Return whether to summarise now: enough messages were evicted since the last summary, with text (CTX-5)."""
        enough = config.summarize_on_trim and self.since >= EVICTED_A_SUMMARY
        return enough and carries_text(message for entry in self.entries for message in entry.messages)

    def begin_summary(self) -> list[ViewEntry]:
        """Return the entries to summarise now, and restart the count of evictions."""
        self.since = 0
        return list(self.entries)

    def note_failed_summary(self) -> None:
        """Count a failed summary; its messages wait for the next one."""
        self.summaries_failed += 1

    def remove(self, entries: Iterable[ViewEntry]) -> None:
        """Remove entries that were summarised."""
        summarised = set(map(_place_of, entries))
        self.entries = [entry for entry in self.entries if _place_of(entry) not in summarised]

    def detach(self, turn: ConversationMessage, *, steps_before: int | None, inline_bytes: int) -> None:
        """Detach all entries of `turn`, see `view_entries.detached`."""
        self.entries = detached(self.entries, turn, steps_before=steps_before, inline_bytes=inline_bytes)


def _place_of(entry: ViewEntry) -> tuple[int, int]:
    return entry.ref.number, -1 if entry.ref.step is None else entry.ref.step
