"""What leaves a model view: which entries, those that wait for the next summary, and the notes of what is left out.

Notes (CTX-17): entries have the numbers of their turns and steps, which count without gaps. So what is missing between
two neighbours follows from the two alone: turns, steps of one turn, or the answer of the earlier one. Nothing is
counted or carried, a note can't become stale, and appending an entry never changes an earlier note. A summary stands
where the first turns are missing, in place of their note.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from turnkeeper.models.context.summary import EVICTED_A_SUMMARY, Summary, carries_text, summary_message
from turnkeeper.models.context.view_entries import ViewEntry, ViewRef, detached, restored
from turnkeeper.models.context.window import ConversationHistoryConfig
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.model_call import ModelMessage
from turnkeeper.models.transcript.notes import ANSWERED, UNANSWERED, prompt_left_out, steps_left_out, turns_left_out
from turnkeeper.models.transcript.transcript import Transcript
from turnkeeper.models.wire import Compact, Items

MAX_ENDING_CHARS = 4_000
"""A head that keeps the answer of its last turn keeps none that is longer than this."""


@dataclass(frozen=True)
class Eviction:
    """The entries that were evicted, oldest first, and the number of their messages."""

    entries: list[ViewEntry]
    evicted: int


def oldest_to_evict(
    entries: Sequence[ViewEntry], excess: int, permanent: set[int], *, size: Callable[[ViewEntry], int]
) -> set[int]:
    """Return the oldest entries, except `permanent` ones, that have `excess` of their sizes together, if possible.

    The turn where that is reached loses steps only, and keeps its prompt and its end; earlier ones go whole.
    """
    leaving = set[int]()
    for turn in _turns(entries):
        evictable = [index for index in turn if index not in permanent]
        if excess <= 0:
            break
        if sum(size(entries[index]) for index in evictable) > excess:
            steps = [index for index in evictable if index not in (turn[0], turn[-1])]
            sizes = list(accumulate(size(entries[index]) for index in steps))
            if sizes and sizes[-1] >= excess:
                evictable = steps[: sum(total < excess for total in sizes) + 1]
        leaving.update(evictable)
        excess -= sum(size(entries[index]) for index in evictable)
    return leaving


def permanent_entries(
    entries: Sequence[ViewEntry], running_turn: str, staying: set[int], *, keeps_last: bool = True
) -> set[int]:
    """Return what stays in an eviction: those `staying`, and the prompts of the turns of which they are steps.

    The running turn's prompt always stays, and with `keeps_last` the last entry.
    """
    permanent = staying | ({len(entries) - 1} if keeps_last and entries else set())
    # The last one counts: the id may have been used long ago.
    prompts = [index for index, entry in enumerate(entries) if entry.is_prompt_of(running_turn)]
    return permanent | set(prompts[-1:]) | {turn[0] for turn in _turns(entries) if not permanent.isdisjoint(turn)}


def head_indexes(entries: Sequence[ViewEntry], first_n: int, *, keeps_answer: bool = False) -> list[int]:
    """Return the entries that begin within the first `first_n` messages.

    With `keeps_answer`, the last turn among them keeps its end, if that is short.
    """
    starts = accumulate((len(entry.messages) for entry in entries), initial=0)
    head = [index for index, start in enumerate(starts) if start < first_n][: len(entries)]
    if head and keeps_answer:
        end = next(turn[-1] for turn in _turns(entries) if head[-1] in turn)
        is_short = entries[end].ends_turn and entries[end].chars <= MAX_ENDING_CHARS
        head += [end] if is_short and end not in head else []
    return head


def tail_indexes(entries: Sequence[ViewEntry], last_n: int) -> list[int]:
    """Return the entries that reach into the last `last_n` messages."""
    ends = accumulate((len(entry.messages) for entry in reversed(entries)), initial=0)
    last = len(entries) - 1
    return [last - index for index, end in enumerate(ends) if end < last_n and index <= last]


def _turns(entries: Sequence[ViewEntry]) -> list[list[int]]:
    numbers = groupby(range(len(entries)), key=lambda index: entries[index].ref.number)
    return [list(indexes) for _, indexes in numbers]


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


def arranged(entries: Sequence[ViewEntry], summary: Summary | None) -> list[ViewEntry]:
    """Return `entries` with the `summary` and the notes between them."""
    place = _place_of_summary(entries) if summary else None
    visible = list[ViewEntry]()
    for index, (earlier, later) in enumerate(_pairs(entries)):
        visible += [
            *notes_between(earlier, later, summary=summary, is_its_place=index == place),
            *_stand_in(earlier, later, {}),
            later,
        ]
    return visible if entries or not summary else [summary_entry(summary)]


def notes_between(
    earlier: ViewEntry | None, later: ViewEntry, *, summary: Summary | None = None, is_its_place: bool = False
) -> list[ViewEntry]:
    """Return the notes between two neighbours, with the `summary` if `is_its_place`; else at most one.

    `earlier` is `None` if `later` is the first entry. Steps of a turn that the summary covers are not noted.
    """
    if earlier and earlier.ref.number == later.ref.number:
        if summary and is_its_place:
            return [summary_entry(summary)]
        steps = 0 if _has(summary, later.ref.number) else _missing_steps(earlier, later)
        unanswered = [UNANSWERED] if earlier.is_from_user and later.is_from_user else []
        return [*map(_note, [steps_left_out(steps)] if steps else unanswered)]
    summary = summary if is_its_place else None
    missing = _missing_turns(earlier, later)
    answered = [ANSWERED] if earlier and not earlier.ends_turn and not _has(summary, earlier.ref.number) else []
    summaries = summary.turns if summary else []
    covered = (range(max(first, missing.start), min(last + 1, missing.stop)) for first, last in summaries)
    count = len(missing) - sum(map(len, covered))
    turns = [turns_left_out(count)] if count else []
    if summary is None:
        return [_note(" ".join([*answered, *turns]))] if answered or turns else []
    return [*map(_note, answered), summary_entry(summary), *map(_note, turns)]


def messages_to_summarise(waiting: Sequence[ViewEntry], prompts: Mapping[int, str]) -> list[ModelMessage]:
    """Return the messages of evicted entries; `prompts`: of turns whose prompt stays, by turn number.

    A note stands in for a prompt that is not among them, so that nothing follows another turn's prompt.
    """
    messages = list[ModelMessage]()
    for earlier, later in _pairs(waiting):
        notes = notes_between(earlier, later) if earlier else []
        visible = [*notes, *_stand_in(earlier, later, prompts), later]
        messages += [message for entry in visible for message in entry.messages]
    return messages


def _stand_in(earlier: ViewEntry | None, later: ViewEntry, prompts: Mapping[int, str]) -> list[ViewEntry]:
    """Return a user message in place of a prompt that is missing between two entries, if one is."""
    is_same_turn = earlier is not None and earlier.ref.number == later.ref.number
    if is_same_turn or later.begins_turn or later.is_from_user:
        return []
    message = ModelMessage(role="user", content=prompt_left_out(prompts.get(later.ref.number)))
    return [ViewEntry.with_messages(ViewRef(turn=""), (message,))]


def summary_entry(summary: Summary) -> ViewEntry:
    return ViewEntry.with_messages(ViewRef(turn=""), (summary_message(summary),))


def _pairs(entries: Sequence[ViewEntry]) -> Iterable[tuple[ViewEntry | None, ViewEntry]]:
    return zip([None, *entries], entries, strict=False)


def _place_of_summary(entries: Sequence[ViewEntry]) -> int:
    """Return the index of the entry that the summary precedes: after the first gap between turns, or in a turn."""
    pairs = list(enumerate(_pairs(entries)))
    between = (index for index, (earlier, later) in pairs if _missing_turns(earlier, later))
    within = (index for index, (earlier, later) in pairs if earlier and _missing_steps(earlier, later))
    return next(between, next(within, 0))


def _missing_turns(earlier: ViewEntry | None, later: ViewEntry) -> range:
    return range(earlier.ref.number + 1 if earlier else 1, later.ref.number - later.ref.retried)


def _missing_steps(earlier: ViewEntry, later: ViewEntry) -> int:
    """Return how many steps are missing between two entries of one turn; 0 for entries of two."""
    if earlier.ref.number != later.ref.number:
        return 0
    return max(0, (later.ref.step or 0) - earlier.steps_so_far)


def _has(summary: Summary | None, number: int) -> bool:
    return summary is not None and any(first <= number <= last for first, last in summary.turns)


def _note(sentences: str) -> ViewEntry:
    return ViewEntry.of_note(f"[{sentences}]")
